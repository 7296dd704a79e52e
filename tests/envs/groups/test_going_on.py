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


class Own(CountingEnv):
    """Its methods `get_state` and `set_state` are about something else."""

    way = "argument"

    def get_state(self, *scale: float) -> Any:
        if self.way == "argument":
            raise TypeError("get_state() missing 1 required positional argument: 'scale'")
        return {"nothing that a file holds": object()}

    def set_state(self, t: int) -> None:
        raise AssertionError("called with a state")


@pytest.mark.parametrize("way", ["argument", "object"])
def test_other_methods_of_these_names_are_not_used(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "way", way)
    env, other = Own(), Own()
    fresh(Own(), other).set_state(played(Own(), env).get_state())
    assert other.count > 0
    np.testing.assert_array_equal(other.observation()[2:], env.observation()[2:])


class Saved(CountingEnv):
    """Gives its state, but has none before its first reset."""

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.began = True
        return super().reset(**kwargs)

    def get_state(self) -> dict[str, Any]:
        assert self.began
        return {"counts": [self.seed, self.episode, self.count, self.last]}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seed, self.episode, self.count, self.last = state["counts"]
        self.began = True


def test_an_environment_gives_its_own_state_if_it_can() -> None:
    env, other = Saved(), Saved()
    state = played(env).get_state()
    assert state["envs"] == [env.get_state()]
    group = fresh(other)
    group.set_state(state)
    assert other.get_state() == env.get_state()
    assert group.get_state() == state


class Fading(gymnasium.Wrapper):
    """Rewards that shrink from episode to episode."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, ...]:
        self.steps += 1
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) / (1 + self.steps), *rest


def test_a_state_that_lasts_over_episodes_and_shows_in_the_rewards_is_noticed() -> None:
    group = played(Fading(CountingEnv()), steps=5)
    assert group.envs[0].unwrapped.episode == 1  # type: ignore[attr-defined]
    state = group.get_state()
    with pytest.raises(EnvironmentFault, match=r"did not lead back to the same observations and rewards; .*lasts over episodes"):
        fresh(Fading(CountingEnv())).set_state(state)
    del state["envs"][0]["rewards"]  # as in a checkpoint of an older version
    fresh(Fading(CountingEnv())).set_state(state)
