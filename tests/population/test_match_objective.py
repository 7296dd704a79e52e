"""Population-based training by win rates and Elo ratings, in matches through the real engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import oracle
import pytest

import headrace
from headrace.config import Config, ConfigError
from headrace.config.population import PbtConfig
from headrace.envs.core.imports import import_files
from headrace.envs.core.registry import register_parallel
from headrace.make_config import make_config
from headrace.population import records
from headrace.population.ratings import RecentGames
from headrace.runs.metrics import read_jsonl
from headrace.shm.population import Standings

WORLD = str(Path(__file__).parents[1] / "evaluation" / "higher_wins.py")


def test_win_rate_of_the_last_games() -> None:
    rng = np.random.default_rng(0)
    table = Standings(2, 2, 1, 1, 1200.0)
    table.admit(2, 1, 1200.0)
    games, batches = RecentGames(table, 0), []
    assert math.isnan(games.win_rate)
    for turn in range(300):
        batch = rng.choice([0.0, 0.5, 1.0], rng.integers(0, 30 if turn % 7 else 200)).tolist()
        for score in batch:
            rival = int(rng.choice([1, 2, 4]))
            if rng.random() < 0.5:
                table.add_result(int(rng.integers(2)), 0, rival, score)
            else:
                table.add_result(int(rng.integers(2)), rival, 0, 1 - score)
            table.add_result(0, 0, 0, 1.0)  # says nothing
            table.add_result(0, 1, 2, 1.0)  # others
        if turn % 50 == 0:  # a newer copy in an old place has played nobody, but those games were played
            table.admit(2, turn, 1200.0)
        if turn % 40 == 13:  # a run that is resumed: what was played is in the state, and counted from 0
            state = json.loads(json.dumps(games.get_state()))
            table.counts[:] = 0
            table.counts[0, 0, 1] = state["unseen"]
            games = RecentGames(table, 0)
            games.set_state(state)
        games.update()
        batches += [batch] if batch else []
        expected = oracle.win_rate(batches)
        assert games.win_rate == (pytest.approx(expected) if expected is not None else pytest.approx(math.nan, nan_ok=True))
    games.clear()
    assert math.isnan(games.win_rate)


def test_duels_have_the_papers_gap_unless_told_otherwise() -> None:
    assert PbtConfig(rule="paper", objective="win_rate").number("gap") == 0.35
    assert PbtConfig(rule="paper", objective="win_rate", gap=0.1).number("gap") == 0.1
    assert PbtConfig(rule="paper", objective="elo").number("gap") == PbtConfig(rule="paper").number("gap") == 0
    assert PbtConfig(rule="sample-factory", objective="win_rate").number("gap") == 1e-6


def test_matches_are_needed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = make_config("gym/CartPole-v1", **{
        "population.size": 2, "sampling.num_workers": 2, "pbt.rule": "paper", "pbt.objective": "elo", "run.dashboard": False,
        "run.folder": str(folder),
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"pbt.objective elo is that of matches; gym/CartPole-v1 is of one agent"):
        headrace.train(config)
    assert not folder.exists(), "the next command would go on with its settings"


def duels(folder: Path, **settings: Any) -> Config:
    """Two policies that play each other, of which one learns: to take the highest number."""
    import_files([WORLD])
    fixed = {
        "run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 1.0, "learning.device": "cpu",
        "sampling.placement": "serial", "sampling.envs_per_worker": 16, "sampling.num_groups": 2, "policy.mlp": [8],
        "learning.batch_size": 64, "learning.total_steps": 1200, "learning.algorithm": "ppo", "learning.learning_rate": 0.03,
        "learning.num_minibatches": 2, "learning.num_epochs": 4, "population.size": 2, "matches.matchmaker": "uniform",
        "population.overrides": {"1": {"learning.learning_rate": 1e-6}}, "pbt.rule": "paper",
        "pbt.period": 150, "pbt.mutation_rate": 0.5,
    }  # fmt: skip
    return make_config("higher-wins", imports=[WORLD], **{**fixed, "pbt.objective": "win_rate", **settings})


@pytest.mark.slow
def test_duels_are_decided_by_win_rate_with_the_papers_threshold(tmp_path: Path) -> None:
    headrace.train(duels(tmp_path))
    lines = records.read_decisions(tmp_path)
    assert len(lines) >= 2 * 5
    assert any(line["donor"] is not None for line in lines), "nobody was replaced: the test shows nothing"
    spared = 0
    for line in lines:
        objectives = line["objectives"]
        assert all(0 <= rate <= 1 for rate in objectives)
        allowed, _ = oracle.paper(objectives, gap=0.35)[line["policy"]]
        assert ({line["donor"]} if line["donor"] is not None else set()) == allowed
        spared += not allowed and bool(oracle.paper(objectives)[line["policy"]][0])
    assert spared, "the threshold never mattered: the test shows nothing"


class Paid:
    """Matches of two steps; every step pays the agent's weight of "part", and the true objective is its number, or unknown in
    every third match."""

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["one", "other"], []
        self.weights: dict[str, dict[str, float]] = {}
        self._matches = 0

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 2, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    def set_reward_weights(self, weights: dict[str, dict[str, float]]) -> None:
        self.weights = weights

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self._t = list(self.possible_agents), 0
        self._matches += 1
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self._t += 1
        over, there = self._t == 2, list(self.possible_agents)
        self.agents = [] if over else there
        known = self._matches % 3 > 0
        infos = {agent: {"true_objective": i if known else np.nan} for i, agent in enumerate(there)} if over else {}
        seen = {agent: np.full(1, self._t, np.float32) for agent in there}
        return seen, {a: self.weights[a]["part"] for a in there}, dict.fromkeys(there, over), dict.fromkeys(there, False), infos

    def close(self) -> None:
        pass


register_parallel("paid", agents=2)(lambda options, render_mode=None: Paid())


@pytest.mark.process
@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.slow)])
def test_each_agent_is_paid_by_the_weights_of_the_policy_that_acts_for_it(tmp_path: Path, placement: str) -> None:
    config = make_config("paid", imports=[str(Path(__file__).resolve())], **{
        "run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "run.log_interval": 0.0, "policy.mlp": [8],
        "learning.device": "cpu", "sampling.placement": placement, "sampling.num_workers": 1, "sampling.envs_per_worker": 4,
        "sampling.rollout": 4, "learning.batch_size": 32, "learning.total_steps": 700, "learning.algorithm": "ppo",
        "population.size": 2, "pbt.rule": "paper", "pbt.period": 150, "pbt.mutation_rate": 1.0,
        "pbt.objective": "true_objective", "envs.reward_weights": {"part": 1.0},
        "pbt.mutable": {"reward.part": {"rule": "scale", "factor": [2, 2]}}, "pbt.replace_fraction": 0.0,
        "pbt.mutate_fraction": 1.0,
    })  # fmt: skip
    headrace.train(config)
    lines = records.read_decisions(tmp_path)
    assert any(line["before"] != line["values"] for line in lines), "nothing mutated: the test shows nothing"
    for line in lines:  # policy p is agent p
        assert line["objectives"] == [0.0, 1.0]
    for p in (0, 1):
        weights = [1.0] + [line["values"]["reward.part"] for line in lines if line["policy"] == p]
        rows = read_jsonl(tmp_path / f"policy-{p}" / "metrics.jsonl")
        returns = {row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row}
        assert 2.0 in returns
        assert 2 * weights[1] in returns
        assert all(min(weights) * 2 <= value <= max(weights) * 2 for value in returns)


@pytest.mark.slow
def test_ratings_are_an_objective_and_a_copy_has_its_donors(tmp_path: Path) -> None:
    headrace.train(duels(tmp_path, **{"pbt.objective": "elo", "pbt.gap": 20.0, "learning.total_steps": 800}))
    lines = records.read_decisions(tmp_path)
    assert all(500 < rating < 2500 for line in lines for rating in line["objectives"])
    taken = [line for line in lines if line["donor"] is not None]
    assert taken
    for line in taken:
        assert line["objectives"][line["donor"]] - line["objectives"][line["policy"]] > 20
