"""Population-based training through the real engine: copies, mutations, lineage, and a run that goes on bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import weighed

import headrace
from headrace.config import Config
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.core.registry import register_vector
from headrace.make_config import make_config
from headrace.population import records
from headrace.runs import checkpoint, state_tree
from headrace.runs.metrics import read_jsonl

pytestmark = pytest.mark.process


def population(folder: Path, **settings: object) -> Config:
    """CartPole, four policies, a decision about each every 400 steps."""
    common = {"run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 0.0}
    small = {"sampling.num_workers": 2, "sampling.envs_per_worker": 4, "sampling.num_groups": 2, "sampling.rollout": 8}
    limits = {"learning.total_steps": 2400, "learning.device": "cpu", "policy.mlp": [8], "learning.batch_size": 64}
    pbt = {"population.size": 4, "pbt.rule": "paper", "pbt.period": 400, "pbt.mutation_rate": 0.5, "sampling.placement": "serial"}
    more = {"learning.lr_schedule": "constant", "learning.num_minibatches": 2, "learning.num_epochs": 2}
    more["learning.num_threads"] = 1
    return make_config("gym/CartPole-v1", **{**common, **small, **limits, **pbt, **more, **settings})


def digests(folder: Path) -> list[str]:
    """Of all that the newest checkpoint of each policy says about its learning."""
    found = []
    for p in range(4):
        state = checkpoint.load_newest(folder / f"policy-{p}" / "checkpoints")
        assert state is not None
        parts = {name: state.unpack()[name] for name in ("model", "optimizer", "progress", "learner", "returns", "member")}
        found.append(hashlib.sha256(state_tree.to_bytes(parts)).hexdigest())
    return found


def decisions(folder: Path) -> list[str]:
    return sorted(json.dumps(line, sort_keys=True) for line in records.read_decisions(folder))


def test_a_population_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headrace.train(population(tmp_path / "whole"))
    lines = records.read_decisions(tmp_path / "whole")
    assert any(line["donor"] is not None for line in lines), "nobody was replaced: the test shows nothing"
    assert any(line["before"] != line["values"] for line in lines)

    # Killed in the middle: what is there is a moment of all policies, and a newer one that not all were saved at.
    saved = []

    class Killed(Exception):
        pass

    save = checkpoint.save

    def save_until_killed(folder: Path, step: int, *args: Any, **kwargs: Any) -> Path:
        if len(saved) == 4 * 5 + 2:
            raise Killed
        saved.append(step)
        return save(folder, step, *args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save_until_killed)
    often = {"run.milestone_steps": 300}
    with pytest.raises(Killed):
        headrace.train(population(tmp_path / "parts", **often))
    monkeypatch.setattr(checkpoint, "save", save)
    folders = [tmp_path / "parts" / f"policy-{p}" / "checkpoints" for p in range(4)]
    newest = [max(int(path.name[:6]) for path in folder.glob("0*")) for folder in folders]
    assert sorted(newest) == [5, 5, 6, 6], "every policy was saved equally often: the test shows nothing"
    headrace.train(population(tmp_path / "parts"))
    log = (tmp_path / "parts" / "log.txt").read_text()
    assert "Episodes begin anew" not in log
    assert log.count("Going on from") == 4
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")
    assert decisions(tmp_path / "parts") == decisions(tmp_path / "whole")


def test_a_setting_that_is_mutated_is_that_of_the_checkpoint_and_the_user_is_told(tmp_path: Path) -> None:
    few = {"population.size": 2, "learning.total_steps": 400, "pbt.mutable": {"learning.learning_rate": "scale"}}
    headrace.train(population(tmp_path, **few, **{"learning.learning_rate": 0.01, "pbt.period": 10**6}))
    more = few | {"learning.total_steps": 500, "learning.learning_rate": 0.5, "learning.entropy_coef": 0.02}
    headrace.train(population(tmp_path, **more))
    log = (tmp_path / "log.txt").read_text()
    for p in range(2):
        text = f"policy {p} goes on with the learning.learning_rate of its checkpoint, 0.01; 0.5 has no effect on what is mutated"
        assert log.count(text) == 1
    assert "entropy_coef of its" not in log


@pytest.mark.parametrize("placement", ["served", pytest.param("inline", marks=pytest.mark.slow)])
def test_learners_in_processes_copy_each_other(tmp_path: Path, placement: str) -> None:
    config = population(tmp_path, **{"sampling.placement": placement, "learning.total_steps": 4000})
    assert headrace.train(config).reason == "total_steps"
    lines = [line for line in records.read_decisions(tmp_path) if line["donor"] is not None]
    assert lines
    for line in lines:
        assert line["taken_at"] >= line["global_step"]
        assert line["objectives"][line["donor"]] > line["objectives"][line["policy"]]
    last = [read_jsonl(tmp_path / f"policy-{p}" / "metrics.jsonl")[-1] for p in range(4)]
    assert sum(row["population/replacements"] for row in last) == len(lines)
    assert (tmp_path / "log.txt").read_text().count("becomes a copy of policy") == len(lines)


def test_a_copy_is_the_donor(tmp_path: Path) -> None:
    """Nobody learns here but by copying: the weights are the donor's, and their versions are far above those from before."""
    settings = {"pbt.mutation_rate": 0.0, "learning.total_steps": 800, "pbt.period": 450, "learning.learning_rate": 0.0}
    config = population(tmp_path, **settings, **{"population.overrides": {"2": {"learning.entropy_coef": 0.5}}})
    headrace.train(config)
    lines = {line["policy"]: line for line in records.read_decisions(tmp_path)}
    states = []
    for p in range(4):
        found = checkpoint.load_newest(tmp_path / f"policy-{p}" / "checkpoints")
        assert found is not None
        states.append(found.unpack())
    donors = {p: line["donor"] for p, line in lines.items() if line["donor"] is not None}
    assert donors
    for p in range(4):
        assert states[p]["progress"]["lost_versions"] == (p in donors) * (config.learning.max_policy_lag + 1)
    for p, donor in donors.items():
        if donor not in donors:
            assert all(torch.equal(tensor, states[donor]["model"][name]) for name, tensor in states[p]["model"].items())
            assert states[p]["member"]["values"] == states[donor]["member"]["values"]
    alone = [p for p in range(4) if p not in donors]
    assert all(
        any(not torch.equal(t, states[q]["model"][name]) for name, t in states[p]["model"].items())
        for p in alone
        for q in alone
        if p < q
    )


