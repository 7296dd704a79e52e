"""Worlds for the experiments with Ape-X: CartPole where stepping is slow, and a walk where reward is rare."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from headrace.config import EnvConfig
from headrace.envs.registry import register, register_vector


class Slow(VectorWrapper):
    """Every step of all environments together takes at least `seconds`: as if each had a processor of its own."""

    def __init__(self, env: VectorEnv, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step and wait."""
        time.sleep(self._seconds)
        return self.env.step(actions)


@register_vector("slow/cartpole")
def slow(options: EnvConfig, num_envs: int) -> VectorEnv:
    """`envs.kwargs`: {"seconds": 0.02}."""
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    return Slow(envs, float(options.kwargs.get("seconds", 0.02)))


class Cliff(gymnasium.Env[np.ndarray, int]):
    """The blind cliff walk of Schaul et al. 2016 (figure 1): in each of `length` places one of two actions leads on and the other
    ends the episode without reward; past the last place there is a reward of 1. Acting at random gets there once in 2^length
    episodes, so that almost all transitions tell nothing.

    Observation: the place, one-hot, float32 [length].
    """

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self._length = length
        self._right = np.random.default_rng(0).integers(0, 2, length)  # which action leads on
        self.observation_space = gymnasium.spaces.Box(0, 1, (length,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Back to the first place."""
        super().reset(seed=seed)
        self._at = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One place on, or over the cliff."""
        on = int(action) == self._right[self._at]
        there = bool(on) and self._at == self._length - 1
        self._at += bool(on) and not there
        return self._observation(), float(there), not on or there, False, {}

    def _observation(self) -> np.ndarray:
        return np.eye(self._length, dtype=np.float32)[self._at]


@register("cliff/walk")
def cliff(options: EnvConfig, *, render_mode: str | None = None) -> Cliff:
    """The cliff walk."""
    return Cliff(**options.kwargs)
