"""Rows as views of named arrays, such as those of a trajectory or of a message to an environment server."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.envs.core.contract import Array, LaneRow, ObsRow, StepRow

Place = int | tuple[int, int]
"""Index of a row in the arrays: t, or (slot, t) in a trajectory store."""


def obs_row(arrays: Mapping[str, Array], at: Place) -> ObsRow:
    """Views of the observation at `at`."""
    return ObsRow(_part(arrays, "obs/", at), arrays["first"][at], arrays["valid"][at])


def lane_row(arrays: Mapping[str, Array], at: Place, after: Place) -> LaneRow:
    """Views of the actions and the results at `at`, and of the observation at `after`."""
    step = StepRow(
        arrays["reward"][at],
        arrays["terminated"][at],
        arrays["truncated"][at],
        arrays["episode_return"][at],
        arrays["episode_length"][at],
        _part(arrays, "final_obs/", at),
        arrays["episode_objective"][at] if "episode_objective" in arrays else None,
        arrays["task"][at] if "task" in arrays else None,
    )
    return LaneRow(arrays["action"][at], step, obs_row(arrays, after))


def _part(arrays: Mapping[str, Array], prefix: str, at: Place) -> dict[str, Array]:
    """Views at `at` of the arrays whose names begin with `prefix`, which is removed from the names."""
    return {name[len(prefix) :]: array[at] for name, array in arrays.items() if name.startswith(prefix)}
