"""A match of two agents of which the second is in the match and never given an observation.

With HEADRACE_TEST_LEFT_OUT_AFTER in the environment a policy that gets no samples is waited for so many seconds.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.registry import register_parallel
from headrace.population import past_versions

LEFT_OUT_AFTER = "HEADRACE_TEST_LEFT_OUT_AFTER"
if LEFT_OUT_AFTER in os.environ:
    past_versions.LEFT_OUT_AFTER = float(os.environ[LEFT_OUT_AFTER])


class Onlooker:
    """See the module. Matches of 5 steps."""

    def __init__(self) -> None:
        self.possible_agents, self.agents, self._t = ["player", "onlooker"], [], 0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 5, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._t = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        assert set(actions) == {"player"}
        self._t += 1
        ends = dict.fromkeys(self.possible_agents, self._t == 5)
        if self._t == 5:
            self.agents = []
        return self._seen(), {"player": 1.0}, ends, dict.fromkeys(ends, False), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {"player": np.array([self._t], np.float32)}

    def close(self) -> None:
        pass


@register_parallel("onlooker", agents=2)
def make(options: EnvConfig, *, render_mode: str | None = None) -> Onlooker:
    return Onlooker()
