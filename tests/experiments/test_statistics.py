"""Statistics of runs: equal to rliable 1.2.0, and to loops written from the paper (Agarwal et al. 2021)."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.experiments import statistics

_spec = importlib.util.spec_from_file_location("rliable_reference", Path(__file__).with_name("rliable_reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
CASES = json.loads(reference.FILE.read_text())


class Drawn:
    """Gives the runs that rliable drew, task by task, in the place of a random number generator."""

    def __init__(self, *drawn):
        self._drawn = [own[:, :, task] for own in drawn for task in range(own.shape[2])]

    def integers(self, runs, size):
        found = self._drawn.pop(0)
        assert found.shape == size
        return found


def scores(case):
    x = reference.random_scores(case["seed"], case["runs"], case["tasks"])
    return x, reference.random_scores(100 + case["seed"], case["runs"] + 1, case["tasks"])


@pytest.mark.parametrize("case", CASES)
def test_aggregates_and_their_intervals_are_those_of_rliable(case):
    x, _ = scores(case)
    drawn = reference.resampled_runs(case["seed"], x.shape)
    for name, statistic in statistics.AGGREGATES.items():
        point, *ends = case["aggregates"][name]
        assert statistic(*x.T) == pytest.approx(point, abs=1e-6), name
        found = statistics.interval(statistic, list(x.T), reference.RESAMPLES, Drawn(*drawn))
        assert found == pytest.approx(ends, abs=1e-6), name


@pytest.mark.parametrize("case", CASES)
def test_profiles_and_improvement_are_those_of_rliable(case):
    x, y = scores(case)
    profile = statistics.profile(reference.LEVELS)
    shares, *band = case["profile"]
    assert profile(*x.T) == pytest.approx(shares, abs=1e-6)
    drawn = reference.resampled_runs(case["seed"], x.shape)
    for found, ours in zip(statistics.interval(profile, list(x.T), reference.RESAMPLES, Drawn(*drawn)), band, strict=True):
        assert found == pytest.approx(ours, abs=1e-6)
    point, *ends = case["improvement"]
    both = [*x.T, *y.T]
    assert statistics.probability_of_improvement(*both) == pytest.approx(point, abs=1e-6)
    drawn = reference.resampled_runs(case["seed"], x.shape, y.shape)
    found = statistics.interval(statistics.probability_of_improvement, both, reference.RESAMPLES, Drawn(*drawn))
    assert found == pytest.approx(ends, abs=1e-6)


def test_definitions_by_hand():
    tasks = [np.array([0.0, 1.0, 2.0, 9.0]), np.array([4.0, 4.0])]
    pooled = sorted([0.0, 1.0, 2.0, 9.0, 4.0, 4.0])
    assert statistics.iqm(*tasks) == pytest.approx(np.mean(pooled[1:5])), "a quarter of six, rounded down, goes on each side"
    assert statistics.mean(*tasks) == pytest.approx((3 + 4) / 2)
    assert statistics.optimality_gap(*tasks) == pytest.approx(1 - (0 + 1 + 1 + 1 + 1 + 1) / 6)
    wins = [(a > b) + (a == b) / 2 for a in tasks[0] for b in tasks[1]]
    assert statistics.probability_of_improvement(tasks[0], tasks[1]) == pytest.approx(np.mean(wins))


def test_intervals_need_two_runs_of_every_task_and_repeat():
    one = [np.array([1.0, 2.0, 3.0]), np.array([1.0])]
    assert np.isnan(statistics.interval(statistics.iqm, one)).all()
    two = [np.array([1.0, 2.0, 3.0]), np.array([5.0, 8.0])]
    assert statistics.interval(statistics.iqm, two) == statistics.interval(statistics.iqm, two)


def test_a_band_is_the_interval_of_the_mean_of_whole_curves():
    values = np.random.default_rng(0).normal(size=(7, 5)) + np.arange(7)[:, None]
    low, high = statistics.band(values, resamples=20_000)
    for point, of_seeds in enumerate(values):
        again = statistics.interval(statistics.mean, [of_seeds], resamples=20_000)
        assert (low[point], high[point]) == pytest.approx(again, abs=0.06)
    assert np.isnan(statistics.band(values[:, :1])).all()


def test_atari_5_estimates_the_median_of_57_games():
    """By hand from the published weights: they sum to 0.9653, so five scores of 100 % mean 101 ** 0.9653 - 1 = 85.05 %."""
    assert statistics.atari_5(*np.ones((5, 1))) == pytest.approx(0.8505, abs=1e-3)
    assert statistics.atari_5(*np.array([[1.0], [-3.0], [0.5], [2.0], [0.0]])) == pytest.approx(
        (101**0.381975 * 51**0.310804 * 201**0.124126 - 1) / 100, rel=1e-5
    ), "worse than random counts as random, and a game at random play adds nothing"
    seeds = np.array([[0.5, 1.5], [1, 1], [1, 1], [1, 1], [1, 1]])
    assert statistics.atari_5(*seeds) == pytest.approx(0.8505, abs=1e-3), "of the mean of the seeds"
    low, high = statistics.interval(statistics.atari_5, list(seeds))
    assert low < 0.8505 < high
