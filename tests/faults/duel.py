"""A game of two for runs whose parts are killed: both choose a number, twice; who chose more in all wins. The end of every
match is written down: a byte in the file `ledger`."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.registry import register_parallel


class Duel:
    """See the module."""

    def __init__(self, ledger: str, step_seconds: float = 0.001) -> None:
        self.possible_agents, self.agents = ["one", "other"], []
        self._ledger, self._step_seconds = os.open(ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY), step_seconds

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 2, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._sums, self._t = list(self.possible_agents), [0, 0], 0
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        time.sleep(self._step_seconds)
        self._t += 1
        self._sums = [s + int(actions[a]) for s, a in zip(self._sums, self.possible_agents, strict=True)]
        over = self._t == 2
        if over:
            self.agents = []
            os.write(self._ledger, b".")
        sign = float(np.sign(self._sums[0] - self._sums[1])) if over else 0.0
        return self._seen(), {"one": sign, "other": -sign}, dict.fromkeys(actions, over), dict.fromkeys(actions, False), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {a: np.array([self._t, i], np.float32) for i, a in enumerate(self.possible_agents)}

    def close(self) -> None:
        os.close(self._ledger)


@register_parallel("duel", agents=2)
def make(options: EnvConfig, *, render_mode: str | None = None) -> Duel:
    """The game."""
    return Duel(**options.kwargs)