REPLAY = {"replay.minimum": 64, "replay.capacity": 1000, "learning.num_minibatches": 1, "learning.num_epochs": 1}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("apex-dqn", REPLAY),
        *(
            pytest.param(name, more, marks=pytest.mark.slow)
            for name, more in [
                ("appo", {}),
                ("impala", {"learning.num_epochs": 1, "learning.num_minibatches": 1}),
                ("a2c", {"learning.num_epochs": 1, "learning.num_minibatches": 1}),
                ("pqn", {}), ("dqn", REPLAY), ("rainbow", REPLAY), ("r2d2", REPLAY), ("apex-dpg", REPLAY),
            ]
        ),
    ],
)  # fmt: skip
def test_every_algorithm_is_copied_and_mutated(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Weights, and what the algorithm has besides, such as a target network; nobody learns."""
    env = "gym/Pendulum-v1" if algorithm == "apex-dpg" else "gym/CartPole-v1"
    common = {
        "run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "run.log_interval": 1000.0, "population.size": 3,
        "sampling.num_workers": 3, "sampling.envs_per_worker": 4, "sampling.placement": "serial", "sampling.rollout": 8,
        "learning.batch_size": 32, "learning.total_steps": 600, "learning.device": "cpu", "learning.num_threads": 1,
        "policy.mlp": [8], "pbt.rule": "paper", "pbt.period": 200, "pbt.mutation_rate": 1.0, "envs.max_episode_steps": 20,
        "learning.learning_rate": 0.0, "pbt.mutable": {"learning.max_grad_norm": "scale"}, "learning.max_grad_norm": 1.0,
    }  # fmt: skip
    headrace.train(make_config(env, algorithm, **{**common, **settings}))
    lines = records.read_decisions(tmp_path)
    origin = {p: p for p in range(3)}
    for line in lines:
        if line["donor"] is not None:
            origin[line["policy"]] = origin[line["donor"]]
    assert len(set(origin.values())) < 3, "nobody was replaced"
    assert any(line["before"] != line["values"] for line in lines)
    states = [checkpoint.load_newest(tmp_path / f"policy-{p}" / "checkpoints") for p in range(3)]
    own = [state_tree.to_bytes({part: one.unpack()[part] for part in ("model", "learner")}) for one in states if one is not None]
    for p, q in np.ndindex(3, 3):
        assert (own[p] == own[q]) == (origin[p] == origin[q]), (p, q)


@pytest.mark.parametrize("placement", ["serial", "served"])
def test_the_replay_of_each_policy_holds_its_capacity(tmp_path: Path, placement: str) -> None:
    """Not a third of it, because the policy acts in a third of the environments."""
    settings = {
        "run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "run.log_interval": 0.0, "run.goal": None,
        "sampling.placement": placement, "population.size": 3, "sampling.num_workers": 3, "sampling.envs_per_worker": 4,
        "learning.total_steps": 2000, "learning.device": "cpu", "learning.num_threads": 1, "policy.mlp": [8],
        "replay.minimum": 100, "replay.capacity": 600, "replay.slack": 1.5, "replay.samples_per_insert": 8.0,
    }  # fmt: skip
    headrace.train(make_config("gym/CartPole-v1", "apex-dqn", **settings))
    for p in range(3):
        sizes = [line["replay/size"] for line in read_jsonl(tmp_path / f"policy-{p}" / "metrics.jsonl") if "replay/size" in line]
        assert max(sizes) >= 550


@pytest.mark.parametrize("placement", [pytest.param("serial", marks=pytest.mark.slow), "served"])
def test_reward_weights_reach_the_environments_and_the_objective_is_not_the_return(tmp_path: Path, placement: str) -> None:
    small = {"sampling.num_workers": 2, "sampling.envs_per_worker": 4, "sampling.rollout": 8, "learning.batch_size": 64}
    run = {"run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "run.log_interval": 0.0}
    pbt = {"pbt.rule": "paper", "pbt.period": 400, "pbt.mutation_rate": 1.0, "pbt.objective": "true_objective"}
    more = {"envs.reward_weights": {"part": 1.0}, "pbt.mutable": {"reward.part": {"rule": "scale", "factor": [2, 2]}}}
    run["population.size"] = 2
    learning = {"learning.total_steps": 2000, "learning.device": "cpu", "policy.mlp": [8], "learning.algorithm": "ppo"}
    learning["learning.num_threads"] = 1
    settings = {**small, **run, **pbt, **more, **learning, "sampling.placement": placement}
    config = make_config("weighed", imports=[weighed.__file__], **settings)
    headrace.train(config)
    lines = records.read_decisions(tmp_path)
    assert all(line["objectives"][p] <= 5 for line in lines for p in (0, 1) if line["objectives"][p] is not None)
    changed = [line for line in lines if line["before"] != line["values"]]
    assert changed
    for p in (0, 1):
        rows = read_jsonl(tmp_path / f"policy-{p}" / "metrics.jsonl")
        assert all(0 <= row["episode/true_objective"] <= 5 for row in rows if "charts/episodic_return" in row)
        weight = rows[-1]["population/reward.part"]
        returns = [row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row]
        assert returns[0] == pytest.approx(5.0)
        own = [line for line in changed if line["policy"] == p]
        if own and own[-1]["global_step"] < 1500:
            assert returns[-1] == pytest.approx(5 * weight)


def test_a_tree_survives_as_one_piece() -> None:
    tree = {"a": torch.arange(3), "b": [1, {"c": torch.ones(2, 2)}], "d": "text"}
    again = state_tree.from_bytes(state_tree.to_bytes(tree))
    assert torch.equal(again["a"], tree["a"])  # type: ignore[arg-type]
    assert torch.equal(again["b"][1]["c"], torch.ones(2, 2))
    assert again["d"] == "text"


def test_what_batches_of_environments_cannot_do_is_refused(tmp_path: Path) -> None:
    small = {"sampling.num_workers": 1, "sampling.envs_per_worker": 4, "sampling.num_groups": 2, "learning.device": "cpu"}
    run = {"run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "sampling.placement": "serial"}
    pbt = {"population.size": 2, "pbt.rule": "paper", "pbt.mutable": {"reward.part": "scale"}}
    pbt |= {"sampling.rollout": 8, "envs.reward_weights": {"part": 1.0}}
    learning = {"learning.batch_size": 64, "learning.algorithm": "ppo"}
    register = register_vector("weighed-in-batches", applies=["reward_weights"])
    register(lambda options, num_envs: gymnasium.make_vec("CartPole-v1", num_envs))
    with pytest.raises(EnvironmentFault, match=r"envs\.reward_weights, .*, need environments that are stepped one by one"):
        headrace.train(make_config("weighed-in-batches", **small, **run, **pbt, **learning))
