"""How well a policy does in its matches: Elo ratings, and the win rate of its last games."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from headrace.shm.population import Standings

K = 2.0
"""One game moves a rating by this number times the difference of result and expectation. Small, since there are many games."""
MOST_GAMES = 200
"""Games of one pair that move a rating at once; more say nothing new, since a rating has settled by then."""
WINDOW = 100  # least number of games in a win rate: as many as there are episodes in a mean return


def expected_score(rating: float, other: float) -> float:
    """What a player with this rating scores against `other` on average (Elo 1978): 1 / (1 + 10^((other - rating) / 400))."""
    return 1.0 / (1.0 + 10.0 ** ((other - rating) / 400.0))


def rate(rating: float, games: list[tuple[float, float, float]]) -> float:
    """The rating after these games: (the opponent's rating, the score, the number of games) of each opponent. Games against
    different opponents take turns, as if they had been played one after the other."""
    for turn in range(MOST_GAMES):
        for other, score, n in games:
            if turn < n:
                rating += K * (score / n - expected_score(rating, other))
    return rating


class RecentGames:
    """The last games of policy p against other members, at least `WINDOW` if it has played that many. Games that ended between
    two calls of `update` are added together, and dropped together."""

    def __init__(self, standings: Standings, p: int) -> None:
        self._standings, self._p = standings, p
        self._seen = self._all()
        self._games: deque[tuple[float, float]] = deque()  # score and number of the games of each `update`, the oldest first

    def _all(self) -> np.ndarray:
        """float64 [2]: score and number of all games since the run has begun or gone on. A game against oneself is none."""
        return self._standings.counts[:, self._p].sum((0, 1))  # type: ignore[no-any-return]

    def update(self) -> None:
        """Take what has ended since the last call."""
        score, n = (self._all() - self._seen).tolist()
        if n < 1:
            return
        self._seen += score, n
        self._games.append((score, n))
        while sum(n for _, n in self._games) - self._games[0][1] >= WINDOW:
            self._games.popleft()

    @property
    def win_rate(self) -> float:
        """Share of these games that it won, a draw being half a win; NaN before the first."""
        score, n = np.sum(self._games, 0) if self._games else (0.0, 0.0)
        return float(score / n) if n else math.nan

    def clear(self) -> None:
        """Forget all games: the policy has become a copy of another one."""
        self._games.clear()
        self._seen = self._all()

    def get_state(self) -> dict[str, Any]:
        return {"games": [list(some) for some in self._games], "unseen": (self._all() - self._seen).tolist()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._games = deque((score, n) for score, n in state["games"])
        self._seen = self._all() - state["unseen"]
