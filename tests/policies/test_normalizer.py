import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policies.normalizer import RunningMeanStd


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(-1e4, 1e4), st.floats(0.01, 100))
def test_batches_merge_into_the_statistics_of_everything_seen(seed, batches, offset, scale):
    rng = np.random.default_rng(seed)
    normalizer, seen = RunningMeanStd((3,)), []
    for _ in range(batches):
        x = (offset + scale * rng.normal(size=(4, 6, 3))).astype(np.float32)
        mask = rng.random((4, 6)) < 0.5
        x[~mask] = np.nan
        normalizer.update(torch.as_tensor(x), torch.as_tensor(mask))
        seen.append(x[mask].astype(np.float64))
    everything = np.concatenate(seen)
    assert normalizer.count == len(everything)
    if len(everything):
        np.testing.assert_allclose(normalizer.mean, everything.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(normalizer.var, everything.var(0), rtol=1e-6, atol=1e-9)


def test_scalars_and_no_mask():
    normalizer = RunningMeanStd(clip=None)
    x = torch.randn(100) * 3 + 7
    normalizer.update(x[:60])
    normalizer.update(x[60:])
    assert normalizer.mean.item() == pytest.approx(x.mean().item(), rel=1e-6)
    y = normalizer.normalize(x)
    assert y.std(correction=0).item() == pytest.approx(1, rel=1e-4)
    torch.testing.assert_close(normalizer.denormalize(y), x)


def test_before_the_first_sample_it_is_the_identity():
    normalizer = RunningMeanStd((2,))
    normalizer.update(torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.bool))
    x = torch.randn(4, 2)
    torch.testing.assert_close(normalizer.normalize(x), x, rtol=1e-4, atol=1e-4)


def test_clipping():
    normalizer = RunningMeanStd((1,))
    assert normalizer.normalize(torch.tensor([[1e6], [-1e6]])).flatten().tolist() == [5, -5]


def test_a_constant_input_stays_finite():
    normalizer = RunningMeanStd((1,))
    normalizer.update(torch.full((10, 1), 3.0))
    assert normalizer.normalize(torch.full((1, 1), 3.0)).item() == 0


def test_statistics_are_saved_and_the_update_is_deterministic():
    one, two = RunningMeanStd((3,)), RunningMeanStd((3,))
    x = torch.randn(7, 5, 3)
    one.update(x)
    two.update(x)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))
    three = RunningMeanStd((3,))
    three.load_state_dict(one.state_dict())
    three.update(x)
    one.update(x)
    assert torch.equal(one.var, three.var)
