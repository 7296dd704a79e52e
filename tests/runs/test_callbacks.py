"""The callbacks of `headrace.train`: what they are given, and that they can end the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.runs import checkpoint


def config(folder: Path, placement: str, algorithm: str = "ppo", **settings: Any) -> Any:
    return headrace.make_config(
        "gym/CartPole-v1", algorithm,
        **{
            "run.folder": str(folder), "run.dashboard": False, "run.video": False, "learning.device": "cpu",
            "learning.num_threads": 1, "sampling.placement": placement, "sampling.num_workers": 1, "sampling.num_groups": 1,
            "sampling.envs_per_worker": 8, "sampling.rollout": 16, "learning.batch_size": 128, "run.log_interval": 0.0,
            **settings,
        },
    )  # fmt: skip


@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.process)])
def test_they_are_told_of_every_update_episode_and_checkpoint(tmp_path: Path, placement: str) -> None:
    updates, episodes, saved = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    result = headrace.train(
        config(tmp_path, placement, **{"learning.total_steps": 2000, "run.checkpoint_interval": 0.2}),
        on_update=updates.append, on_episode=episodes.append, on_checkpoint=saved.append,
    )  # fmt: skip
    assert result.reason == "total_steps"
    assert [update["charts/updates"] for update in updates] == list(range(1, len(updates) + 1)), "each once"
    assert updates[-1]["global_step"] == result.global_step
    assert "losses/loss" in updates[-1]
    assert len(episodes) == updates[-1]["charts/episodes"], "each once"
    assert all(episode["return"] == episode["length"] > 0 and episode["policy"] == 0 for episode in episodes)
    assert all(0 <= one["global_step"] <= result.global_step for one in saved)  # 0: after a slow start


def test_nobody_is_told_of_a_checkpoint_that_was_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The milestone that it was due for stays due."""
    tries, saved, save = 0, list[dict[str, Any]](), checkpoint.save

    def full(*arguments: Any, **named: Any) -> Path:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise checkpoint.CheckpointError("the disk is full")
        return save(*arguments, **named)

    monkeypatch.setattr(checkpoint, "save", full)
    settings = {"learning.total_steps": 10**9, "run.checkpoint_interval": 0.3, "run.milestone_steps": 200}
    headrace.train(
        config(tmp_path, "serial", **settings),
        on_update=lambda update: len(saved) > 0, on_checkpoint=saved.append,
    )  # fmt: skip
    assert (tmp_path / "log.txt").read_text().count("the disk is full. Training goes on; the next try is in 0 s.") == 2
    (first,) = (tmp_path / "checkpoints").glob("000001-*")
    assert first.name == f"000001-step-{saved[0]['global_step']}"
    assert json.loads((first / "manifest").read_bytes().partition(b"\n")[2])["milestone"]


def test_after_a_failure_the_next_checkpoint_waits_for_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **named: Any) -> Path:
        raise checkpoint.CheckpointError("the disk is full")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(checkpoint.CheckpointError):
        headrace.train(config(tmp_path, "serial", **{"learning.total_steps": 2000, "run.milestone_steps": 200}))
    assert (tmp_path / "log.txt").read_text().count("the next try is in") == 1


@pytest.mark.parametrize("what", ["on_update", "on_episode", "on_checkpoint"])
@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.process)])
def test_one_that_returns_true_ends_the_run_with_a_checkpoint(tmp_path: Path, placement: str, what: str) -> None:
    calls = list[dict[str, Any]]()

    def stop(happened: dict[str, Any]) -> bool | np.bool_:
        calls.append(happened)
        return np.float32(1) > 0 if what == "on_update" else True

    settings = {"learning.total_steps": 10**9, "run.checkpoint_interval": 0.1}
    result = headrace.train(config(tmp_path, placement, **settings), **{what: stop})  # type: ignore[arg-type]
    assert result.reason == "interrupted"
    assert calls
    kept = checkpoint.load_newest(tmp_path / "checkpoints")
    assert kept is not None
    assert kept.unpack()["progress"]["global_step"] == result.global_step


def test_what_is_no_function_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(headrace.ConfigError, match="on_episode is 3, must be a function"):
        headrace.train(config(tmp_path / "run", "serial"), on_episode=3)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["on_update", "on_episode", "on_checkpoint"])
@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.process)])
def test_an_error_in_one_ends_the_run_with_a_checkpoint_and_is_raised(tmp_path: Path, placement: str, what: str) -> None:
    """What was learned until then is kept, and none is called again."""
    calls = list[dict[str, Any]]()

    def fail(happened: dict[str, Any]) -> None:
        calls.append(happened)
        raise ZeroDivisionError("mine")

    settings = {"learning.total_steps": 10**9, "run.checkpoint_interval": 0.1 if what == "on_checkpoint" else 1000.0}
    with pytest.raises(ZeroDivisionError, match="mine"):
        headrace.train(config(tmp_path, placement, **settings), **{what: fail})  # type: ignore[arg-type]
    assert len(calls) == 1
    assert "is the last" in (log := (tmp_path / "log.txt").read_text()) or "Checkpoint 0" in log
    assert checkpoint.load_newest(tmp_path / "checkpoints") is not None


def test_a_resumed_run_tells_only_of_its_own_updates(tmp_path: Path) -> None:
    """Not of those before, while the replay is filled again and steps are counted without an update."""
    updates = list[dict[str, Any]]()
    settings = {"learning.batch_size": 32, "replay.minimum": 300}
    for total in (1000, 2000):
        headrace.train(
            config(tmp_path, "serial", "dqn", **settings, **{"learning.total_steps": total}), on_update=updates.append
        )
    numbers = [update["charts/updates"] for update in updates]
    assert len(numbers) > 20
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_run_that_has_reached_its_goal_stays_as_it_is(tmp_path: Path) -> None:
    settings = {"learning.total_steps": 10**9, "run.goal": 15.0}
    first = headrace.train(config(tmp_path, "serial", **settings))
    again = headrace.train(config(tmp_path, "serial", **settings))
    assert (first.reason, again.reason) == ("goal", "goal")
    assert again.global_step == first.global_step
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    further = headrace.train(config(tmp_path, "serial", **settings | {"run.goal": 25.0}))
    assert further.global_step > first.global_step
