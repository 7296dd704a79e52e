"""Small games for `self_play.py`, to be given with --import: a matrix game with a cycle, and a cooperative game. Each is a
ParallelEnv of a few lines.

    headrace train --import benchmarks/learning/games.py --env games/rps --matches.matchmaker league
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.registry import register_parallel

# -- matrix games -----------------------------------------------------------------------------------------------------

RPS = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
"""Rock, paper, scissors, where rock against scissors counts twice: the first player's pay-off. The optimum is unique: 1/4 rock,
1/2 paper, 1/4 scissors."""
OPTIMUM = np.array([0.25, 0.5, 0.25])


def exploitability(strategy: np.ndarray) -> float:
    """What the best answer wins on average against a mixed strategy [3]; 0 only for the optimum."""
    return float((RPS @ strategy).max())


class MatrixGame:
    """Two players choose at once, and that is the match. There is nothing to see but a 1."""

    def __init__(self, payoff: np.ndarray) -> None:
        self._payoff, self.possible_agents, self.agents = payoff, ["one", "other"], []

    def observation_space(self, agent: str) -> Any:
        """One number that is always 1."""
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        """A row or a column."""
        return spaces.Discrete(len(self._payoff))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        self.agents = list(self.possible_agents)
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """Choose."""
        value = float(self._payoff[actions["one"], actions["other"]])
        self.agents = []
        return self._seen(), {"one": value, "other": -value}, dict.fromkeys(actions, True), dict.fromkeys(actions, False), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {agent: np.ones(1, np.float32) for agent in self.possible_agents}

    def close(self) -> None:
        """Nothing."""


SMALL = {
    "policy.mlp": [8], "policy.activation": "tanh", "sampling.num_workers": 1, "sampling.envs_per_worker": 64,
    "sampling.rollout": 8, "learning.batch_size": 1024, "learning.algorithm": "ppo", "learning.num_threads": 1,
    "learning.learning_rate": 1e-2, "learning.entropy_coef": 0.0, "learning.gamma": 0.9, "learning.num_epochs": 2,
    "learning.num_minibatches": 1, "learning.total_steps": 200_000,
}  # fmt: skip


@register_parallel("games/rps", agents=2, defaults=SMALL)
def rps(options: EnvConfig, *, render_mode: str | None = None) -> MatrixGame:
    """Weighted rock, paper, scissors."""
    return MatrixGame(RPS)


# -- cooperation ------------------------------------------------------------------------------------------------------


class Meeting:
    """Three agents on a ring of nine places must meet at the same place; all are paid 1 when they do, and the match ends. Each
    sees where all are, seen from itself. 20 steps at most; a random team meets in about a seventh of the matches."""

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["a", "b", "c"], []
        self._generator = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        """Where the others are, seen from the agent: one of nine places each."""
        return spaces.MultiDiscrete([9, 9])

    def action_space(self, agent: str) -> Any:
        """Left, stay, right."""
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Everybody somewhere."""
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        self._at = self._generator.integers(9, size=3)
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """Move."""
        self._at = (self._at + [int(actions[agent]) - 1 for agent in self.possible_agents]) % 9
        self._steps += 1
        met, late = len(set(self._at.tolist())) == 1, self._steps == 20
        agents = self.possible_agents
        if met or late:
            self.agents = []
        rewards = dict.fromkeys(agents, float(met))
        return self._seen(), rewards, dict.fromkeys(agents, met), dict.fromkeys(agents, late and not met), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {
            agent: np.delete((self._at - self._at[i]) % 9, i).astype(np.int64) for i, agent in enumerate(self.possible_agents)
        }

    def close(self) -> None:
        """Nothing."""


@register_parallel(
    "games/meeting", agents=3,
    defaults={**SMALL, "policy.mlp": [64], "learning.learning_rate": 2e-3, "learning.entropy_coef": 0.01},
)  # fmt: skip
def meeting(options: EnvConfig, *, render_mode: str | None = None) -> Meeting:
    """The cooperative game."""
    return Meeting()
