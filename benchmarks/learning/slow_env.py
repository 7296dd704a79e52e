"""CartPole in a world that is slow: where environments are the bottleneck, more of them should learn faster."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from headrace.config import EnvConfig
from headrace.envs.registry import register


class Slow(gymnasium.Wrapper):
    """Every step takes at least `seconds`."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step and wait."""
        time.sleep(self._seconds)
        return self.env.step(action)


@register("slow/cartpole")
def make(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """`envs.kwargs`: {"seconds": 0.004}."""
    return Slow(gymnasium.make("CartPole-v1", render_mode=render_mode), float(options.kwargs.get("seconds", 0.004)))
