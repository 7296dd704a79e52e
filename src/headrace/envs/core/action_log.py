"""Saves an environment without a `get_state` as the actions since its last reset.

Gymnasium asks environments to draw all random numbers from `np_random`. Then the state of that generator before a reset and the
actions since determine the environment's state, and repeating them restores it. That is slow, but only happens on a resume.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from headrace.envs.core.errors import faults


def own_state(env: Any) -> Any:
    """What `env.get_state()` returns, for `env.set_state`. None for an environment without these methods, or whose methods of
    this name mean something else: they take arguments, or return what no checkpoint can hold."""
    if not (hasattr(env, "get_state") and hasattr(env, "set_state")):
        return None
    from headrace.runs.state_tree import pack  # imports torch

    try:
        state = env.get_state()
        pack(state)
    except faults():
        return None
    return state


class ActionLog:
    """The start of one environment's current episode, and the actions since."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._seed: int | None = None
        self._random: dict[str, Any] | None = None  # state of the environment's `np_random` before an unseeded reset
        self._actions: list[np.ndarray] = []
        self.rewards: list[float] = []  # raw rewards of these actions; a replay writes them anew

    def start_episode(self, seed: int | None = None) -> None:
        """Call this before each `env.reset(seed=seed)`."""
        self._seed = seed
        self._random = None if seed is not None else dict(self._env.unwrapped.np_random.bit_generator.state)
        self._actions, self.rewards = [], []

    def append(self, action: np.ndarray) -> None:
        """Call this for each step with its row [A] of actions."""
        self._actions.append(action.copy())

    def get_state(self) -> dict[str, Any]:
        """The log as a tree of arrays and numbers."""
        actions = np.stack(self._actions) if self._actions else None
        return {"seed": self._seed, "random": self._random, "actions": actions, "rewards": np.array(self.rewards, np.float64)}

    def set_state(self, state: dict[str, Any], decode: Callable[[np.ndarray], list[Any]]) -> Any:
        """Repeat the episode of `get_state`; `decode` turns rows of actions into the environment's own. Returns the last
        observation."""
        self.start_episode(0 if state["seed"] is None else state["seed"])
        observation, _ = self._env.reset(seed=self._seed)
        if state["random"] is not None:
            self._env.unwrapped.np_random.bit_generator.state = state["random"]
            self.start_episode()
            observation, _ = self._env.reset()
        for row in () if state["actions"] is None else state["actions"]:
            self.append(row)
            observation, reward, *_ = self._env.step(decode(row[None])[0])
            self.rewards.append(float(reward))
        return observation
