"""Groups of this process that go on from a saved state: what environments of one's own may do then."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from worlds import CountingEnv, local_group, reset_group, rows_for, step_group

from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.groups.local import LocalGroup


def played(*envs: gymnasium.Env, steps: int = 3) -> LocalGroup:
    """A group that remembers, after some steps."""
    group = local_group(list(envs))
    group.remember()
    now, after = rows_for(group.spec, len(envs))
    reset_group(group, 0, after)
    for t in range(steps):
        step_group(group, np.full((len(envs), 1), t % 5, np.int32), now, after)
    return group


def fresh(*envs: gymnasium.Env) -> LocalGroup:
    group = local_group(list(envs))
    group.remember()
    return group


class EndsAnywhere(CountingEnv):
    """Refuses a step after the end, which in the second life of a process comes earlier than in the first."""

    ends = False

    def step(self, action: int) -> tuple[Any, ...]:
        if self.ends and self.count == 1:
            raise RuntimeError("call reset() first")
        return super().step(action)


def test_what_an_environment_raises_when_its_episode_is_played_again_is_its_fault() -> None:
    state = played(CountingEnv(), EndsAnywhere()).get_state()
    other = EndsAnywhere()
    other.ends = True
    with pytest.raises(EnvironmentFault, match=r"environment 1 \(seed 1\).* could not be brought back: RuntimeError: call reset"):
        fresh(CountingEnv(), other).set_state(state)
