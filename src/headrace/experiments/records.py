"""What a report knows of runs: their settings, curves, metrics and machine, read from run folders of any age and state.

The settings are read as they were written, so that runs of other versions can be compared. A run that cannot be read is named
with the reason, and left out.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from headrace.config import flattened
from headrace.config.envs import OF_ONE_MACHINE
from headrace.config.errors import UserError
from headrace.config.file_reading import Unreadable, read_json
from headrace.runs.files import end_of
from headrace.runs.metrics import of_training, read_jsonl
from headrace.runs.plots import RETURNS, band, curve

DEEPEST = 6  # folders one within the other in which runs are looked for
MARKS = ("config.json", "metrics.jsonl", "checkpoints", "system.json")
"""A folder that has one of these is a run, perhaps a damaged one."""
INTERVAL = "run.log_interval"
TAIL = 1 << 16  # bytes at the end of metrics.jsonl that hold its last line


class NotReadable(UserError, ValueError):
    """A folder that holds no run which can be shown; the message has the reason."""


@dataclass(frozen=True)
class Run:
    """One policy of one run."""

    path: Path
    policy: int | None  # its number, where the run trained several
    settings: dict[str, Any]  # by dotted name, as in config.json
    system: list[dict[str, Any]]
    """What each process that trained it wrote about its machine; see `headrace.runs.system_facts`."""
    lines: list[dict[str, float]]  # of metrics.jsonl
    curve: np.ndarray  # float64 [n, 2]: global step, mean return of the last 100 episodes. Steps grow.
    starts: list[float] = field(default_factory=list)  # when each process that trained it began, in seconds since 1970

    @property
    def env(self) -> str:
        return str(self.settings.get("env", "unknown"))

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def score(self) -> float:
        """Mean return of the last 100 episodes at the end."""
        return float(self.curve[-1, 1])

    @property
    def steps(self) -> int:
        """Global steps at the end."""
        return int(max(self.curve[-1, 0], self.clock[-1, 0] if len(self.clock) else 0))

    @cached_property
    def clock(self) -> np.ndarray:
        """float64 [m, 2]: global step and minutes of training at every line of metrics; pauses between two processes do not
        count."""
        lines = of_training(self.lines)
        passed = minutes(lines, self.starts, self.settings.get(INTERVAL, math.inf))
        return np.array([(line["global_step"], m) for line, m in zip(lines, passed, strict=True)])

    @property
    def minutes(self) -> float:
        """Minutes of training at the end; NaN where nothing was logged."""
        return float(self.clock[-1, 1]) if len(self.clock) else math.nan

    def minutes_at(self, steps: np.ndarray) -> np.ndarray:
        """Minutes of training at these global steps, between the logged ones by interpolation."""
        known = self.clock
        return np.interp(steps, *np.vstack([[[0, 0]], known]).T) if len(known) else np.full(len(steps), np.nan)

    def mean(self, key: str) -> float:
        """Mean of a metric over the lines that have it; NaN without one."""
        values = [line[key] for line in self.lines if key in line]
        return float(np.mean(values)) if values else math.nan

    def last(self, key: str) -> float:
        """The newest value of a metric; NaN without one."""
        return next((line[key] for line in reversed(self.lines) if key in line), math.nan)

    @property
    def steps_per_second(self) -> float:
        """Median over the intervals."""
        rates = [line["charts/SPS_interval"] for line in self.lines if "charts/SPS_interval" in line]
        return float(np.median(rates)) if rates else math.nan


def minutes(lines: Sequence[dict[str, float]], starts: Sequence[float], interval: float = math.inf) -> list[float]:
    """Minutes of training at every line: the time since its process began to learn, and the time that earlier processes trained
    for until their last line. `starts`: of processes, in seconds since 1970, in order; without one the first line is the
    beginning. `interval`: seconds from when a process began to learn to its first line."""
    found: list[float] = []
    before = last = 0.0
    begins = list(starts) or [line["time"] for line in lines[:1] if "time" in line]
    start = max(begins.pop(0), lines[0].get("time", 0.0) - interval) if begins and lines else 0.0
    for line in lines:
        now = line.get("time", start)
        while begins and now >= begins[0]:
            before, start = last, max(begins.pop(0), now - interval)
        last = before + max(0.0, now - start) / 60
        found.append(last)
    return found


def minutes_of(folder: Path) -> float:
    """Minutes for which the run in a folder was trained until its newest checkpoint, from which it goes on; 0 where there is none
    that can be read."""
    found, starts, interval = [0.0], _starts(_system(folder)), math.inf
    with suppress(Unreadable, AttributeError):
        interval = flattened(read_json(folder / "config.json")).get(INTERVAL, interval)
    for path in _metrics(folder):
        saved = max(map(_numbers, path.parent.glob("checkpoints/*-step-*")), default=(0, -1))[1]
        with suppress(OSError):
            lines = of_training(read_jsonl(path))
            found += [m for line, m in zip(lines, minutes(lines, starts, interval), strict=True) if line["global_step"] <= saved]
    return max(found)


def _numbers(checkpoint: Path) -> tuple[int, int]:
    """The sequence number and the step in the name of a checkpoint's folder; (0, -1) of one that is not finished."""
    name = re.fullmatch(r"(\d+)-step-(\d+)", checkpoint.name)
    return (int(name[1]), int(name[2])) if name else (0, -1)


