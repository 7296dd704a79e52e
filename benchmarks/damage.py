"""Damage to every file of a run folder, in many ways, and what `headrace train` (resume), `eval` and `watch` make of it.

    python benchmarks/damage.py [--every N] [--jobs N]

A small run is trained with checkpoints, a milestone, a best checkpoint and the contents of a replay; then, for every file, every
way of damage and every command, a copy of its folder is damaged and the command is run. Allowed: it goes on as if nothing were,
it uses the older checkpoint, or it refuses in one paragraph. Forbidden: a traceback, a hang (60 s), processes left behind, a run
that starts from nothing. Prints the counts and writes results/damage.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import summary

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
import damage as damages
from commands import Commands

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
    """For the table; `where` it is."""
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


def prepared(case: Case, original: Path, copy: Path) -> None:
    """Copy the folders anew and damage them."""
    damages.restore(copy, original)
    if not case.all_checkpoints:
        case.damage(case.where)
        return
    for checkpoint in (copy / "run" / "checkpoints").iterdir():
        case.damage(checkpoint / case.where.name)


def expected(case: Case, outcome: str) -> bool:
    """Whether this may come of it."""
    nothing_there = case.file == "checkpoints" and case.how in ("removed", "empty folder", "a link to nowhere")
    if case.all_checkpoints:
        return outcome == "refused"
    return outcome in ("goes on", "older checkpoint", "refused") or (nothing_there and outcome == "started from nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only every nth case")
    parser.add_argument("--match", default="", help="only cases whose name contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="so many cases at a time")
    parser.add_argument("--progress", type=Path, help="a file from which a script that was interrupted goes on")
    parser.add_argument("--verbose", action="store_true", help="show what every command printed")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "damage.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        counts, failures = suite(Path(temporary), args.every, args.match, args.verbose, args.jobs, args.progress)
    print(f"\n{table(counts)}\n")
    for failure in failures:
        print(failure)
    if not args.match:
        facts = {"cases": sum(counts.values()), "every": args.every, "forbidden": len(failures), "failures": failures}
        rows = [{"file": file, "outcome": outcome, "cases": n} for (file, outcome), n in sorted(counts.items())]
        summary.write(args.out, {"machine": summary.machine(), **facts, "rows": rows})
    sys.exit(bool(failures))


def suite(
    temporary: Path, every: int = 1, match: str = "", verbose: bool = False, jobs: int = 1, progress: Path | None = None
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Run the cases; how many of each file came to what, and the names of those that failed. `jobs`: so many at a time.
    `progress`: a file that gets a line for each case, and whose cases are not run again."""
    original = temporary / "original"
    tuned = original / TUNED.format(cores=len(os.sched_getaffinity(0)))
    tuned.parent.mkdir(parents=True)
    with Commands(XDG_CONFIG_HOME=str(original / "config"), OMP_NUM_THREADS="1") as commands:
        build(commands, original)
    tuned.write_text(json.dumps({"settings": {"learning.num_threads": 1, "sampling.num_workers": 2}, "trials": []}))
    progress = progress or temporary / "progress.jsonl"
    progress.touch()
    done = {json.loads(line)["case"] for line in progress.read_text().splitlines()}
    with ThreadPoolExecutor(jobs) as pool:
        for part in [
            pool.submit(_some, original, temporary / f"copy-{job}", every, match, verbose, (job, jobs), progress, done)
            for job in range(jobs)
        ]:
            part.result()
    rows = [json.loads(line) for line in progress.read_text().splitlines()]
    counts = Counter((row["file"], row["outcome"]) for row in rows)
    return counts, [f"{row['name']}: {row['outcome']}" for row in rows if row["forbidden"]]


def _some(
    original: Path, copy: Path, every: int, match: str, verbose: bool, share: tuple[int, int], progress: Path, done: set[int]
) -> None:
    """Run a share of the cases, {number, of how many}, on copies at `copy`, but for those that are `done`."""
    damages.restore(copy, original)
    chosen = [(i, case) for i, case in enumerate(cases(copy)) if match in case.name][::every]
    chosen = [(i, case) for i, case in chosen if i not in done][share[0] :: share[1]]
    with Commands(XDG_CONFIG_HOME=str(copy / "config"), OMP_NUM_THREADS="1") as commands:
        for number, (i, case) in enumerate(chosen):
            prepared(case, original, copy)
            ended = commands.run(case.command, copy, DEADLINE)
            outcome = damages.verdict(ended, resumes=case.command[0] == "train" and case.command != TRAIN_NEW)
            forbidden = not expected(case, outcome)
            with progress.open("a") as file:
                row = {"case": i, "file": case.file, "name": case.name, "outcome": outcome, "forbidden": forbidden}
                file.write(json.dumps(row) + "\n")
            if verbose or forbidden:
                print(f"--- {case.name}: {outcome}, {ended.seconds:.1f} s\n{ended.output}", flush=True)
            print(f"\r{number + 1} of {len(chosen)}  ", end="", file=sys.stderr)


def counts_of(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """The counts that are written in a result."""
    return Counter({(row["file"], row["outcome"]): row["cases"] for row in rows})


def table(counts: Counter[tuple[str, str]]) -> str:
    """Markdown."""
    outcomes = sorted({outcome for _, outcome in counts}, key=lambda name: (name not in ALLOWED, name))
    lines = [f"| file | cases | {' | '.join(outcomes)} |", "|---" * (len(outcomes) + 2) + "|"]
    files = sorted({file for file, _ in counts})
    for file in [*files, "all"]:
        cells = [sum(n for (f, o), n in counts.items() if file in (f, "all") and o == outcome) for outcome in outcomes]
        lines.append(f"| {file} | {sum(cells)} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


ALLOWED = ("goes on", "older checkpoint", "refused")

if __name__ == "__main__":
    main()
