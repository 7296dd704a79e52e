"""One policy on several tasks, through the whole system: what is learned, counted, saved, evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import cli
from headrace.config import ConfigError
from headrace.evaluation.evaluate import EvalResult, evaluate
from headrace.evaluation.policy import load_policy
from headrace.evaluation.video import record
from headrace.experience.batch import Arrivals
from headrace.learning.training_log import TaskLog, TrainingLog, task_metrics
from headrace.make_config import make_config
from headrace.runs import checkpoint
from headrace.runs.metrics import read_jsonl
from headrace.train import train

pytestmark = pytest.mark.process

WORLDS = str(Path(__file__).parents[1] / "envs" / "task_worlds.py")
CUES = "cue/left,cue/right"
SMALL = {
    "sampling.placement": "serial",
    "sampling.rollout": 8,
    "sampling.envs_per_worker": 8,
    "learning.batch_size": 128,
    "learning.num_minibatches": 2,
    "learning.num_epochs": 4,
    "learning.learning_rate": 0.01,
    "learning.algorithm": "ppo",
    "learning.device": "cpu",
    "learning.num_threads": 1,
    "policy.mlp": [16],
    "policy.encoder": "mlp",
    "run.dashboard": False,
    "run.video": False,
    "run.log_interval": 0.0,
}


def run(folder: Path, steps: int, env: str = CUES, **settings: Any) -> list[dict[str, float]]:
    """Train; returns the lines of the metrics."""
    options = {**SMALL, "run.folder": str(folder), "learning.total_steps": steps, **settings}
    train(make_config(env, imports=[WORLDS], **options))
    return read_jsonl(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "run"
    run(folder, 4_000)
    return folder


def test_both_tasks_are_learned(trained: Path) -> None:
    """What is right in one is wrong in the other: a policy of one task gets 8 in that one and 0 in the other."""
    last = read_jsonl(trained / "metrics.jsonl")[-1]
    assert last["tasks/cue/left/episodic_return"] > 7
    assert last["tasks/cue/right/episodic_return"] > 7
    mean = (last["tasks/cue/left/episodic_return"] + last["tasks/cue/right/episodic_return"]) / 2
    assert last["charts/episodic_return_100"] == pytest.approx(mean)
    assert "tasks/mean_score" not in last, "nobody knows what a human has"


def test_evaluation_is_of_every_task_and_of_the_mean(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate(trained, episodes=7)
    assert [own.episodes for own in result.tasks.values()] == [4, 3]
    assert list(result.tasks) == ["cue/left", "cue/right"]
    assert min(own.mean for own in result.tasks.values()) > 7
    assert result.mean == pytest.approx(np.mean([own.mean for own in result.tasks.values()]))
    assert len(evaluate(trained, episodes=1).returns) == 2, "at least one of each"
    assert cli.main(["eval", str(trained), "--episodes", "4", "--num-envs", "1", "--import", WORLDS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["cue/left", "cue/right", "mean of 2 tasks"]
    assert cli.main(["eval", str(trained), "--episodes", "4", "--json", "--import", WORLDS]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["cue/left"]["episodes"] == 2


def test_a_task_can_be_chosen_for_playing(trained: Path) -> None:
    policy = load_policy(trained)
    for task, right in (("cue/left", 0), ("cue/right", 1)):
        env = policy.make_env(task=task)
        observation, _ = env.reset(seed=0)
        policy.reset()
        assert policy.act(observation) == right
    with pytest.raises(ConfigError, match="not trained on 'cue/three'; its tasks are cue/left, cue/right"):
        record(policy, trained / "video.mp4", task="cue/three")


def test_equal_samples_are_equal_and_each_episode_is_of_its_task(tmp_path: Path) -> None:
    lines = run(tmp_path, 1_000, **{"envs.task_share": "samples", "learning.learning_rate": 0.0})
    shares = [line["tasks/cue/left/share"] for line in lines if "tasks/cue/left/share" in line]
    assert len(shares) > 3
    assert set(shares) == {0.5}


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def state(folder: Path) -> dict[str, Any]:
        found = checkpoint.load_newest(folder / "checkpoints")
        assert found is not None
        return found.unpack()

    constant = {"learning.lr_schedule": "constant"}  # others depend on the total
    for share in ("compute", "samples"):
        whole, parts = tmp_path / share / "whole", tmp_path / share / "parts"
        run(whole, 768, **{"envs.task_share": share, **constant})
        for steps in (384, 768):
            run(parts, steps, **{"envs.task_share": share, **constant})
        one, two = state(whole), state(parts)
        assert one["task_returns"] == two["task_returns"]
        assert {*one["task_returns"]} == {"cue/left", "cue/right"}
        for name, tensor in one["model"].items():
            assert (tensor == two["model"][name]).all(), name


def test_a_replay_counts_by_task_too(tmp_path: Path) -> None:
    options = {"learning.algorithm": "apex-dqn", "learning.num_minibatches": 1, "learning.num_epochs": 1, "replay.minimum": 128}
    lines = run(tmp_path, 512, **options, **{"replay.capacity": 1024, "learning.batch_size": 32, "policy.encoder": "auto"})
    assert all(line["tasks/cue/left/share"] == 0.5 for line in lines if "tasks/cue/left/share" in line)
    assert "tasks/cue/right/episodic_return" in lines[-1]


def test_the_mean_is_over_tasks_however_many_episodes_each_has() -> None:
    log = TrainingLog(["one", "two"])
    ones = Arrivals(
        30, np.full(30, 1.0, np.float32), np.ones(30, np.int32), tasks=np.zeros(30, np.int32), task_steps=np.array([30])
    )
    log.add(ones, step=30)
    assert np.isnan(log.mean_return), "no episode of the other task has ended"
    assert log.curve() == []
    two = Arrivals(
        10, np.array([9.0], np.float32), np.ones(1, np.int32), tasks=np.ones(1, np.int32), task_steps=np.array([0, 10])
    )
    log.add(two, step=40)
    assert log.mean_return == 5.0
    assert log.curve() == [(40, 5.0, 1.0, 9.0)]
    assert log.tasks is not None
    metrics = log.tasks.metrics()
    assert (metrics["tasks/one/share"], metrics["tasks/two/share"]) == (0.75, 0.25)
    assert "tasks/one/share" not in log.tasks.metrics(), "shares are of the interval"
    log.add(Arrivals.sum([ones, ones, ones, ones]))
    assert not log.full, "one of the tasks has had 1 episode"
    again = TaskLog(["two", "one"])
    again.set_state(log.tasks.get_state())
    assert again.means == [9.0, 1.0]


def test_scores_are_averaged_over_all_tasks_and_capped() -> None:
    metrics = task_metrics({"atari/pong": 14.6, "atari/boxing": 24.1}, 2)
    assert metrics["tasks/atari/pong/score"] == pytest.approx(1.0)
    assert metrics["tasks/atari/boxing/score"] == pytest.approx(2.0)
    assert (metrics["tasks/mean_score"], metrics["tasks/capped_mean_score"]) == (pytest.approx(1.5), pytest.approx(1.0))
    assert "tasks/mean_score" not in task_metrics({"atari/pong": 14.6}, 2), "of a task nothing is known yet"
    assert "tasks/mean_score" not in task_metrics({"atari/pong": 14.6, "gym/CartPole-v1": 500.0}, 2)


def test_arrivals_count_transitions_by_task() -> None:
    tasks = np.array([[0, 2, 2], [0, 2, 2]], np.int32)
    valid = np.array([[True, True, False], [True, True, True], [True, True, True]])
    returns = np.array([[np.nan, 5.0, np.nan], [7.0, np.nan, np.nan]], np.float32)
    fields = {"valid": valid, "episode_return": returns, "episode_length": np.ones((2, 3), np.int32), "task": tasks}
    arrivals = Arrivals.of(fields)
    assert arrivals.task_steps.tolist() == [2, 0, 3]
    assert arrivals.tasks.tolist() == [2, 0]
    total = Arrivals.sum([arrivals, Arrivals.of(fields | {"task": np.zeros((2, 3), np.int32)})])
    assert total.task_steps.tolist() == [7, 0, 3]


def test_a_result_of_one_task_has_tasks_in_its_dictionary() -> None:
    result = EvalResult("a,b", 1, False, [1.0], [1], 1.0, float("nan"), (0.0, 1.0), 1, 0.0)
    assert "tasks" in result.to_dict()


@pytest.mark.slow
def test_a_slow_task_does_not_hold_up_a_fast_one(tmp_path: Path) -> None:
    """It makes 10 steps per second, the other one hundreds, on a busy machine too."""
    options = {"sampling.placement": "inline", "sampling.worker_niceness": 0, "run.log_interval": 1.0}
    lines = run(tmp_path, 1_500, "cue/left,cue/slow", **options)
    assert np.mean([line["tasks/cue/slow/share"] for line in lines if "tasks/cue/slow/share" in line]) < 0.3
