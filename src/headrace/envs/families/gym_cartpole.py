"""Gymnasium's CartPole, many at once: the dynamics of Gymnasium's own vector environment, the episodes of single environments.

Gymnasium's `CartPoleVectorEnv` draws the first states of all environments from one generator, so that an episode depends on
when the others end. Here each environment has a generator of its own, seeded and drawn from as a single environment's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding


class CartPoles(CartPoleVectorEnv):
    """Environment i is bit for bit a single environment that was reset with seed + i and is reset without a seed after every
    episode. Autoreset is NEXT_STEP."""

    state: Any  # float64 [4, N]: position, velocity, angle, angular velocity

    def __init__(self, num_envs: int, max_episode_steps: int) -> None:
        super().__init__(num_envs, max_episode_steps)
        self._generators: list[np.random.Generator] = []

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """`seed`: as for `gymnasium.vector.SyncVectorEnv`."""
        observations, info = super().reset(options=options)
        if seed is not None or not self._generators:
            if seed is None or isinstance(seed, int):
                seed = [None if seed is None else seed + i for i in range(self.num_envs)]
            self._generators = [seeding.np_random(own)[0] for own in seed]
        self._draw(np.arange(self.num_envs), observations)
        return observations, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        starting = np.flatnonzero(self.prev_done)
        stepped = super().step(action)
        self._draw(starting, stepped[0])
        return stepped

    def _draw(self, indices: np.ndarray, observations: np.ndarray) -> None:
        """First states, as `CartPoleEnv.reset` draws them, in the place of those that the base class has drawn."""
        for i in indices.tolist():
            self.state[:, i] = observations[i] = self._generators[i].uniform(self.low, self.high, 4)

    def get_state(self) -> dict[str, Any]:
        """The environments and their generators, as a tree of arrays and numbers."""
        random = [generator.bit_generator.state for generator in self._generators]
        return {"state": self.state.copy(), "steps": self.steps.copy(), "ended": self.prev_done.copy(), "random": random}

    def set_state(self, state: dict[str, Any]) -> None:
        self.reset(seed=0)
        self.state, self.steps, self.prev_done = (state[name].copy() for name in ("state", "steps", "ended"))
        for generator, random in zip(self._generators, state["random"], strict=True):
            generator.bit_generator.state = random
