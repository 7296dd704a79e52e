"""The table that describes a trajectory: every field of the trajectory store, and the views a rollout worker writes through."""

from __future__ import annotations

import numpy as np

from headrace.envs.contract import ArraySpec, EnvSpec, ObsRow, StepRow
from headrace.shm.trajectory_store import Field, TrajectoryStore


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
    if spec.autoreset == "same-step":
        fields |= {f"final_obs/{name}": Field("T", a.shape, a.dtype) for name, a in spec.observation.items()}
    return fields | {name: Field("T", a.shape, a.dtype) for name, a in (extra or {}).items()}


def obs_row(store: TrajectoryStore, slot: int, t: int) -> ObsRow:
    """Views of the observation of row t, 0 <= t <= T."""
    return ObsRow(store.part("obs/", slot, t), store.arrays["first"][slot, t], store.arrays["valid"][slot, t])


def step_row(store: TrajectoryStore, slot: int, t: int) -> StepRow:
    """Views of the consequences of row t's actions, 0 <= t < T."""
    a = store.arrays
    return StepRow(
        a["reward"][slot, t],
        a["terminated"][slot, t],
        a["truncated"][slot, t],
        a["episode_return"][slot, t],
        a["episode_length"][slot, t],
        store.part("final_obs/", slot, t),
        a["episode_objective"][slot, t] if "episode_objective" in a else None,
        a["task"][slot, t] if "task" in a else None,
    )