def newest(folder: Path) -> dict[str, float] | None:
    """The newest metrics of the run in a folder; None without any. Of several policies those of the first one, with the mean of
    their returns."""
    lines = [line for line in map(_tail, _metrics(folder)) if line is not None]
    returns = [line[RETURNS] for line in lines if RETURNS in line]
    return {**lines[0], **({RETURNS: fmean(returns)} if returns else {})} if lines else None


def _metrics(folder: Path) -> list[Path]:
    """The metrics of the run in a folder: of several policies one file each, in folders of their own."""
    return sorted(folder.glob("policy-*/metrics.jsonl")) or [folder / "metrics.jsonl"]


def _tail(path: Path) -> dict[str, float] | None:
    """The newest whole line of a metrics.jsonl that is not of an evaluation; None without one."""
    with suppress(OSError):
        for text in reversed(end_of(path, TAIL).split(b"\n")[:-1]):
            with suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict) and "charts/updates" in line:
                    return line
    return None


def find(folders: Iterable[Path], instead: Mapping[Path, Path] | None = None) -> tuple[list[Run], list[tuple[Path, str]]]:
    """All runs in and below these folders, and the folders left out with the reasons. `instead`: by folder, the part of it whose
    runs are meant."""
    runs: dict[tuple[Path, int | None], Run] = {}
    left_out: dict[Path, str] = {}
    for folder in folders:
        places = list(_places(folder, DEEPEST, MARKS, instead or {}))
        if not places:
            there = "it holds no run" if folder.is_dir() else "there is no such folder"
            left_out[folder] = there
        for place in places:
            try:
                runs |= {(run.path.resolve(), run.policy): run for run in read(place)}
            except (UserError, Unreadable, OSError) as error:
                left_out[place] = str(error)
    return list(runs.values()), list(left_out.items())


def folders_with(mark: str, folders: Iterable[Path]) -> list[Path]:
    """Those of these folders, and of the folders in them but for runs, that have a file of this name."""
    found = [place for folder in folders for place in _places(folder, DEEPEST, (mark, *MARKS), {})]
    return [folder for folder in dict.fromkeys(found) if os.path.lexists(folder / mark)]


def _places(folder: Path, depth: int, marks: Sequence[str], instead: Mapping[Path, Path]) -> Iterable[Path]:
    """Folders with one of these files (`MARKS`: runs), in order of their names."""
    folder = instead.get(folder, folder)
    if any(os.path.lexists(folder / mark) for mark in marks):
        yield folder
    elif depth and folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _places(inner, depth - 1, marks, instead)


def read(folder: Path) -> list[Run]:
    """The policies of the run in a folder. Raises `NotReadable`, `Unreadable`, `OSError`."""
    tree = read_json(folder / "config.json")
    if not isinstance(tree, dict) or not isinstance(tree.get("env"), str):
        raise NotReadable("config.json holds no settings of a run")
    settings, system = flattened(tree), _system(folder)
    if not isinstance(size := settings.get("population.size", 1), int):
        raise NotReadable("config.json holds no settings of a run")
    policies = [(None, folder)] if size == 1 else [(p, folder / f"policy-{p}") for p in range(size)]
    return [_read_policy(folder, own, p, settings, system) for p, own in policies]


def _read_policy(folder: Path, own: Path, policy: int | None, settings: dict[str, Any], system: list[dict[str, Any]]) -> Run:
    lines = read_jsonl(own / "metrics.jsonl")
    steps, means, *_ = band(own)
    if not steps:
        steps, means = curve(own, RETURNS)
    points = np.array([steps, means], float).T.reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    points = points[np.append(np.diff(points[:, 0]) > 0, True)] if len(points) else points
    if not len(points):
        if not lines and (own / "metrics.jsonl").stat().st_size:
            raise NotReadable("no line of metrics.jsonl can be read")
        raise NotReadable("no episode has ended in it" if lines else "nothing was learned in it")
    return Run(folder, policy, settings, system, lines, points, _starts(system))


def _system(folder: Path) -> list[dict[str, Any]]:
    """What system.json holds; nothing where it is damaged, which the run itself says."""
    try:
        facts = read_json(folder / "system.json")
    except (Unreadable, OSError):
        return []
    return [fact for fact in facts if isinstance(fact, dict)] if isinstance(facts, list) else []


