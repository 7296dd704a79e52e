"""An environment that sleeps instead of computing, for `cluster.py`: what it costs is time, and no processor."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from headrace.envs import register

STEP_TIME = 0.01
"""Seconds of a step."""


class Sleeping(gymnasium.Env[np.ndarray, int]):
    """Observations float32 [16] of zeros, two actions, episodes of 100 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (16,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._steps = 0
        return np.zeros(16, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_TIME)
        self._steps += 1
        return np.zeros(16, np.float32), 0.0, False, self._steps == 100, {}


@register("sleeping")
def make(options: Any, *, render_mode: str | None = None) -> Sleeping:
    return Sleeping()
