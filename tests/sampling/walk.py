"""A small stochastic world with a state that can be saved: a walk on a line, +1 for each step to the right end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.config import EnvConfig
from headrace.envs.core.registry import register

LENGTH = 6


class Walk(gymnasium.Env[np.ndarray, int]):
    """One-hot position; actions left and right; a fifth of the moves go astray; ends at the right end or after 30 steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (LENGTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._steps = int(self.np_random.integers(LENGTH - 1)), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        right = bool(action) != (self.np_random.random() < 0.2)
        self._at = min(max(self._at + (1 if right else -1), 0), LENGTH - 1)
        self._steps += 1
        there = self._at == LENGTH - 1
        return self._observation(), 1.0 if there else -0.02, there, self._steps >= 30 and not there, {}

    def get_state(self) -> dict[str, Any]:
        return {"at": self._at, "steps": self._steps, "random": self.np_random.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        super().reset(seed=0)
        self._at, self._steps = state["at"], state["steps"]
        self.np_random.bit_generator.state = state["random"]

    def _observation(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[self._at]


@register("walk")
def make(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[np.ndarray, int]:
    """The walk."""
    return Walk()


class Astray(gymnasium.ObservationWrapper):
    """The walk seen through noise from nowhere; it cannot give its state."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation * np.float32(np.random.default_rng().random())


@register("walk/astray")
def make_astray(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[np.ndarray, int]:
    """The walk through noise."""
    return Astray(Walk())