def _starts(system: Sequence[dict[str, Any]]) -> list[float]:
    found = []
    for fact in system:
        with suppress(ValueError, TypeError):
            found.append(datetime.fromisoformat(fact.get("started", "")).timestamp())
    return sorted(found)


# -- which runs are the same but for the seed ------------------------------------------------------------------------------

ABOUT_THE_RUN = frozenset((
    "seed", "env", "imports", "format", "envs.num_agents", *(f"envs.{name}" for name in OF_ONE_MACHINE if "remote_" in name),
))  # fmt: skip
"""Settings that do not make two runs different ones, beside those of the group `run`."""
GATHERING = ("sampling.", "envs.remote")  # how the names of the settings begin that say how experience is gathered
FIRST = ("learning.algorithm", "sampling.placement", "sampling.policy_lag", "learning.preset")
"""Settings that say most about a run."""


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings that differ between runs of the same environment, with their values in order of appearance."""
    names = dict.fromkeys(name for run in runs for name in run.settings if not _about_the_run(name))
    found: dict[str, list[Any]] = {}
    by_env: dict[str, list[Run]] = {}
    for run in runs:
        by_env.setdefault(run.env, []).append(run)
    for name in names:
        values: dict[str, Any] = {}
        for group in by_env.values():
            own = {_text(run.settings.get(name)): run.settings.get(name) for run in group}
            values |= own if len(own) > 1 else {}
        if values:
            found[name] = list(values.values())
    return found


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run that is the same for all seeds of one configuration: those settings that tell configurations apart. A
    setting that only follows another one, as the defaults of an algorithm do, is left out."""
    names = sorted(differing(runs), key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    kept: list[str] = []

    def parts(chosen: Sequence[str]) -> list[tuple[str, ...]]:
        return [(run.env, *(_text(run.settings.get(name)) for name in chosen)) for run in runs]

    for name in names:
        if len(set(parts([*kept, name]))) > len(set(parts(kept))):
            kept.append(name)
    texts = []
    for run in runs:
        words = [_words(name, run.settings.get(name)) for name in kept] or [str(run.settings.get("learning.algorithm", "runs"))]
        texts.append(", ".join(words if run.policy is None else [*words, f"policy {run.policy}"]))
    return texts


@dataclass
class Group:
    """The runs of one configuration."""

    label: str
    runs: list[Run] = field(default_factory=list)

    def of(self, env: str) -> list[Run]:
        """Its runs on one environment."""
        return [run for run in self.runs if run.env == env]

    def scores(self, env: str) -> np.ndarray:
        """float64 [n]: the final scores on one environment."""
        return np.array([run.score for run in self.of(env)])


def mean_of(runs: Sequence[Run], key: str) -> float:
    """Mean over runs of the mean of a metric; NaN where none has it."""
    return known_mean([run.mean(key) for run in runs])


def known_mean(values: Sequence[float]) -> float:
    """Mean of those that are not NaN; NaN without one."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def same_learner(one: Run, other: Run) -> bool:
    """Whether two runs differ by how experience is gathered and by nothing else."""
    mine, theirs = (
        {k: v for k, v in run.settings.items() if not _about_the_run(k) and not k.startswith(GATHERING)} for run in (one, other)
    )
    return mine == theirs


def _about_the_run(name: str) -> bool:
    return name in ABOUT_THE_RUN or name.startswith("run.")


def envs_of(groups: Sequence[Group]) -> list[str]:
    """All environments, in order of their names."""
    return sorted({run.env for group in groups for run in group.runs})


def without_lag(label: str) -> str:
    """The label of a configuration without the setting `sampling.policy_lag`."""
    words = [word for word in label.split(", ") if not word.startswith("policy lag ")]
    return ", ".join(words) or "serial"


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The configurations of these runs, in order of their labels."""
    groups: dict[str, Group] = {}
    for run, label in sorted(zip(runs, labels(runs), strict=True), key=lambda both: (_order(both[1]), both[0].env, both[0].seed)):
        groups.setdefault(label, Group(label)).runs.append(run)
    return list(groups.values())


def _order(label: str) -> list[tuple[float, str]]:
    """For sorting: numbers within labels by their size."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", label)
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]


def _words(name: str, value: Any) -> str:
    """A setting in a few words. Of most texts, such as the name of an algorithm, one knows what they are; not of an address."""
    if isinstance(value, str) and name != "envs.remote":
        return value
    return f"{name.rpartition('.')[2].replace('_', ' ')} {_text(value)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value, sort_keys=True)


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs of different names where there are few, else the first with every other one."""
    return [(a, b) for i, a in enumerate(names[: None if len(names) <= 4 else 1]) for b in names[i + 1 :]]
