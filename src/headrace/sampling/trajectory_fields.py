"""The fields of a trajectory. `headrace.envs.core.contract` makes views of their rows for environments."""

from __future__ import annotations

import numpy as np

from headrace.arrays import ArraySpec
from headrace.envs.core.contract import STEP_ARRAYS, EnvSpec
from headrace.shm.trajectory_store import TrajectoryField


def trajectory_fields(
    spec: EnvSpec, core_width: int, extra: dict[str, ArraySpec] | None = None, behind: bool = False
) -> dict[str, TrajectoryField]:
    """The fields by name. `core_width`: S, the width of the policy's recurrent state. `extra`: the algorithm's own outputs of
    the policy per step, such as Q-values. `behind`: whether actors may have older weights than the newest, and say so."""
    flag, number, count = np.dtype(bool), np.dtype(np.float32), np.dtype(np.int32)
    fields = {f"obs/{name}": TrajectoryField(a.shape, a.dtype, rows="T+1") for name, a in spec.observation.items()}
    fields |= {
        "first": TrajectoryField((), flag, rows="T+1"),  # the observation is the first of an episode: zero the core before it
        # False: the observation is the last of an episode, no transition starts here
        "valid": TrajectoryField((), flag, rows="T+1"),
        "action": TrajectoryField((spec.action.width,), spec.action.dtype),
        "log_prob": TrajectoryField((), number),  # of the behaviour policy
        "value": TrajectoryField((), number),  # of the behaviour policy
        "version": TrajectoryField((), count),  # of the weights that chose the action
        **{name: TrajectoryField((), np.dtype(kind)) for name, kind in STEP_ARRAYS.items()},
        "core": TrajectoryField((core_width,), number, rows="once"),  # before row 0, not yet zeroed by `first`
    }
    if behind:
        fields["behind"] = TrajectoryField((), count)  # versions between the weights that chose the action and the newest then
    if spec.info_metrics:
        fields["episode_info"] = TrajectoryField((len(spec.info_metrics),), number)  # where an episode ended with this step
    if spec.tasks:
        fields["task"] = TrajectoryField((), count)  # of the environment, by its number in `spec.tasks`
    if spec.agents:
        fields["agent"] = TrajectoryField((), count)  # the agent whose experience it is, by its number in `spec.agents`
    if spec.autoreset == "same-step":
        fields |= {f"final_obs/{name}": TrajectoryField(a.shape, a.dtype) for name, a in spec.observation.items()}
    return fields | {name: TrajectoryField(a.shape, a.dtype) for name, a in (extra or {}).items()}
