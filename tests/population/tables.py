"""Standings, games and seats to test with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.config import MatchesConfig
from headrace.envs.contract import ActionSpec, EnvSpec
from headrace.sampling.seating import Matchmaking, Seating
from headrace.shm.standings import Standings

AGENTS = ("a", "b")


def standings(P: int = 1, V: int = 0, opponents: int = 0, W: int = 1) -> Standings:
    return Standings(W, P, V, opponents, 1200.0)


def play(table: Standings, member: int, scores: list[float]) -> None:
    """Policy 0 plays so against the member, and its learner hears of every game at once."""
    for score in scores:
        table.add_result(0, 0, member, score)
        table.remember(0, table.take_unrated(0))


class Group:
    """What a seating looks at."""

    spec = SimpleNamespace(agents=AGENTS)

    def __init__(self, outcome: tuple[float, float]) -> None:
        self._outcome = np.array(outcome)

    def outcomes(self, m: int) -> np.ndarray:
        return self._outcome


def seating(table: Standings, choose: Any, worker: int = 0) -> Seating:
    spec = EnvSpec({}, ActionSpec(()), agents=AGENTS)
    return Seating(worker, table, Matchmaking(choose, {}, MatchesConfig()), spec, seed=0)
