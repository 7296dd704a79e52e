"""Games for `self_play.py`, to be given with --import: a matrix game with a cycle, a cooperative game, and connect four with a
network that looks at its lines and a scripted player. Each game is a ParallelEnv.

    headrace train --import benchmarks/learning/games.py --env games/rps --matches.matchmaker league
    headrace train --import benchmarks/learning/games.py --env games/connect_four --policy.encoder lines
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig, PolicyConfig
from headrace.envs.core.contract import MASK_KEY, ArraySpec, EnvSpec
from headrace.envs.core.registry import register_parallel
from headrace.policies.registry import register_network
from headrace.population import register_opponent

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


# -- connect four: the game -------------------------------------------------------------------------------------------

ROWS, COLUMNS = 6, 7
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Rows and columns from one square of a line to the next."""


class ConnectFour:
    """PettingZoo's connect_four_v3, with the same observations, without its wrappers and therefore faster. Whoever
    is not to move gets no observation.

    `opening`: every match begins after a number of random moves that is drawn from 0 to `opening`. None of them wins: the last
    one is left out if it would.
    """

    def __init__(self, opening: int = 0) -> None:
        self.possible_agents, self.agents = ["player_0", "player_1"], []
        self._opening, self._random = opening, random.Random()  # faster than NumPy's for single numbers

    def observation_space(self, agent: str) -> Any:
        """The board [6, 7]: own pieces, the other's pieces; and which columns are not full."""
        boards = spaces.Box(0, 1, (ROWS, COLUMNS, 2), np.int8)
        return spaces.Dict({"observation": boards, MASK_KEY: spaces.Box(0, 1, (COLUMNS,), np.int8)})

    def action_space(self, agent: str) -> Any:
        """A column."""
        return spaces.Discrete(COLUMNS)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """An empty board, or one after the opening."""
        self.agents, self._turn, self._heights, self._bits = list(self.possible_agents), 0, [0] * COLUMNS, [0, 0]
        self._boards = np.zeros((2, ROWS, COLUMNS, 2), np.int8)  # as each of the two sees it
        self._mask = np.ones(COLUMNS, np.int8)
        if self._opening:
            if seed is not None:
                self._random.seed(seed)
            for _ in range(self._random.randint(0, self._opening)):
                column = self._random.choice([c for c, height in enumerate(self._heights) if height < ROWS])
                if wins(self._bits[self._turn] | 1 << (7 * column + self._heights[column])):
                    break
                self._drop(column)
        return self._seen(self._turn), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """A piece falls into a column."""
        me = self._turn
        self._drop(int(actions[self.possible_agents[me]]))
        won, agents = wins(self._bits[me]), self.possible_agents
        over = won or min(self._heights) == ROWS
        seen = self._seen(0) | self._seen(1) if over else self._seen(1 - me)
        if over:
            self.agents = []
        rewards = {agents[me]: float(won), agents[1 - me]: -float(won)}
        return seen, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), {}

    def _drop(self, column: int) -> None:
        """Whose turn it is drops a piece; then it is the other's turn."""
        me, height = self._turn, self._heights[column]
        self._boards[me, ROWS - 1 - height, column, 0] = self._boards[1 - me, ROWS - 1 - height, column, 1] = 1
        self._heights[column] += 1
        self._mask[column] = height + 1 < ROWS
        self._bits[me] |= 1 << (7 * column + height)
        self._turn = 1 - me

    def _seen(self, player: int) -> dict[str, dict[str, np.ndarray]]:
        return {self.possible_agents[player]: {"observation": self._boards[player], MASK_KEY: self._mask}}

    def close(self) -> None:
        """Nothing."""


def wins(bits: int) -> bool:
    """Whether pieces are four in a line. Bit 7 c + h is column c at height h; the highest bit of a column's seven is always 0, so
    that no line goes on in the next column."""
    return any(bits & bits >> n & bits >> 2 * n & bits >> 3 * n for n in (1, 6, 7, 8))


@register_parallel("games/connect_four", agents=2)
def connect_four(options: EnvConfig, *, render_mode: str | None = None) -> ConnectFour:
    """Connect four."""
    return ConnectFour(**options.kwargs)


# -- connect four: the network ----------------------------------------------------------------------------------------


def lines_of_four() -> tuple[np.ndarray, np.ndarray]:
    """The 69 lines of four: int64 [69, 4], their squares (row x 7 + column, row 0 is the top), and int64 [69], which of
    `DIRECTIONS` each has."""
    found, directions = [], []
    for number, (down, right) in enumerate(DIRECTIONS):
        for row in range(ROWS):
            for column in range(COLUMNS):
                squares = [(row + k * down, column + k * right) for k in range(4)]
                if all(r < ROWS and 0 <= c < COLUMNS for r, c in squares):
                    found.append([r * COLUMNS + c for r, c in squares])
                    directions.append(number)
    return np.array(found), np.array(directions)


