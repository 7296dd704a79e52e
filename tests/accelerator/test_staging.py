"""Memory between the host and the device: `apart` runs the GPU's way on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.accelerator.staging import Staging, layout_of, packed, unpacked


def test_fields_of_any_kind_travel_as_bytes_side_by_side() -> None:
    fields = {
        "action": torch.arange(10, dtype=torch.int32).reshape(5, 2), "value": torch.randn(5), "core": torch.zeros(5, 0),
        "flag": torch.tensor([True, False, True, True, False]), "wide": torch.randn(5, 2, 3).transpose(1, 2),
        "double": torch.randn(5, dtype=torch.float64),
    }  # fmt: skip
    back = unpacked(packed(fields).numpy(), layout_of(fields))
    assert list(back) == list(fields)
    for name, x in fields.items():
        assert back[name].dtype == x.numpy().dtype
        np.testing.assert_array_equal(back[name], x.numpy())


@pytest.mark.parametrize("apart", [False, True])
def test_equal_sizes_are_equal_memory(apart: bool) -> None:
    staging, array = Staging("cpu", 4, apart), np.random.default_rng(0).random((10, 2, 3))
    one = staging.take("a", array, np.array([7, 2, 5]), rows=4)
    np.testing.assert_array_equal(one[:6], array[[7, 2, 5]].reshape(6, 3))
    assert one.shape == (8, 3)
    two = staging.take("a", array, np.array([1, 3, 4, 9]), rows=4)
    assert two.data_ptr() == one.data_ptr()
    out = staging.fetch(staging.pack({"x": two, "sum": two.sum(1).float()}), 6)
    np.testing.assert_array_equal(out["x"], array[[1, 3, 4]].reshape(6, 3))
    np.testing.assert_allclose(out["sum"], array[[1, 3, 4]].reshape(6, 3).sum(1), rtol=1e-6)
