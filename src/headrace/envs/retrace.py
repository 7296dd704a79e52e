"""Bringing an environment back to where it was, without knowing anything of its inside.

Gymnasium asks environments to take all their randomness from `np_random`. Then the state of that generator at an episode's
start and the actions since tell everything, and taking them again leads to the same state: slow, but only once in a resume.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Retrace:
    """What one environment's present episode began with, and the actions taken since."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._seed: int | None = None
        self._random: dict[str, Any] | None = None
        self._actions: list[np.ndarray] = []

    def begin(self, seed: int | None = None) -> None:
        """To be called before each reset, with its seed."""
        self._seed = seed
        self._random = None if seed is not None else dict(self._env.unwrapped.np_random.bit_generator.state)
        self._actions = []

    def note(self, action: np.ndarray) -> None:
        """One step is being made with this row [A] of actions."""
        self._actions.append(action.copy())

    def get_state(self) -> dict[str, Any]:
        """A tree of arrays and numbers."""
        actions = np.stack(self._actions) if self._actions else None
        return {"seed": self._seed, "random": self._random, "actions": actions}

    def set_state(self, state: dict[str, Any], decode: Any) -> Any:
        """Go there again; `decode` turns rows of actions into the environment's own. Returns the last observation."""
        self.begin(0 if state["seed"] is None else state["seed"])
        observation, _ = self._env.reset(seed=self._seed)
        if state["random"] is not None:
            self._env.unwrapped.np_random.bit_generator.state = state["random"]
            self.begin()
            observation, _ = self._env.reset()
        for row in () if state["actions"] is None else state["actions"]:
            self.note(row)
            observation, *_ = self._env.step(next(iter(decode(row[None]))))
        return observation
