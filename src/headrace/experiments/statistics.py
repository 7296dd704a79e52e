"""Statistics of a few runs on a few tasks: Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice" (rliable).

Scores are one array per task, float64 [..., n] with one score per run; tasks may have different numbers of runs. Statistics work
on the last axis, so that `interval` can give them all resamples at once. Intervals are of the stratified percentile bootstrap:
the runs of each task are resampled by themselves (section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Statistic = Callable[..., np.ndarray]  # from the scores of every task to [...]
RESAMPLES = 2000
SEED = 0  # of the resampling: the same scores give the same interval


def iqm(*tasks: np.ndarray) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of the scores of all tasks together (section 4.2)."""
    from scipy.stats import trim_mean

    return trim_mean(np.concatenate(tasks, axis=-1), 0.25, axis=-1)


def median(*tasks: np.ndarray) -> np.ndarray:
    """Median over the tasks of their mean scores."""
    return np.median([scores.mean(-1) for scores in tasks], axis=0)


def mean(*tasks: np.ndarray) -> np.ndarray:
    """Mean over the tasks of their mean scores."""
    return np.mean([scores.mean(-1) for scores in tasks], axis=0)


def optimality_gap(*tasks: np.ndarray) -> np.ndarray:
    """By how much the scores, each at most 1, stay below 1 on average. 0: every run has reached 1."""
    return 1.0 - np.minimum(np.concatenate(tasks, axis=-1), 1.0).mean(-1)


ATARI_5 = {
    "atari/battle_zone": 0.381975, "atari/double_dunk": 0.067910, "atari/name_this_game": 0.310804, "atari/phoenix": 0.124126,
    "atari/qbert": 0.080485,
}  # fmt: skip
"""Weights of the games' scores in `atari_5`, in order of their names: the authors' released code (`AtariScoreNormalizer`)."""


def atari_5(*tasks: np.ndarray) -> np.ndarray:
    """The median over 57 Atari games, estimated from human-normalised scores of five: Aitchison et al. 2022, "Atari-5", a linear
    regression on log10(1 + percent), without an intercept. The authors' cross-validated error is 10.4 % of the estimate."""
    percent = np.maximum(100 * np.stack([scores.mean(-1) for scores in tasks], axis=-1), 0)
    return (10 ** (np.log10(1 + percent) @ np.array(list(ATARI_5.values()))) - 1) / 100


AGGREGATES: dict[str, Statistic] = {"IQM": iqm, "median": median, "mean": mean, "optimality gap": optimality_gap}


def probability_of_improvement(*both: np.ndarray) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 for a run of X and one of Y on the same task, the mean over the tasks (section 4.3; the statistic
    of Mann and Whitney). `both`: the scores of X on every task, then those of Y in the same order."""
    half = len(both) // 2
    wins = []
    for x, y in zip(both[:half], both[half:], strict=True):
        x, y = x[..., :, None], y[..., None, :]
        wins.append(((x > y) + 0.5 * (x == y)).mean((-2, -1)))
    return np.mean(wins, axis=0)


def profile(levels: np.ndarray) -> Statistic:
    """The performance profile (section 4.3): a statistic [..., len(levels)] with the share of all runs that score more than each
    level. `levels`: float64 [L]."""

    def above(*tasks: np.ndarray) -> np.ndarray:
        return (np.concatenate(tasks, axis=-1)[..., None] > levels).mean(-2)

    return above


def interval(
    statistic: Statistic, tasks: Sequence[np.ndarray], resamples: int = RESAMPLES, rng: np.random.Generator | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of a statistic of [n] scores per task: low and high, of the shape of the statistic. NaN where a task has
    fewer than two runs. `rng`: draws the runs; by default the same ones for the same scores."""
    rng = rng or np.random.default_rng(SEED)
    if min(map(len, tasks)) < 2:
        nothing = np.full(np.shape(statistic(*tasks)), math.nan)
        return nothing, nothing
    return percentiles(statistic(*(scores[rng.integers(len(scores), size=(resamples, len(scores)))] for scores in tasks)))


def percentiles(resampled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 2.5th and the 97.5th percentile over the first axis."""
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    return low, high


def band(values: np.ndarray, resamples: int = RESAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the mean over seeds at every point of a curve: low and high, [points]. `values`: float64 [points, n].
    Whole curves are resampled, so that neighbouring points stay together. NaN for one seed."""
    points, n = values.shape
    if n < 2:
        return np.full(points, math.nan), np.full(points, math.nan)
    drawn = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=resamples) / n
    return percentiles(drawn @ values.T)
