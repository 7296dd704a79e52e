"""The learning curve that a learner keeps between two reports."""

import numpy as np

from headrace.experience.batch import Arrivals
from headrace.learning.training_log import CURVE_POINTS, EPISODE_WINDOW, TrainingLog


def arrivals(*returns: float) -> Arrivals:
    return Arrivals(10, np.array(returns, np.float32), np.ones(len(returns), np.int32))


def test_a_point_has_the_mean_and_the_band_of_the_last_episodes() -> None:
    log = TrainingLog()
    log.add(arrivals(), step=10)
    log.add(arrivals(*range(-50, 0)), step=20)
    log.add(arrivals(*range(EPISODE_WINDOW)), step=30)
    points = log.curve()
    assert [point[0] for point in points] == [20, 30], "none where no episode ended"
    step, mean, low, high = points[-1]
    assert (step, mean) == (30, (EPISODE_WINDOW - 1) / 2)
    assert sum(r < low for r in range(EPISODE_WINDOW)) == sum(r > high for r in range(EPISODE_WINDOW)) == EPISODE_WINDOW // 10
    assert log.curve() == [], "each point is given once"


def test_an_interval_with_many_updates_has_few_points_of_them_evenly_spaced() -> None:
    log = TrainingLog()
    for step in range(1, 1001):
        log.add(arrivals(1.0), step=step)
    steps = [point[0] for point in log.curve()]
    assert steps == list(range(50, 1001, 50))
    assert len(steps) == CURVE_POINTS
