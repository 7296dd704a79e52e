"""Small games for `self_play.py`, to be given with --import: a scripted connect-four player, matrix games with cycles, and a
cooperative one. Each is a ParallelEnv of a few lines, or a function.

    headrace train --import benchmarks/learning/games.py --env games/rps --matches.matchmaker league
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig, PolicyConfig
from headrace.envs.contract import MASK_KEY, ArraySpec, EnvSpec
from headrace.envs.registry import register_parallel
from headrace.policies.registry import register_network
from headrace.population.matchmaking import register_opponent

# -- connect four -----------------------------------------------------------------------------------------------------


def drop(board: np.ndarray, column: int, side: int) -> np.ndarray:
    """The board [6, 7, 2] after a piece of `side` falls into a column that is not full; row 0 is the top."""
    row = int(np.flatnonzero(~board[:, column].any(-1))[-1])
    after = board.copy()
    after[row, column, side] = 1
    return after


def has_four(pieces: np.ndarray) -> bool:
    """Whether bool [6, 7] has four in a line."""
    for board in (pieces, pieces[:, ::-1]):  # the mirrored board for the other diagonal
        for down, right in ((0, 1), (1, 0), (1, 1)):
            rows, columns = 6 - 3 * down, 7 - 3 * right
            parts = [board[k * down : k * down + rows, k * right : k * right + columns] for k in range(4)]
            if (parts[0] & parts[1] & parts[2] & parts[3]).any():
                return True
    return False


class ConnectFour:
    """PettingZoo's connect_four_v3, with the same observations, without its wrappers and therefore faster. Whoever
    is not to move gets no observation."""

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["player_0", "player_1"], []

    def observation_space(self, agent: str) -> Any:
        """The board [6, 7]: own pieces, the other's pieces; and which columns are not full."""
        boards = spaces.Box(0, 1, (6, 7, 2), np.int8)
        return spaces.Dict({"observation": boards, MASK_KEY: spaces.Box(0, 1, (7,), np.int8)})

    def action_space(self, agent: str) -> Any:
        """A column."""
        return spaces.Discrete(7)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """An empty board."""
        self.agents, self._turn, self._heights, self._bits = list(self.possible_agents), 0, [0] * 7, [0, 0]
        self._boards = np.zeros((2, 6, 7, 2), np.int8)  # as each of the two sees it
        return self._seen(0), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """A piece falls into a column."""
        me, column = self._turn, int(actions[self.possible_agents[self._turn]])
        height = self._heights[column]
        self._boards[me, 5 - height, column, 0] = self._boards[1 - me, 5 - height, column, 1] = 1
        self._heights[column] += 1
        self._bits[me] |= 1 << (7 * column + height)
        bits = self._bits[me]  # a column has 7 bits, the highest always 0, so no line goes on in the next column
        won = any(bits & bits >> n & bits >> 2 * n & bits >> 3 * n for n in (1, 6, 7, 8))
        over, agents = won or min(self._heights) == 6, self.possible_agents
        self._turn = 1 - me
        seen = self._seen(0) | self._seen(1) if over else self._seen(1 - me)
        if over:
            self.agents = []
        rewards = {agents[me]: float(won), agents[1 - me]: -float(won)}
        return seen, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), {}

    def _seen(self, player: int) -> dict[str, dict[str, np.ndarray]]:
        mask = np.array([height < 6 for height in self._heights], np.int8)
        return {self.possible_agents[player]: {"observation": self._boards[player], MASK_KEY: mask}}

    def close(self) -> None:
        """Nothing."""


@register_parallel("games/connect_four", agents=2)
def connect_four(options: EnvConfig, *, render_mode: str | None = None) -> ConnectFour:
    """Connect four."""
    return ConnectFour()


@register_network("board")
def board(observation: dict[str, ArraySpec], config: PolicyConfig) -> Any:
    """For connect four: 64 filters of 4x4, in which every line of four fits, and the layers of `policy.mlp`."""
    import torch
    from torch import nn

    from headrace.policies.activations import ACTIVATIONS
    from headrace.policies.encoders import mlp, orthogonal_

    class Board(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = orthogonal_(nn.Conv2d(2, 64, 4))
            self.activation = ACTIVATIONS[config.activation]()
            self.layers = mlp(64 * 3 * 4 + 84, config.mlp, config.activation)
            self.out_features = config.mlp[-1]

        def forward(self, obs: dict[str, Any]) -> Any:
            x = obs["observation"]
            lines = self.activation(self.lines(x.permute(0, 3, 1, 2).contiguous()))
            return self.layers(torch.cat((lines.flatten(1), x.flatten(1)), -1))

    return Board()


@register_opponent("one-move")
def one_move(spec: EnvSpec) -> Callable[[dict[str, np.ndarray], np.random.Generator], int]:
    """Connect four: wins where one move wins, else stops the other from winning with the next move, else moves at random."""

    def act(observation: dict[str, np.ndarray], generator: np.random.Generator) -> int:
        board, legal = observation["observation"] > 0, np.flatnonzero(observation[MASK_KEY])
        for side in (0, 1):  # mine, the other's
            for column in legal:
                if has_four(drop(board, column, side)[..., side]):
                    return int(column)
        return int(generator.choice(legal))

    return act


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
