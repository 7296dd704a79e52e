"""An environment whose reward is the weight of its only part."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import headrace


class Weighed(gymnasium.Env[np.ndarray, int]):
    """Episodes of 5 steps. The reward is the weight of its only part; the objective is how often action 1 was taken."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.weight = 0.0

    def set_reward_weights(self, weights: dict[str, float]) -> None:
        self.weight = weights["part"]

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.step_number, self.ones = 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        self.ones += int(action)
        over = self.step_number == 5
        return np.zeros(2, np.float32), self.weight, over, False, {"true_objective": float(self.ones)} if over else {}


headrace.envs.register("weighed")(lambda options, render_mode=None: Weighed())
