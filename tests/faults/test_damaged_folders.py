"""Damage to every file of a run folder, in many ways, and what `headrace train` (resume) and `headrace eval` make of it.

A small run is trained with checkpoints, a milestone, a best checkpoint and the contents of a replay. Then, for every file, every
way of damage and every command, a copy of its folder is damaged and the command is run. A command may go on as if nothing had
happened, use the older checkpoint, or refuse in one paragraph. It may not end with a traceback, hang, leave processes behind, or
start the run from nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import damage as damages
import pytest
from commands import Commands

pytestmark = pytest.mark.process

COMMON = ["--env", "gym/CartPole-v1", "--sampling.placement", "serial", "--learning.num-threads", "1", "--run.no-video"]
COMMON += ["--run.no-dashboard", "--learning.device", "cpu", "--run.checkpoint-interval", "0"]
APPO = [*COMMON, "--learning.batch-size", "512", "--run.milestone-steps", "1500", "--run.folder", "run"]
REPLAY = [*COMMON, "--learning.algorithm", "apex-dqn", "--learning.batch-size", "32", "--sampling.num-workers", "1"]
REPLAY += ["--sampling.envs-per-worker", "4", "--sampling.rollout", "20", "--replay.minimum", "200", "--replay.capacity", "1000"]
REPLAY += ["--replay.checkpoint-contents", "--run.folder", "replay"]
TRAIN = ["train", *APPO, "--learning.total-steps", "6000"]
TRAIN_PROCESSES = [*TRAIN, "--sampling.placement", "served", "--sampling.num-workers", "1"]
TRAIN_REPLAY = ["train", *REPLAY, "--learning.total-steps", "600"]
EVAL, EVAL_BEST = ["eval", "run", "--episodes", "2"], ["eval", "run", "--episodes", "2", "--checkpoint", "best"]
TRAIN_NEW = ["train", *APPO, "--run.folder", "new", "--learning.total-steps", "600"]
TUNED = "config/headrace/tuned/gym-CartPole-v1-appo-{cores}-cores-cpu.json"
"""Where `headrace tune` leaves what it found."""
Ways = dict[str, damages.Damage]
DEADLINE = 60.0


@dataclass(frozen=True)
class Case:
    """One damage and one command."""

    file: str
    """Its name in messages; `where` is its path."""
    where: Path
    how: str
    damage: damages.Damage
    command: list[str]
    all_checkpoints: bool = False
    """Damage this file of every checkpoint, not only of the newest."""

    @property
    def name(self) -> str:
        return f"{self.file}, {self.how}: headrace {self.command[0]}"


def build(commands: Commands, folder: Path) -> None:
    """Train what is damaged afterwards."""
    for arguments in (["train", *APPO, "--learning.total-steps", "5000"], ["train", *REPLAY, "--learning.total-steps", "500"]):
        ended = commands.run(arguments, folder)
        assert ended.code == 0, ended.output
    assert commands.run(EVAL_BEST, folder).code == 0


def cases(folder: Path) -> Iterator[Case]:
    """Every case, with paths below `folder`."""
    run, replay = folder / "run", folder / "replay"
    newest = sorted((run / "checkpoints").iterdir())[-1]
    newest_replay = sorted((replay / "checkpoints").iterdir())[-1] / "replay"
    sealed = {name: damages.sealed(how) for name, how in damages.FILES.items() if name in SEALABLE}

    def each(file: str, where: Path, ways: Ways, *commands: list[str], every: bool = False) -> Iterator[Case]:
        for how, damage in ways.items():
            for command in commands:
                yield Case(file, where, how, damage, command, every)

    yield from each("config.json", run / "config.json", damages.FILES | damages.JSON, TRAIN, EVAL)
    yield from each("system.json", run / "system.json", damages.FILES | damages.JSON, TRAIN)
    yield from each("metrics.jsonl", run / "metrics.jsonl", damages.FILES | damages.JSON, TRAIN)
    yield from each("curve.jsonl", run / "curve.jsonl", damages.FILES | damages.JSON, TRAIN)
    yield from each("log.txt", run / "log.txt", damages.FILES, TRAIN)
    yield from each("run.lock", run / "run.lock", damages.FILES, TRAIN)
    yield from each("tensorboard", run / "tensorboard", FOLDERS, TRAIN)
    yield from each("checkpoints", run / "checkpoints", FOLDERS, TRAIN, EVAL)
    yield from each("a checkpoint's folder", newest, FOLDERS, TRAIN, EVAL, EVAL_BEST)
    for name in ("tensors.safetensors", "state.json", "manifest"):
        yield from each(name, newest / name, damages.FILES, TRAIN, EVAL)
    yield from each("manifest", newest / "manifest", damages.FILES, EVAL_BEST)
    ways = sealed | {name: damages.sealed(how) for name, how in damages.tensor_damages().items()}
    yield from each("tensors.safetensors, right checksum", newest / "tensors.safetensors", ways, TRAIN, TRAIN_PROCESSES, EVAL)
    ways = sealed | {name: damages.sealed(how) for name, how in damages.JSON.items()}
    yield from each("state.json, right checksum", newest / "state.json", ways, TRAIN, TRAIN_PROCESSES, EVAL)
    ways = {name: damages.sealed_manifest(how) for name, how in damages.JSON.items()}
    yield from each("manifest, right checksum", newest / "manifest", ways, TRAIN, EVAL, EVAL_BEST)
    for name in ("tensors.safetensors", "state.json", "manifest"):
        yield from each(f"{name} of all", newest / name, damages.FILES, TRAIN, EVAL, every=True)
    yield from each("replay.json", newest_replay / "replay.json", damages.FILES | damages.JSON, TRAIN_REPLAY)
    yield from each("history-0.safetensors", newest_replay / "history-0.safetensors", damages.FILES, TRAIN_REPLAY)
    tuned = folder / TUNED.format(cores=len(os.sched_getaffinity(0)))
    yield from each("tune's result", tuned, damages.FILES | damages.JSON, TRAIN_NEW)


SEALABLE = ("empty", "cut in half", "bits flipped", "zeros", "random bytes", "grown")


def _folder_damages() -> dict[str, damages.Damage]:
    def after_removal(damage: damages.Damage) -> damages.Damage:
        def damaged(path: Path) -> None:
            shutil.rmtree(path)
            path.touch()
            damage(path)

        return damaged

    names = ("removed", "empty", "a link to itself", "a link to nowhere", "a fifo", "a socket", "an endless device")
    return {name: after_removal(damages.FILES[name]) for name in names} | {"empty folder": _emptied}


def _emptied(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


FOLDERS = _folder_damages()
"""Damage to a folder: its contents are gone, and something else is in its place."""


def prepare(case: Case, original: Path, copy: Path) -> None:
    """Copy the folders anew and damage them."""
    damages.restore(copy, original)
    if not case.all_checkpoints:
        case.damage(case.where)
        return
    for checkpoint in (copy / "run" / "checkpoints").iterdir():
        case.damage(checkpoint / case.where.name)


def allowed(case: Case, outcome: str) -> bool:
    """Whether this may come of it."""
    nothing_there = case.file == "checkpoints" and case.how in ("removed", "empty folder", "a link to nowhere")
    if case.all_checkpoints:
        return outcome == "refused"
    return outcome in ("goes on", "older checkpoint", "refused") or (nothing_there and outcome == "started from nothing")


@pytest.mark.parametrize(
    "every", [120, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])], ids=["some cases", "all cases"]
)
def test_commands_on_damaged_folders(tmp_path: Path, every: int) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    tuned = original / TUNED.format(cores=len(os.sched_getaffinity(0)))
    tuned.parent.mkdir(parents=True)
    with Commands(XDG_CONFIG_HOME=str(original / "config"), OMP_NUM_THREADS="1") as commands:
        build(commands, original)
    tuned.write_text(json.dumps({"settings": {"learning.num_threads": 1, "sampling.num_workers": 2}, "trials": []}))
    damages.restore(copy, original)
    chosen = list(cases(copy))[::every]
    assert len(chosen) > 500 / every
    found = []
    with Commands(XDG_CONFIG_HOME=str(copy / "config"), OMP_NUM_THREADS="1") as commands:
        for case in chosen:
            prepare(case, original, copy)
            ended = commands.run(case.command, copy, DEADLINE)
            outcome = damages.verdict(ended, resumes=case.command[0] == "train" and case.command != TRAIN_NEW)
            if not allowed(case, outcome):
                found.append(f"{case.name}: {outcome}\n{ended.output[-1500:]}")
    assert not found, "\n".join(found)
