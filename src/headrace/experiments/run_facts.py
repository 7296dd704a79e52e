"""The sections of a report about how runs were made: speed, where the time went, settings, machines, commands, films."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.config import flattened
from headrace.experiments import charts
from headrace.experiments.charts import Rows, rounded
from headrace.experiments.page import Chart, Section, Table, Video
from headrace.experiments.records import Group, Run, differing, known_mean, mean_of
from headrace.shm.phases import PARTS, PHASES

MOST_VIDEO = 1_500_000  # bytes of all films in a report; others stay in their run folders
MOST_COMMANDS = 400
METRICS = ("charts/FPS", "system/cpu", "sampling/faults")


def speed(groups: Sequence[Group]) -> Section:
    """Steps per second, frames, use of the processor; where each part's time went."""
    section = Section("Speed")
    rows = []
    for group in groups:
        frames, busy, faults = (mean_of(group.runs, key) for key in METRICS)
        rate = known_mean([run.steps_per_second for run in group.runs])
        rows.append((group.label, _text(rate), _text(frames), _text(busy, "{:.0%}"), _text(faults)))
    heads = ("configuration", "steps/s", "frames/s", "processor in use", "processes replaced")
    caption = "Means over the runs; steps/s is the median over a run's intervals. On a machine with other work they say little."
    section.items.append(Table(heads, rows, caption))
    for part, phases in PHASES.items():
        rows_of_part: Rows = []
        for group in groups:
            known = {name: mean_of(group.runs, f"time/{part}/{name}") for name in phases}
            rows_of_part += [
                {"g": group.label, "p": phases[name].label, "o": order, "x": rounded(share)}
                for order, (name, share) in enumerate(known.items())
                if not math.isnan(share)
            ]
        if rows_of_part:
            title = f"Where the time of the {PARTS[part]} went" if part != "learner" else "Where the learner's time went"
            section.items.append(Chart(charts.shares(title, rows_of_part, [phase.label for phase in phases.values()])))
    return section


def ratings(groups: Sequence[Group]) -> Iterator[Section]:
    """Ratings of policies that played matches; nothing where there were none."""
    keys = ("matches/elo", "matches/games", "matches/win_rate")
    rows = []
    for group in groups:
        for run in group.runs:
            elo, games, wins = (run.last(key) for key in keys)
            if not math.isnan(elo):
                rows.append((elo, (group.label, run.env, str(run.seed), _text(elo), _text(games), _text(wins, "{:.2f}"))))
    if rows:
        heads = ("configuration", "environment", "seed", "Elo rating", "games", "win rate")
        table = [row for _, row in sorted(rows, key=lambda both: -both[0])]
        yield Section("Matches", [Table(heads, table, "At the end of each run. Ratings of different runs cannot be compared.")])


def settings(runs: Sequence[Run]) -> Section:
    """The settings that differ between runs of the same environment."""
    rows = [(f"`{name}`", ", ".join(map(_value, values))) for name, values in differing(runs).items()]
    table = Table(("setting", "values"), rows, "Within an environment; all others are equal.")
    same = "All runs of an environment have the same settings but for their seeds."
    return Section("Settings that differ", [table if rows else same])


def machines(runs: Sequence[Run]) -> Section:
    """What the runs were made on."""
    facts: dict[str, Counter[str]] = {}
    for run in {run.path: run for run in runs}.values():
        for fact in run.system[-1:]:
            memory = fact.get("memory_bytes")
            shown = flattened({
                "processor": fact.get("processor"), "cores": fact.get("cores"), "accelerator": fact.get("accelerator"),
                "memory": f"{memory / 2**30:.0f} GiB" if isinstance(memory, int) else None, "platform": fact.get("platform"),
                "python": fact.get("python"), **(fact.get("packages") or {}), "commit": _commit(fact.get("git")),
            })  # fmt: skip
            for name, value in shown.items():
                if value is not None:
                    facts.setdefault(name, Counter())[str(value)] += 1
    rows = [
        (name, ", ".join(value if len(counts) == 1 else f"{value} ({n} runs)" for value, n in counts.items()))
        for name, counts in facts.items()
    ]
    return Section("Machine and versions", [Table(("fact", "value"), rows)] if rows else [])


def _commit(git: Any) -> str | None:
    if not isinstance(git, dict) or not git.get("commit"):
        return None
    return f"{str(git['commit'])[:12]}{', with changes' if git.get('modified') else ''}"


def commands(runs: Sequence[Run]) -> Section:
    """What repeats each run."""
    rows = [(run.path.name, str(run.seed), f"`{_command(run)}`") for run in runs[:MOST_COMMANDS] if run.policy in (None, 0)]
    return Section("Commands", [Table(("run", "seed", "command"), rows, "What repeats each run, with another --run.folder.")])


def _command(run: Run) -> str:
    """The command line that started it; where it was none of `headrace`, Python that trains with its settings."""
    given = next((fact["command"] for fact in run.system if isinstance(fact.get("command"), list)), None)
    if given and given[1:2] == ["train"]:
        return shlex.join(["headrace", *map(str, given[1:])])
    return f"headrace.train(headrace.config.load({str(run.path / 'config.json')!r}))"


def videos(runs: Sequence[Run]) -> Iterator[Section]:
    """Films of the runs, as many as there is room for."""
    found: list[Video] = []
    left, more = MOST_VIDEO, 0
    for folder in dict.fromkeys(run.path for run in runs):  # the policies of a run have one
        for path in sorted(folder.glob("*.mp4")):
            size = path.stat().st_size
            if size <= left and path.is_file():
                found.append(Video(path.read_bytes(), f"{folder.name}: {path.name}"))
                left -= size
            else:
                more += 1
    if found:
        note = [f"{more} films have no room here; they are in the run folders."] if more else []
        yield Section("Films", [*found, *note])


def _text(value: float, form: str = "{:,.0f}") -> str:
    return "" if math.isnan(value) else form.format(value)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
