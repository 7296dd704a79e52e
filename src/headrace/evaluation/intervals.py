"""Confidence intervals of means and of shares."""

from __future__ import annotations

import math

import numpy as np

# SciPy is imported in the functions: `scipy.stats` takes more than a second, and loading a policy does not need it.


def bootstrap_ci(*groups: np.ndarray, resamples: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of the means of `groups` ([n] each); NaN where a group has fewer than two values.

    Of one group: bias-corrected and accelerated (BCa, Efron 1987: for skewed values it is skewed). Of several, each of which is
    resampled by itself: percentiles, as in Agarwal et al. 2021 (Deep RL at the edge of the statistical precipice), section 4.1.
    """
    if min(map(len, groups)) < 2:
        return math.nan, math.nan
    if all(np.allclose(values, values[0], rtol=1e-12, atol=0) for values in groups):  # SciPy gives NaN and a warning
        mean = float(np.mean([values[0] for values in groups]))
        return mean, mean
    from scipy.stats import bootstrap

    found = bootstrap(
        groups, lambda *samples, axis: np.mean([values.mean(axis) for values in samples], axis=0), vectorized=True,
        n_resamples=resamples, batch=1000, method="BCa" if len(groups) == 1 else "percentile", rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def wilson(wins: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of `n` (1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest

    found = binomtest(wins, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
