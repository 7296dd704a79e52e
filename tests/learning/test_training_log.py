"""The learning curve that a learner keeps between two reports."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.experience.batch import Arrivals
from headrace.learning.learner import Progress
from headrace.learning.training_log import CURVE_POINTS, EPISODE_WINDOW, TrainingLog, when_learning_begins
from headrace.make_config import make_config


def arrivals(*returns: float) -> Arrivals:
    return Arrivals(10, np.array(returns, np.float32), np.ones(len(returns), np.int32))


def test_a_run_that_ends_before_learning_begins_says_so() -> None:
    def told(total_steps: int) -> str:
        settings = {"learning.algorithm": "dqn", "replay.minimum": 1000, "learning.total_steps": total_steps}
        return when_learning_begins(make_config("gym/CartPole-v1", **settings))

    assert "nothing will be learned" not in told(1001)
    assert "this run ends after 1,000: nothing will be learned" in told(1000)


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


def test_agents_have_their_own_means_of_the_interval() -> None:
    log = TrainingLog(agents=["one", "other", "third"])
    first, second = arrivals(1.0, -1.0, 3.0), arrivals(5.0)
    first.agents, second.agents = np.array([0, 1, 0], np.int32), np.array([0], np.int32)
    log.add(Arrivals.sum([first, second]))
    assert log._agents == {"one": [1.0, 3.0, 5.0], "other": [-1.0], "third": []}
    assert log.agent_means() == {"agents/one/episodic_return": 3.0, "agents/other/episodic_return": -1.0}
    assert log.agent_means() == {}, "of an interval"


def test_speeds_are_those_of_intervals_with_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 12.0, 13.0, 15.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    progress = Progress(global_step=5000)  # the run was resumed
    learner: Any = SimpleNamespace(progress=progress, learning_rate=0.1, measure=lambda: None)
    log, speeds = TrainingLog(), []
    for steps in (0, 300, 0, 0, 800):
        progress.global_step += steps
        metrics = log.metrics(learner)
        speeds.append((metrics.get("charts/SPS_interval"), metrics.get("charts/SPS")))
    assert speeds == [(None, None), (300.0, 300.0), (None, None), (None, None), (200.0, 220.0)]


def test_numbers_of_infos_have_their_means_and_belong_to_their_episodes() -> None:
    log = TrainingLog(infos=["won", "distance"])
    first, second = arrivals(1.0, 2.0), arrivals(3.0)
    first.infos, second.infos = np.array([[0, 4], [1, 5]], np.float32), np.array([[1, 6]], np.float32)
    log.add(Arrivals.sum([arrivals(), first, second]))
    assert log.episodes == [
        {"return": 1.0, "length": 1, "won": 0.0, "distance": 4.0},
        {"return": 2.0, "length": 1, "won": 1.0, "distance": 5.0},
        {"return": 3.0, "length": 1, "won": 1.0, "distance": 6.0},
    ]


def test_an_interval_with_many_updates_has_few_points_of_them_evenly_spaced() -> None:
    log = TrainingLog()
    for step in range(1, 1001):
        log.add(arrivals(1.0), step=step)
    steps = [point[0] for point in log.curve()]
    assert steps == list(range(50, 1001, 50))
    assert len(steps) == CURVE_POINTS
