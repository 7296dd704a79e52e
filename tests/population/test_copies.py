"""A policy that becomes a copy of another is judged by its donor's games."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from headrace import config as configs
from headrace.config import Config
from headrace.experience.batch import Arrivals
from headrace.learning.learner import Progress
from headrace.learning.optimizers import make_optimizer
from headrace.learning.training_log import EPISODE_WINDOW, TrainingLog
from headrace.population.pbt_policy import PbtPolicy
from headrace.shm.population import PopulationMemory


def ended(returns: float, version: int, episodes: int = EPISODE_WINDOW) -> Arrivals:
    """Episodes that weights of this version have ended."""
    each = np.full(episodes, returns)
    versions, agents = np.full(episodes, version), np.zeros(episodes, np.int64)
    return Arrivals(episodes, each, np.full(episodes, 10), each[:, None], tasks=agents, agents=agents, versions=versions)


def test_a_copy_has_the_returns_of_its_donor_and_not_of_its_predecessor() -> None:
    settings = {"population.size": 2, "pbt.rule": "paper", "pbt.period": 100, "learning.device": "cpu"}
    settings["pbt.objective"] = "true_objective"
    config = configs.override(Config(), **settings)
    memory = PopulationMemory([100_000] * 2)
    spec = SimpleNamespace(frameskip=1, tasks=(), info_metrics=("true_objective",))
    placement: Any = SimpleNamespace(
        memory=SimpleNamespace(population=memory, standings=None), spec=spec, config=config,
        configs=[config] * 2, publish=lambda *_: None,
    )  # fmt: skip
    algorithm = SimpleNamespace(state_dict=lambda model: {}, load_state_dict=lambda model, state: None)
    logs, policies = [TrainingLog(infos=spec.info_metrics) for _ in range(2)], []
    for p, log in enumerate(logs):
        model = torch.nn.Linear(2, 2)
        learner: Any = SimpleNamespace(
            progress=Progress(updates=5), model=model, optimizer=make_optimizer(model, config), algorithm=algorithm,
            settle=lambda: None, reconfigure=lambda config: None,
        )  # fmt: skip
        policies.append(PbtPolicy(placement, p, learner, log))
        assert list(policies[p].begin()) == []

    def step(p: int, arrivals: Arrivals) -> list[Any]:
        logs[p].add(arrivals)
        return [message.content for message in policies[p].step(arrivals) if message.kind == "population"]

    step(1, ended(10.0, 5))
    worst = policies[0]
    worst._learner.progress.global_step = 100
    (line,) = step(0, ended(-10.0, 5))
    assert line["donor"] == 1, "nobody was replaced: the test shows nothing"
    assert list(logs[0].returns) == list(worst._objectives) == [10.0] * EPISODE_WINDOW
    step(0, ended(-10.0, 5, 20))  # what the weights before had begun
    assert memory.objectives.tolist() == [10.0, 10.0]
    assert logs[0].mean_return == 10.0
    step(0, ended(12.0, worst._learner.progress.version, 50))
    assert memory.objectives.tolist() == [11.0, 10.0]
    assert logs[0].mean_return == 11.0
