"""Standings, games and matches to test with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.config import MatchesConfig
from headrace.envs.core.contract import ActionSpec, EnvSpec
from headrace.population.matches import WorkerMatches
from headrace.shm.population import Standings

AGENTS = ("a", "b")


def standings(P: int = 1, V: int = 0, opponents: int = 0, W: int = 1) -> Standings:
    return Standings(W, P, V, opponents, 1200.0)


def play(table: Standings, member: int, scores: list[float]) -> None:
    """Policy 0 plays so against the member, and its learner hears of every game at once."""
    for score in scores:
        table.add_result(0, 0, member, score)
        table.remember(0, table.take_unrated(0))


def ended(outcome: tuple[float, ...]) -> Callable[[], np.ndarray]:
    """The outcomes of a match, as its environment gives them."""
    return lambda: np.array(outcome)


def matches(table: Standings, choose: Any, spec: EnvSpec | None = None) -> WorkerMatches:
    spec = spec or EnvSpec({}, ActionSpec(()), agents=AGENTS)
    return WorkerMatches(0, table, choose, {}, MatchesConfig(), spec, seed=0)
