"""Confidence intervals."""

import numpy as np
import pytest

from headrace.evaluation.intervals import bootstrap_ci, wilson


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.exponential(size=(300, 60))
    covered = [low <= 1.0 <= high for low, high in (bootstrap_ci(sample, resamples=2000) for sample in samples)]
    assert 0.91 <= np.mean(covered) <= 0.98
    low, high = bootstrap_ci(samples[0])
    assert high - samples[0].mean() > 1.1 * (samples[0].mean() - low), "a skewed sample has a skewed interval"
    assert bootstrap_ci(np.full(9, 500.0)) == (500, 500)
    assert np.isnan(bootstrap_ci(np.ones(1))).all()


def test_games_that_are_equal_but_for_rounding_have_an_interval():
    assert bootstrap_ci(np.array([0.3, 0.3, 0.1 + 0.2])) == pytest.approx((0.3, 0.3))


def test_the_interval_of_the_mean_of_several_tasks_is_resampled_within_each():
    far_apart = [np.array([0.0, 1.0] * 20), np.array([1000.0, 1001.0] * 20)]
    low, high = bootstrap_ci(*far_apart)
    assert 500.3 < low < 500.5 < high < 500.7
    assert np.isnan(bootstrap_ci(np.zeros(3), np.zeros(1))).all()


def test_the_interval_of_a_share_is_that_of_wilson():
    low, high = wilson(8, 10)  # Newcombe 1998, table I: 0.4902 to 0.9433
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson(0, 0) == (0, 1)