def lines_through(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every square, and of a 43rd that does not exist: int64 [43, 13] each, the lines through it, and where in the line it is.
    69 stands for no line."""
    through, places = np.full((43, 13), len(lines)), np.zeros((43, 13), np.int64)
    for square in range(42):
        line, place = np.nonzero(lines == square)
        through[square, : len(line)], places[square, : len(line)] = line, place
    return through, places


def tables() -> dict[str, np.ndarray]:
    """What the network looks up: each content of a line as a row of numbers, what each square adds to the number of a line's
    content, the lines through each square, where columns begin and their heights."""
    squares, directions = lines_of_four()
    through, places = lines_through(squares)
    code = np.zeros((ROWS * COLUMNS, len(squares)), np.float32)
    for place in range(4):
        code[squares[:, place], np.arange(len(squares))] = 4**place
    contents = np.eye(4)[np.arange(256)[:, None] // 4 ** np.arange(4) % 4].reshape(256, 16)
    inputs = np.concatenate((np.tile(contents, (4, 1)), np.repeat(np.eye(4), 256, 0)), 1).astype(np.float32)
    return {
        "inputs": inputs, "code": code, "through": through, "places": places, "offset": 256 * directions,
        "landing": np.arange(COLUMNS), "rows": np.eye(ROWS + 1, dtype=np.float32),
    }  # fmt: skip


@register_network("lines")
def lines(observation: dict[str, ArraySpec], config: PolicyConfig) -> Any:
    """For connect four. Knows which squares make up a line and where a piece would land; what a line is worth is learned.

    A square of a line is empty, has a piece of either side, or is where the next piece of its column lands: 256 contents of a
    line in each of four directions. A small network turns each of them into `WORTH` numbers for each square of the line, and into
    `BOARD` numbers for the board. They are the same wherever the line is, so there are only 1024 of them to compute for a whole
    batch, and lines look theirs up. Those of all lines through the square where a piece of a column lands, and through the square
    above, are added, and a second network, the same for all columns, turns them into `COLUMN` features of that column. With the
    sum over all lines and the board itself they go through the layers of `policy.mlp`.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from headrace.policies.activations import ACTIVATIONS
    from headrace.policies.encoders import mlp, orthogonal_

    WORTH, BOARD, COLUMN, HIDDEN = 16, 32, 16, 48

    class Lines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            activation = ACTIVATIONS[config.activation]
            self.content = nn.Sequential(orthogonal_(nn.Linear(20, HIDDEN)), activation())
            self.worth, self.board = orthogonal_(nn.Linear(HIDDEN, 4 * WORTH), 0.5), orthogonal_(nn.Linear(HIDDEN, BOARD))
            self.column = mlp(2 * WORTH + ROWS + 1, (HIDDEN, COLUMN), config.activation)
            self.layers = mlp(COLUMNS * COLUMN + BOARD + 84, config.mlp, config.activation)
            self.out_features = COLUMNS * COLUMN + config.mlp[-1]
            for name, array in tables().items():
                self.register_buffer(name, torch.from_numpy(array), persistent=False)

        def forward(self, obs: dict[str, Any]) -> Any:
            x = obs["observation"].float()
            filled, known = x.sum(-1), self.content(self.inputs)
            codes = self.contents(x, filled)
            features = self.columns(codes, filled.sum(1).long(), self.worth(known))
            board = 0.1 * F.embedding_bag(codes, self.board(known), mode="sum")
            return torch.cat((features, self.layers(torch.cat((features, board, x.flatten(1)), -1))), -1)

        def contents(self, x: Any, filled: Any) -> Any:
            """int64 [N, 69]: the contents of the lines, 0 to 1023."""
            below = torch.cat((filled[:, 1:], torch.ones_like(filled[:, :1])), 1)
            squares = x[..., 0] + 2 * x[..., 1] + 3 * (below - filled)  # 3: the lowest empty square of its column
            return (squares.flatten(1) @ self.code).long() + self.offset

        def columns(self, codes: Any, heights: Any, worth: Any) -> Any:
            """[N, 7 COLUMN]: features of the columns, from the contents of the lines."""
            rows = torch.stack((ROWS - 1 - heights, ROWS - 2 - heights), -1)  # where a piece lands, and above
            square = torch.where(rows >= 0, rows * COLUMNS + self.landing[:, None], 42).flatten()
            codes = F.pad(codes, (0, 1), value=len(self.inputs)).gather(1, self.through[square].view(len(codes), -1))
            table = F.pad(worth.view(-1, WORTH), (0, 0, 0, 1))  # no line: 0
            found = F.embedding_bag((4 * codes).view(-1, 13) + self.places[square], table, mode="sum")
            found = found.view(len(codes), COLUMNS, 2 * WORTH)
            return self.column(torch.cat((found, self.rows[heights]), -1)).flatten(1)

    return Lines()


# -- connect four: a scripted player ----------------------------------------------------------------------------------


def drop(board: np.ndarray, column: int, side: int) -> np.ndarray:
    """The board [6, 7, 2] after a piece of `side` falls into a column that is not full; row 0 is the top."""
    row = int(np.flatnonzero(~board[:, column].any(-1))[-1])
    after = board.copy()
    after[row, column, side] = 1
    return after


def has_four(pieces: np.ndarray) -> bool:
    """Whether bool [6, 7] has four in a line."""
    for board in (pieces, pieces[:, ::-1]):  # the mirrored board for the other diagonal
        for down, right in DIRECTIONS[:3]:
            rows, columns = ROWS - 3 * down, COLUMNS - 3 * right
            parts = [board[k * down : k * down + rows, k * right : k * right + columns] for k in range(4)]
            if (parts[0] & parts[1] & parts[2] & parts[3]).any():
                return True
    return False


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
