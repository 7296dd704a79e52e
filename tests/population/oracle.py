"""Population-based training by its texts, slowly: what becomes of each policy, as probabilities and sets instead of draws."""

from __future__ import annotations

from fractions import Fraction
from typing import Any


def ranking(objectives: list[float]) -> list[int]:
    """The policies from the best to the worst, found by comparing every pair; of equals the one with the smaller number first."""
    places: dict[int, int] = {}
    for p, mine in enumerate(objectives):
        better = [q for q, other in enumerate(objectives) if other > mine or (other == mine and q < p)]
        places[len(better)] = p
    return [places[place] for place in range(len(objectives))]


def up(part: str, whole: int) -> int:
    """A part of the population in policies, rounded up."""
    exact = Fraction(part) * whole
    return -(-exact.numerator // exact.denominator)


def paper(objectives: list[float], gap: float = 0.0) -> list[tuple[set[int], bool]]:
    """For each policy: from whom it may copy (nobody: it keeps its weights), and whether it is mutated.

    The bottom 70 % of the policies are mutated, each hyperparameter with a chance of 15 %; the worst 30 % are replaced by one of
    the best 30 %; in duels only if the difference of the win rates is above a threshold.
    """
    order, N = ranking(objectives), len(objectives)
    best, worst = order[: up("3/10", N)], order[N - up("3/10", N) :]
    spared = [q for q in order if order.index(q) < up("3/10", N)]  # the top 30 %: the bottom 70 % are the others
    result = []
    for p in range(N):
        donors: set[int] = set()
        if p in worst and p not in best:
            donors = {q for q in best if objectives[q] - objectives[p] > gap}
        result.append((donors, p not in spared))
    return result


def published_code(objectives: list[float]) -> list[tuple[set[int], bool]]:
    """The same for version 2: all but the best are mutated, policy 0 never is; a copy is made where the objectives differ by more
    than 1e-6, and by more than a tenth of the better one's."""
    result = []
    for p, (donors, mutated) in enumerate(paper(objectives, gap=1e-6)):
        far = {q for q in donors if not objectives[q] or abs(objectives[q] - objectives[p]) / abs(objectives[q]) > 0.1}
        result.append((far, mutated and p != 0))
    return result


def possible(value: Any, kind: str, low: float, high: float) -> tuple[tuple[float, float], ...]:
    """The ranges in which a mutated number may lie."""
    if kind == "scale":
        return (value / high, value / low), (value * low, value * high)
    far = 1 - value
    return (1 - far * high, 1 - far * low), (1 - far / low, 1 - far / high)


def win_rate(batches: list[list[float]]) -> float | None:
    """Of the last 100 games: score of each, those of one list came together and are all taken or none. None before the first."""
    taken: list[float] = []
    for batch in reversed(batches):
        if len(taken) >= 100:
            break
        taken += batch
    return sum(taken) / len(taken) if taken else None
