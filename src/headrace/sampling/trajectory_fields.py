"""The table that describes a trajectory: its fields, and the views of their rows through which environments read and write."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.envs.contract import Array, ArraySpec, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.shm.trajectory_store import Field


def trajectory_fields(
    spec: EnvSpec, core_width: int, extra: dict[str, ArraySpec] | None = None, objective: bool = False
) -> dict[str, Field]:
    """The table. `core_width` is S, the width of the policy's recurrent state; `extra` are an algorithm's own per-step
    outputs of the policy (Q-values for initial priorities, say). `objective`: whether the environment is asked for the objective
    of each episode beside its return."""
    flag, number, count = np.dtype(bool), np.dtype(np.float32), np.dtype(np.int32)
    fields = {f"obs/{name}": Field("T+1", a.shape, a.dtype) for name, a in spec.observation.items()}
    fields |= {
        "first": Field("T+1", (), flag),  # the observation is the first of an episode: zero the core before it
        "valid": Field("T+1", (), flag),  # False: the observation is the last of an episode, no transition starts here
        "action": Field("T", (spec.action.width,), spec.action.dtype),
        "log_prob": Field("T", (), number),  # of the behaviour policy
        "value": Field("T", (), number),  # of the behaviour policy
        "version": Field("T", (), count),  # of the weights that chose the action
        "reward": Field("T", (), number),
        "terminated": Field("T", (), flag),
        "truncated": Field("T", (), flag),
        "episode_return": Field("T", (), number),  # NaN unless a game ended with this step
        "episode_length": Field("T", (), count),
        "core": Field("once", (core_width,), number),  # before row 0, not yet zeroed by `first`
    }
    if objective:
        fields["episode_objective"] = Field("T", (), number)  # NaN unless a game ended with this step
    if spec.tasks:
        fields["task"] = Field("T", (), count)  # of the environment, by its number in `spec.tasks`
    if spec.agents:
        fields["agent"] = Field("T", (), count)  # whose experience it is, by its number in `spec.agents`
    if spec.autoreset == "same-step":
        fields |= {f"final_obs/{name}": Field("T", a.shape, a.dtype) for name, a in spec.observation.items()}
    return fields | {name: Field("T", a.shape, a.dtype) for name, a in (extra or {}).items()}


Place = int | tuple[int, int]
"""Of one row in the arrays of the fields: t, or (slot, t) in those of a trajectory store."""


def obs_row(arrays: Mapping[str, Array], at: Place) -> ObsRow:
    """Views of the observation of a row."""
    return ObsRow(_part(arrays, "obs/", at), arrays["first"][at], arrays["valid"][at])


def lane_row(arrays: Mapping[str, Array], at: Place, after: Place) -> LaneRow:
    """Views of the actions of a row, of their consequences, and of the observation in the row `after` it."""
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
    """The row in the fields whose names begin with `prefix`, by the rest of their name."""
    return {name[len(prefix) :]: array[at] for name, array in arrays.items() if name.startswith(prefix)}
