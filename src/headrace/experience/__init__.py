"""Experience: what the learner learns from, made of the trajectories that sampling has finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.experience.batch import Experience
    from headrace.shm.run_control import RunControl


def make_experience(
    config: Config, memory: Any, control: RunControl, reported_envs: range, collect: Callable[[int], None] | None = None
) -> Experience:
    """The experience of one policy. `memory`: its `PolicyMemory`. `reported_envs`: the environments whose episodes are reported.
    `collect(n)`: where sampling and learning take turns, steps the environments until n trajectories are finished; None: other
    processes do."""
    if memory.replay is None:
        from headrace.experience.on_policy import OnPolicyExperience

        slots, on_device = config.slots_per_batch, memory.device_observations
        return OnPolicyExperience(memory.trajectories, slots, config.device, collect, on_device, reported_envs)
    from headrace.experience.replay.experience import ReplayExperience

    return ReplayExperience(config, memory.trajectories, control, memory.replay, collect, reported_envs)
