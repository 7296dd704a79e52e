"""MinAtar (Young and Tian 2019, arXiv 1903.03176): five games on 10x10 boards, as `minatar/<game>`. Needs the package `minatar`.

    pip install minatar
    headrace train --import benchmarks/learning/minatar_env.py --env minatar/breakout --learning.algorithm apex-dqn

The games' own defaults: sticky actions 0.1, difficulty ramping. Episodes are cut off after 5,000 steps, where a good player would
go on for ever.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from headrace.config import EnvConfig, PolicyConfig
from headrace.envs.contract import ArraySpec
from headrace.envs.registry import register
from headrace.policies.registry import register_network

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
MAX_STEPS = 5_000


class MinAtar(gymnasium.Env[np.ndarray, int]):
    """Observation uint8 [C, 10, 10], 255 where the channel's kind of object is; the game's minimal actions."""

    def __init__(self, game: str) -> None:
        logging.disable(logging.WARNING)  # it misses its drawing library, which is not needed
        from minatar import Environment

        logging.disable(logging.NOTSET)
        self._game = Environment(game)
        self._actions = self._game.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        height, width, channels = self._game.state_shape()
        self.observation_space = gymnasium.spaces.Box(0, 255, (channels, height, width), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new game."""
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of the game."""
        reward, over = self._game.act(self._actions[int(action)])
        self._steps += 1
        return self._observation(), float(reward), bool(over), self._steps >= MAX_STEPS and not over, {}

    def _observation(self) -> np.ndarray:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1), dtype=np.uint8) * np.uint8(255)


@register_network("minatar")
def network(observation: dict[str, ArraySpec], config: PolicyConfig) -> Any:
    """The paper's convolution, 16@3s1; the head's streams are its linear layer."""
    from headrace.policies.encoders import Convolutions, MultiEncoder

    return MultiEncoder({name: Convolutions(spec.shape, ((16, 3, 1),), "relu") for name, spec in observation.items()})


def make(options: EnvConfig, *, render_mode: str | None = None, game: str) -> MinAtar:
    """One game."""
    return MinAtar(game)


for name in GAMES:
    register(f"minatar/{name}", defaults={
        "policy.encoder": "minatar", "policy.hidden": 128, "sampling.num_workers": 1, "learning.num_threads": 1,
    })(partial(make, game=name))  # fmt: skip
