"""Population-based training while a policy has no objective: nothing is decided, the user is told why, and a policy that ends
without one is waited for no longer."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import oracle
import pytest

import headrace
from headrace import config as configs
from headrace.config import Config
from headrace.config.population import PbtConfig
from headrace.envs.core.registry import register_parallel
from headrace.make_config import make_config
from headrace.population import pbt, records
from headrace.population.pbt_policy import PbtPolicy
from headrace.shm.population import PopulationMemory

THIS = str(Path(__file__).resolve())


def policies(P: int, **settings: Any) -> tuple[list[PbtPolicy], PopulationMemory, list[Any]]:
    """P policies without anything around them, and what their learners count."""
    config = configs.override(Config(), **{"population.size": P, "pbt.rule": "paper", "pbt.period": 100, **settings})
    memory = PopulationMemory([1000] * P)
    learners = [SimpleNamespace(progress=SimpleNamespace(global_step=0), reconfigure=lambda config: None) for _ in range(P)]
    logs = [SimpleNamespace(mean_return=math.nan) for _ in range(P)]
    made = []
    for p in range(P):  # each in a process of its own
        there: Any = copy.copy(memory)
        there.serve = lambda *_, **__: None
        placement: Any = SimpleNamespace(
            memory=SimpleNamespace(population=there, standings=None), spec=SimpleNamespace(frameskip=1, tasks=()), config=config,
            configs=[config] * P,
        )  # fmt: skip
        made.append(PbtPolicy(placement, p, learners[p], logs[p]))  # type: ignore[arg-type]
    for policy in made:
        assert list(policy.begin()) == []
    return made, memory, [SimpleNamespace(learner=a, log=b) for a, b in zip(learners, logs, strict=True)]


def test_each_policy_says_once_why_nothing_is_decided() -> None:
    made, _, of = policies(3)
    of[0].log.mean_return = 5.0
    said = {}
    for step in (50, 100, 200, 300):
        for p, policy in enumerate(made):
            of[p].learner.progress.global_step = step
            for message in policy.step(None):
                said.setdefault((message.policy, message.kind), []).append((step, message.content))
    assert said.keys() == {(0, "message"), (1, "message"), (2, "message")}
    ((step, text),) = said[0, "message"]
    assert step == 100
    assert text.startswith(
        "Population: nothing is decided about policy 0 at step 100, because policies 1 and 2 have no objective (pbt.objective "
        "return: no episode has ended). "
    )
    assert text.endswith("the next decision about this policy is due at frame 200")
    of[1].log.mean_return = 6.0
    list(made[1].step(None))
    of[0].learner.progress.global_step = 400
    assert list(made[0].step(None)) == [], "once"
    of[2].log.mean_return = 7.0
    list(made[2].step(None))
    of[0].learner.progress.global_step = 500
    assert list(made[0].step(None)) == []
    assert made[0]._pending is not None, "it waits for its donor's copy"
    assert made[0]._pending["donor"] == 2


def test_a_policy_that_ends_without_an_objective_is_not_waited_for() -> None:
    made, memory, of = policies(3)
    of[0].log.mean_return, of[1].log.mean_return = 5.0, 6.0
    for policy in made[:2]:
        list(policy.step(None))
    made[2].finish()
    assert memory.objectives.tolist() == [5.0, 6.0, -math.inf]
    of[1].learner.progress.global_step = 100
    (message,) = made[1].step(None)
    assert message.kind == "population"
    assert message.content["objectives"] == [5.0, 6.0, None]
    assert (message.content["rank"], message.content["donor"]) == (0, None)
    made[0].finish()
    assert memory.objectives[0] == 5.0, "what it had stays"


def test_a_policy_without_an_objective_is_behind_all_others() -> None:
    rng = np.random.default_rng(0)
    settings = PbtConfig(rule="paper")
    for _ in range(200):
        N = int(rng.integers(2, 9))
        objectives = rng.normal(size=N)
        ended = rng.permutation(N)[: int(rng.integers(1, N))]
        objectives[ended] = -math.inf
        low = np.where(np.isinf(objectives), -1e9, objectives).tolist()
        for p in set(range(N)) - set(ended.tolist()):
            decision = pbt.decide(settings, p, objectives.tolist(), rng)
            assert decision is not None
            allowed, mutated = oracle.paper(low)[p]
            assert ({decision.donor} if decision.donor is not None else set()) <= allowed
            assert (decision.donor is None) == (not allowed)
            assert decision.mutate == mutated
            assert decision.donor not in ended


class Silent:
    """Three agents. The episodes of the first two last three steps, the last one's never ends."""

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["a", "b", "silent"], []

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 4, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._t = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self._t = (self._t + 1) % 4
        if self._t == 0:  # back again
            self.agents = list(self.possible_agents)
        over = {agent: self._t == 3 and agent != "silent" for agent in self.agents}
        seen, rewards = self._seen(), {agent: float(actions.get(agent, 0)) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, over, dict.fromkeys(over, False), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {agent: np.full(1, self._t, np.float32) for agent in self.agents}

    def close(self) -> None:
        pass


register_parallel("silent-agent", agents=3)(lambda options, render_mode=None: Silent())


@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.slow)])
def test_a_run_says_what_it_waits_for_and_goes_on_without_it(tmp_path: Path, placement: str) -> None:
    config = make_config("silent-agent", imports=[THIS], **{
        "run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "run.log_interval": 1000.0, "policy.mlp": [4],
        "learning.device": "cpu", "sampling.placement": placement, "sampling.num_workers": 1, "sampling.envs_per_worker": 4,
        "sampling.rollout": 4, "learning.batch_size": 32, "learning.total_steps": 500, "learning.algorithm": "ppo",
        "learning.num_minibatches": 1, "learning.num_threads": 1, "population.size": 3, "pbt.rule": "paper", "pbt.period": 100,
        "pbt.mutation_rate": 1.0, "population.overrides": {"2": {"learning.total_steps": 260}},
    })  # fmt: skip
    assert headrace.train(config).reason == "total_steps"
    log = (tmp_path / "log.txt").read_text()
    for p in (0, 1):
        assert log.count(f"nothing is decided about policy {p} at step") == 1
    assert re.search(r"because polic[^(]* 2 ha[sve]+ no objective \(pbt.objective return: no episode has ended\)", log)
    lines = records.read_decisions(tmp_path)
    assert {line["policy"] for line in lines} == {0, 1}
    assert all(line["objectives"][2] is None for line in lines)
    assert all(line["rank"] < 2 for line in lines)
