"""A task that only a policy with memory can solve: remember a cue through a corridor.

At the first step the observation shows one of four cues. Then come `corridor` steps of noise. At the last step, marked, the
action must name the cue: +1 if it does, else -1. Without memory the best mean return is -0.5 (one guess in four is right).

    headrace train --import benchmarks/learning/memory_env.py --env memory/corridor --policy.core gru
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.config import EnvConfig
from headrace.envs.registry import register

CUES = 4


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Observation float32 [CUES + 2]: the cue one-hot (only at the first step), "decide now", noise."""

    observation_space = gymnasium.spaces.Box(-1, 1, (CUES + 2,), np.float32)
    action_space = gymnasium.spaces.Discrete(CUES)

    def __init__(self, corridor: int = 12) -> None:
        self._corridor = corridor

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new cue."""
        super().reset(seed=seed)
        self._cue, self._at = int(self.np_random.integers(CUES)), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step along the corridor; the last one decides."""
        deciding = self._at == self._corridor
        reward = (1.0 if int(action) == self._cue else -1.0) if deciding else 0.0
        self._at += 1
        return self._observation(), reward, deciding, False, {}

    def _observation(self) -> np.ndarray:
        row = np.zeros(CUES + 2, np.float32)
        if self._at == 0:
            row[self._cue] = 1
        row[CUES] = self._at == self._corridor
        row[CUES + 1] = self.np_random.uniform(-1, 1)
        return row


DEFAULTS = {
    "policy.core": "gru",
    "policy.core_size": 64,
    "policy.mlp": (64,),
    "sampling.num_workers": 1,
    "sampling.envs_per_worker": 32,
    "sampling.rollout": 32,
    "learning.batch_size": 1024,
    "learning.num_epochs": 2,
    "learning.num_minibatches": 2,
    "learning.learning_rate": 1e-3,
    "learning.entropy_coef": 0.01,
    "learning.max_grad_norm": 0.5,
    "learning.num_threads": 1,
}


@register("memory/corridor", defaults=DEFAULTS)
def corridor(options: EnvConfig, *, render_mode: str | None = None) -> Corridor:
    """The corridor."""
    return Corridor(**options.kwargs)
