"""Evaluation beside training: every point that was due, each with its own checkpoint."""

import os
import re
import signal
from unittest import mock

import pytest
import supervised

import headrace
from headrace.config import override
from headrace.evaluation import background
from headrace.evaluation.background import BackgroundEvaluation
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A run that saved three checkpoints, kept one, and was to evaluate each."""
    return make_config(
        "gym/CartPole-v1",
        **{"run.folder": str(tmp_path_factory.mktemp("run") / "r"), "sampling.placement": "serial", "learning.total_steps": 1500,
           "learning.batch_size": 512, "policy.mlp": [8], "run.dashboard": False, "run.video": False, "learning.device": "cpu",
           "envs.max_episode_steps": 5, "run.eval_interval_steps": 500, "run.eval_episodes": 2, "run.keep_checkpoints": 1},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(config):
    return headrace.train(config).folder


def saved(config):
    """The steps of all checkpoints that were written."""
    return [int(step) for step in re.findall(r"Checkpoint \d+-step-(\d+)", (config.run_folder / "log.txt").read_text())]


def test_every_evaluation_that_was_due_is_made_with_its_own_checkpoint(config, folder):
    evaluated = [line for line in read_jsonl(config.run_folder / "metrics.jsonl") if "eval/episodic_return" in line]
    steps = [int(line["global_step"]) for line in evaluated]
    assert [step // 500 for step in steps] == [1, 2, 3]
    assert steps == saved(config)
    assert all(line["eval/episodic_return"] == 5 for line in evaluated)
    assert not (config.run_folder / "evaluating").exists()


@pytest.mark.parametrize("links", [True, False])
def test_the_replay_of_a_checkpoint_that_waits_is_not_held(tmp_path, monkeypatch, links):
    """It may be as large as the memory, and an evaluation reads the model alone."""
    found, folder = tmp_path / "000001-step-8", tmp_path / "evaluating"
    (found / "replay").mkdir(parents=True)
    (found / "replay" / "history-0.safetensors").write_bytes(b"large")
    (found / "manifest").write_text("{}")
    if not links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError("no links here")))
    held = background._hold(found, folder)
    assert [path.name for path in held.iterdir()] == ["manifest"]


def test_after_a_resume_the_next_multiple_is_due(config, folder):
    evaluations = BackgroundEvaluation(config)
    evaluations.started(saved(config)[-1])
    assert evaluations.saved(1999) is None
    assert list(evaluations.messages()) == []
    assert evaluations.saved(2000) is None, "there is no such checkpoint: it could not be written"
    assert evaluations._due == {0: 2000}


def test_the_end_does_not_wait_for_ever(config, folder, monkeypatch):
    monkeypatch.setattr(background, "DRAIN_TIMEOUT", 0.2)
    monkeypatch.setattr(background, "MOST_WAITING", 1)
    evaluations = BackgroundEvaluation(override(config, **{"run.eval_episodes": 10**6, "run.eval_interval_steps": 1}))
    try:
        for _ in range(3):
            evaluations._due[0] = 0
            said = evaluations.saved(saved(config)[-1])
        assert "1 wait already" in said
        child = evaluations._child
        messages = [e.content for e in evaluations.drain()]
        assert "Waiting for 2 evaluations" in messages[0]
        assert "2 of them not made" in messages[1]
    finally:
        evaluations.close()
    assert not child.process.is_alive()
    assert not (config.run_folder / "evaluating").exists()


def test_an_evaluation_that_does_not_end_is_not_waited_for(config, folder, monkeypatch):
    monkeypatch.setattr(background, "_evaluate", supervised.report_and_hang)
    monkeypatch.setattr(background, "END_TIMEOUT", 0.5)
    evaluations = BackgroundEvaluation(override(config, **{"run.eval_interval_steps": 1}))
    evaluations.saved(saved(config)[-1])
    child = evaluations._child
    assert [report.kind for report in evaluations.messages(60)] == ["eval"]
    assert child.process.exitcode == -signal.SIGKILL


def test_an_evaluation_that_dies_or_cannot_be_started_is_told(config, folder, monkeypatch):
    evaluations = BackgroundEvaluation(override(config, **{"run.eval_episodes": 10**6, "run.eval_interval_steps": 1}))
    evaluations.saved(saved(config)[-1])
    os.kill(evaluations._child.process.pid, signal.SIGKILL)
    _, told = [result.content for result in evaluations.drain()]
    assert re.fullmatch(rf"Evaluation of \d+-step-{saved(config)[-1]} ended without a result \(killed by SIGKILL\)", told)

    def refuse(*arguments):
        raise EOFError("the fork server is dead")

    monkeypatch.setattr(background, "Child", refuse)
    evaluations._due[0] = 0
    evaluations.saved(saved(config)[-1])
    assert "EOFError: the fork server is dead" in next(evaluations.messages()).content
    assert not [path for path in evaluations._folder.rglob("*") if path.is_file()]


def test_what_cannot_be_started_at_the_end_is_told_too(config, folder, monkeypatch):
    evaluations = BackgroundEvaluation(override(config, **{"run.eval_episodes": 10**6, "run.eval_interval_steps": 1}))
    for _ in range(3):
        evaluations._due[0] = 0
        evaluations.saved(saved(config)[-1])
    problems = iter(range(2))

    def refuse(*arguments):
        raise EOFError(f"problem {next(problems)}")

    monkeypatch.setattr(background, "Child", refuse)
    os.kill(evaluations._child.process.pid, signal.SIGKILL)
    told = [result.content for result in evaluations.drain()]
    assert told[1].endswith(" ended without a result (killed by SIGKILL)")
    assert [text.rpartition(": ")[2] for text in told[2:]] == ["problem 0", "problem 1"]
