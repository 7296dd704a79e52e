"""The plan of an experiment: the settings that vary, the seeds and the budget, kept as plan.json in the experiment's folder.

A planned run is a command line of `headrace train`. What its flags mean is for `headrace.cli.flags` to say.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import ConfigError
from headrace.config.file_reading import Unreadable, read_json
from headrace.runs.files import write_whole

FILE = "plan.json"  # in the experiment's folder
FORMAT = 1
MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0}
STEPS = {"": 1, "k": 1_000, "M": 1_000_000}
MOST_RUNS = 10_000
_ANEW = "move it away, and the same command writes it anew; runs that have ended count"


@dataclass(frozen=True)
class Budget:
    """When each run ends: after a number of steps, or after minutes of training; one of the two is None."""

    steps: int | None = None
    minutes: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """30s, 5m, 1h are times; 20000, 500k, 2M are steps. Raises `ConfigError` for anything else."""
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]?)", text)
        if match is None or match[2] not in MINUTES | STEPS or float(match[1]) == 0:
            raise ConfigError(f"{text!r} is no budget: give a time (30s, 5m, 1h) or a number of steps (20000, 500k, 2M)")
        number, unit = float(match[1]), match[2]
        return cls(minutes=number * MINUTES[unit]) if unit in MINUTES else cls(steps=max(1, round(number * STEPS[unit])))

    def flags(self, spent: float = 0.0) -> list[str]:
        """As flags of `headrace train`. `spent`: minutes for which the run was trained before."""
        if self.steps is not None:
            return ["--learning.total-steps", str(self.steps)]
        assert self.minutes is not None
        return ["--run.max-minutes", f"{max(self.minutes - spent, 1e-3):.4f}"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan."""

    values: tuple[tuple[str, str], ...]
    """The settings that vary, by dotted name, with the text of their values on the command line."""
    seed: int

    @property
    def label(self) -> str:
        """The settings in a few words, the same for all seeds."""
        return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in self.values) or "defaults"

    @property
    def name(self) -> str:
        """The name of its folder."""
        words = [re.sub(r"[^\w.+-]+", "_", f"{name.rpartition('.')[2]}-{value}") for name, value in self.values]
        return "__".join([*words, f"seed-{self.seed}"])

    @property
    def flags(self) -> list[str]:
        """What tells it from other runs of the plan, as flags of `headrace train`."""
        return [*as_flags(dict(self.values)), "--seed", str(self.seed)]


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment: every combination of the values, with every seed."""

    env: str
    flags: tuple[str, ...]  # of `headrace train`, the same for all runs
    vary: dict[str, tuple[str, ...]]  # by dotted setting, the values that are compared, as text
    seeds: tuple[int, ...]
    budget: str  # see `Budget.parse`

    def __post_init__(self) -> None:
        Budget.parse(self.budget)
        runs = list(itertools.islice(self.runs(), MOST_RUNS + 1))
        if len(runs) > MOST_RUNS:
            raise ConfigError(f"these are more than {MOST_RUNS:,} runs: vary fewer settings")
        names = [run.name for run in runs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"two runs would have the same folder {min(twice)}: is a value of --vary given twice?")

    def runs(self) -> Iterator[PlannedRun]:
        """Every run: all settings with the first seed come before any with the second, so that an experiment that is stopped has
        something to compare."""
        for seed in self.seeds:
            for values in itertools.product(*self.vary.values()):
                yield PlannedRun(tuple(zip(self.vary, values, strict=True)), seed)

    def command(self, run: PlannedRun, spent: float = 0.0) -> list[str]:
        """The arguments of `headrace train` but for the run's folder. `spent`: see `Budget.flags`."""
        return ["--env", self.env, *self.flags, *Budget.parse(self.budget).flags(spent), *run.flags]

    def write(self, folder: Path) -> None:
        """Write plan.json into an experiment's folder. Raises `OSError`."""
        write_whole(folder / FILE, json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Raises `ConfigError` where plan.json cannot be read or is none."""
        path = folder / FILE
        try:
            data = read_json(path)
            if data.pop("format") != FORMAT:
                raise ConfigError(f"{path} was made by another version of headrace")
            vary = {str(name): tuple(map(str, values)) for name, values in data["vary"].items()}
            flags, seeds = tuple(map(str, data["flags"])), tuple(map(int, data["seeds"]))
            return cls(str(data["env"]), flags, vary, seeds, str(data["budget"]))
        except Unreadable as error:
            raise ConfigError(f"{error}: {_ANEW}") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path} is no plan of an experiment ({error}): {_ANEW}") from error

    def check_extends(self, folder: Path) -> None:
        """Raise `ConfigError` where the folder holds another experiment. More values and more seeds are the same experiment; its
        finished runs count."""
        if not os.path.lexists(folder / FILE):
            return
        before = Plan.read(folder)
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in ("env", "flags", "budget")}
        other = [f"{name} {_difference(old, new)}" for name, (old, new) in pairs.items() if old != new]
        if [*before.vary] != [*self.vary]:
            other.append(f"what varies: {_shown([*before.vary])} -> {_shown([*self.vary])}")
        if other:
            raise ConfigError(f"{folder} holds another experiment ({'; '.join(other)}): choose another --folder")


def as_flags(values: Mapping[str, str]) -> list[str]:
    """Settings, by dotted name, as flags of `headrace train`. A value of several words is a list, but for JSON objects."""
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{name.replace('_', '-')}", *([value] if value.startswith("{") else value.split())]
    return flags


def _difference(old: Any, new: Any) -> str:
    """Two values, of flags those that differ."""
    if isinstance(old, tuple):
        one, other = ([f"--{flag}".strip() for flag in f" {' '.join(flags)}".split(" --")[1:]] for flags in (old, new))
        old, new = [flag for flag in one if flag not in other], [flag for flag in other if flag not in one]
        if not old and not new:
            return "in another order"
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(value) or "none"


def parse_vary(texts: Sequence[str], setting: Callable[[str], str] = str) -> dict[str, tuple[str, ...]]:
    """`--vary a=x,y` as {a: (x, y)}; the values of a list are separated by spaces; values may be JSON objects. `setting`: from a
    name as it was typed to the setting's. Raises `ConfigError`."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        parts = _json_objects(text, values) if values.startswith("{") else tuple(value.strip() for value in values.split(","))
        if not equals or not name or not all(parts):
            raise ConfigError(f"--vary {text!r} names no values: give it as --vary SETTING=VALUE,VALUE")
        if (name := setting(name)) in found:
            raise ConfigError(f"--vary {name} is given twice: list all its values in one")
        found[name] = parts
    return found


def _json_objects(text: str, values: str) -> tuple[str, ...]:
    """`{"a": 1, "b": 2}, {"a": 3}` as the texts of its objects. Raises `ConfigError`; `text`: of the option, for the message."""
    try:
        return tuple(json.dumps(value) for value in json.loads(f"[{values}]"))
    except ValueError as error:
        raise ConfigError(f"--vary {text!r}: its values are no JSON objects with commas between them: {error}") from error
