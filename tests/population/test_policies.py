"""Several policies with their own networks and learning rates, through the real engine, and what can be asked of each later."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headrace
from headrace.cli import main
from headrace.config import Config, ConfigError
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl

pytestmark = pytest.mark.process


def two_policies(folder: Path, **settings: object) -> Config:
    """CartPole with two policies of different networks and learning rates."""
    common = {"run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 0.05}
    small = {"sampling.num_workers": 2, "sampling.envs_per_worker": 4, "sampling.rollout": 8, "learning.batch_size": 64}
    small["learning.num_threads"] = 1
    own = {"1": {"policy.mlp": [5], "learning.learning_rate": 0.01, "learning.batch_size": 128}}
    limits = {"learning.total_steps": 1500, "learning.device": "cpu", "policy.mlp": [9], "learning.learning_rate": 0.001}
    population = {"population.size": 2, "population.overrides": own, "learning.lr_schedule": "constant"}
    return make_config("gym/CartPole-v1", **{**common, **small, **limits, **population, **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "r"
    settings = {"sampling.placement": "serial", "run.eval_interval_steps": 700, "run.eval_episodes": 2}
    headrace.train(two_policies(folder, **settings, **{"envs.max_episode_steps": 9}))
    return folder


@pytest.mark.parametrize("placement", ["served", pytest.param("inline", marks=pytest.mark.slow)])
def test_policies_with_different_networks_learn_in_processes(tmp_path: Path, placement: str) -> None:
    result = headrace.train(two_policies(tmp_path / "r", **{"sampling.placement": placement}))
    assert result.reason == "total_steps"
    assert [headrace.load_policy(tmp_path / "r", policy=p).model.core_width for p in (0, 1)] == [0, 0]


def test_each_has_its_network_its_learning_rate_and_its_metrics(run: Path) -> None:
    for policy, (width, rate) in enumerate([(9, 0.001), (5, 0.01)]):
        last = [line for line in read_jsonl(run / f"policy-{policy}" / "metrics.jsonl") if "charts/learning_rate" in line][-1]
        assert last["charts/learning_rate"] == rate
        assert last["global_step"] >= 1500
        trained = headrace.load_policy(run, policy=policy)
        assert any(width in tuple(parameter.shape) for parameter in trained.model.parameters())


def test_each_is_evaluated_while_training(run: Path) -> None:
    for policy in (0, 1):
        lines = read_jsonl(run / f"policy-{policy}" / "metrics.jsonl")
        assert [line["global_step"] // 700 for line in lines if "eval/episodic_return" in line] == [1, 2]


def test_eval_and_watch_take_the_number_of_a_policy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--policy", "1", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [9, 9]
    assert main(["eval", str(run), "--policy", "2"]) == 2
    assert "has no policy 2; it has 2, counted from 0" in capsys.readouterr().err


def test_a_population_in_the_folder_that_a_run_has_by_default_is_evaluated_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "--env", "gym/CartPole-v1", "--population.size", "2", "--placement", "serial", "--no-dashboard"]
    command += ["--no-video", "--envs.max-episode-steps", "9", "--sampling.num-workers", "2", "--sampling.envs-per-worker", "2"]
    command += ["--sampling.rollout", "8", "--learning.batch-size", "32", "--learning.device", "cpu", "--policy.mlp", "5"]
    assert main([*command, "--total-steps", "100"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    assert main(["eval", str(run), "--policy", "1", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [9, 9]
    assert main([*command, "--total-steps", "200"]) == 0
    log = (run / "log.txt").read_text()
    assert log.count("Going on from") == 2
    assert all(re.search(f"Going on from .* of policy {p}: step", log) for p in (0, 1))


def test_a_run_with_one_policy_has_no_other(tmp_path: Path) -> None:
    config = make_config("gym/CartPole-v1", **{"run.folder": str(tmp_path)})
    (tmp_path / "config.json").write_text(headrace.config.to_json(config))
    with pytest.raises(ConfigError, match="has no policy 1"):
        headrace.load_policy(tmp_path, policy=1)


def test_flags_give_a_policy_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = json.dumps({"1": {"sampling.rollout": 3}})
    flags = ["--env", "gym/CartPole-v1", "--population.size", "2", "--run.folder", str(tmp_path / "r")]
    assert main(["train", *flags, "--population.overrides", own]) == 2
    assert "policies share rollout workers" in capsys.readouterr().err
