"""Small tasks for one policy: what is right in one is wrong in the other, and the observation tells them apart."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

import headrace

STEPS = 8


class Cue(gymnasium.Env):
    """Episodes of 8 steps; a step pays 1 for the action `right` of `actions`. The observation names the right one."""

    def __init__(self, right: int, actions: int = 2, pause: float = 0.0) -> None:
        self.right, self.pause, self.count = right, pause, 0
        self.observation_space = gymnasium.spaces.Box(0, 1, (actions,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause)
        self.count += 1
        return self._observation(), float(action == self.right), False, self.count == STEPS, {}

    def _observation(self) -> np.ndarray:
        return np.eye(self.action_space.n, dtype=np.float32)[self.right]


@headrace.envs.register("cue/left", defaults={"learning.gamma": 0.5, "learning.learning_rate": 0.01, "envs.reward_scale": 2.0})
def left(options: Any, *, render_mode: str | None = None) -> gymnasium.Env:
    return Cue(0, **options.kwargs)


@headrace.envs.register("cue/right", defaults={"learning.gamma": 0.5, "learning.learning_rate": 0.02})
def right(options: Any, *, render_mode: str | None = None) -> gymnasium.Env:
    return Cue(1, **options.kwargs)


@headrace.envs.register("cue/slow")
def slow(options: Any, *, render_mode: str | None = None) -> gymnasium.Env:
    return Cue(1, pause=0.1)


@headrace.envs.register("cue/three")
def three(options: Any, *, render_mode: str | None = None) -> gymnasium.Env:
    return Cue(2, actions=3)
