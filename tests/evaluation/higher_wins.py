"""A game for tests of matches: both choose a number from 0 to 2, twice; who chose more in all wins."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.registry import register_parallel
from headrace.population import register_opponent


class HigherWins:
    """See the module. The first agent is paid twice as much, so that returns of the two differ."""

    metadata = {"render_fps": 5}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["one", "other"], []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 2, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._sums = list(self.possible_agents), [0, 0]
        self._t = 0
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self._t += 1
        self._sums = [s + int(actions[a]) for s, a in zip(self._sums, self.possible_agents, strict=True)]
        over = self._t == 2
        if over:
            self.agents = []
        sign = float(np.sign(self._sums[0] - self._sums[1])) if over else 0.0
        ends = dict.fromkeys(actions, over)
        infos = {"one": {"outcome": sign}, "other": {"outcome": -sign}} if over else {}
        return self._seen(), {"one": 2 * sign, "other": -sign}, ends, dict.fromkeys(actions, False), infos

    def _seen(self) -> dict[str, np.ndarray]:
        return {a: np.array([self._t, i], np.float32) for i, a in enumerate(self.possible_agents)}

    def render(self) -> np.ndarray:
        return np.full((32, 32, 3), 100 * self._t, np.uint8)

    def close(self) -> None:
        pass


@register_parallel(
    "higher-wins", agents=2, defaults={"sampling.rollout": 4, "learning.batch_size": 128, "sampling.num_workers": 1}
)
def make(options: EnvConfig, *, render_mode: str | None = None) -> HigherWins:
    return HigherWins()


@register_opponent("two")
def two(spec: Any) -> Any:
    """Always the highest."""
    return lambda observation, generator: 2


@register_opponent("one-or-two")
def one_or_two(spec: Any) -> Any:
    """The lowest as the first agent, the highest as the second."""
    return lambda observation, generator: 2 * int(observation["obs"][1])


@register_parallel("alone", agents=1)
def alone(options: EnvConfig, *, render_mode: str | None = None) -> HigherWins:
    """One agent, which plays against nobody."""
    game = HigherWins()
    game.possible_agents = ["one"]
    return game


class AtTimes(HigherWins):
    """Every other match is lost, which pays 100."""

    matches = 0

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.matches += 1
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        *rest, infos = super().step(actions)
        if self.matches % 2 == 0 and infos:
            rest[1] = dict.fromkeys(rest[1], 100.0)
            infos = {agent: {"outcome": np.nan} for agent in infos}
        return *rest, infos


@register_parallel("higher-wins-at-times", agents=2)
def at_times(options: EnvConfig, *, render_mode: str | None = None) -> AtTimes:
    return AtTimes()


class OneLosesAll(AtTimes):
    """Every match of the second environment that is made is lost; those of the others every other time."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self._loses = OneLosesAll.made % 2 == 1
        OneLosesAll.made += 1

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        *rest, infos = super().step(actions)
        return *rest, {agent: {"outcome": np.nan} for agent in infos} if self._loses else infos


@register_parallel("higher-wins-lost", agents=2)
def lost(options: EnvConfig, *, render_mode: str | None = None) -> OneLosesAll:
    return OneLosesAll()


class Shorter(HigherWins):
    """Matches of the environment that is made first have nine steps, those of each further one a step less."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self._steps = 9 - Shorter.made % 8
        Shorter.made += 1

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self._t += 1
        over = self._t == self._steps
        if over:
            self.agents = []
        ends = dict.fromkeys(actions, over)
        return self._seen(), dict.fromkeys(actions, 1.0), ends, dict.fromkeys(actions, False), {}


@register_parallel("shorter-and-shorter", agents=2)
def shorter(options: EnvConfig, *, render_mode: str | None = None) -> Shorter:
    return Shorter()
