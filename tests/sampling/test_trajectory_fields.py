"""Views of a trajectory's rows."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec, LaneRow, ObsRow, Place, StepRow
from headrace.sampling.trajectory_fields import trajectory_fields

OBSERVED = {"x": ArraySpec((3,), np.dtype(np.float32))}
SPEC = EnvSpec(OBSERVED, ActionSpec((Categorical(2),)), autoreset="same-step", tasks=("a", "b"), info_metrics=("k",))


@pytest.mark.parametrize(("shape", "at", "after"), [((6, 2), 3, 4), ((4, 6, 2), (1, 3), (1, 4))])
def test_rows_are_views_of_the_arrays_of_their_fields(shape: tuple[int, ...], at: Place, after: Place) -> None:
    arrays = {name: np.zeros((*shape, *f.shape), f.dtype) for name, f in trajectory_fields(SPEC, 0).items()}
    row = LaneRow.view(arrays, at, after)
    for number, array in enumerate((row.actions, *vars(row.step).values()), start=1):
        (array["x"] if isinstance(array, dict) else array)[:] = number
    row.after.obs["x"][:], row.after.first[:], row.after.valid[:] = 20, True, True
    steps = ("action", "reward", "terminated", "truncated", "episode_return", "episode_length")
    for number, name in enumerate((*steps, "final_obs/x", "episode_info", "task"), start=1):
        expected = np.zeros_like(arrays[name])
        expected[at] = number
        assert np.array_equal(arrays[name], expected), name
    for name, value in (("obs/x", 20), ("first", True), ("valid", True)):
        expected = np.zeros_like(arrays[name])
        expected[after] = value
        assert np.array_equal(arrays[name], expected), name
    assert np.shares_memory(ObsRow.view(arrays, after).obs["x"], row.after.obs["x"])


def test_a_row_of_views_has_the_fields_of_the_row() -> None:
    row = LaneRow(None, StepRow.zeros(4), ObsRow.zeros(SPEC, 4))
    odd = row.map(lambda array: array[1::2])
    odd.step.reward[:] = odd.after.obs["x"][:] = 1
    assert row.step.reward.tolist() == [0, 1, 0, 1]
    assert row.after.obs["x"].sum() == 2 * 3
    assert odd.actions is None
    assert odd.step.task is None
