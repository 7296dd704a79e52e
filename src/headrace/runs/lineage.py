"""What became of the policies of a population: population.jsonl in the run folder, and a picture of it.

Each line is one decision about one policy: `policy`, its `global_step` and `frames`, the number of the `decision`, the
`objectives` of all policies then, its `rank` among them (0 is the best), the `donor` whose weights it took over (or null) with
the donor's `donor_step`, and its hyperparameters `before` and after (`values`).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.config import ConfigError
from headrace.runs.files import AppendFile, read_json_lines, write_json_lines
from headrace.runs.plots import new_figure

FILE, PICTURE = "population.jsonl", "population.png"
NEWEST = 16
"""Decisions about a policy that its checkpoints have with them: the process that writes the file may be killed before it has read
what a learner reported."""


class Lineage:
    """Writes the file. Lines are only ever added, but for those of steps that a resumed run repeats."""

    def __init__(self, run: os.PathLike[str] | str) -> None:
        self.path = Path(run) / FILE
        self._file: AppendFile | None = None
        self._newest: dict[int, deque[dict[str, Any]]] = {}
        """By policy, its newest lines in the file."""

    def append(self, record: dict[str, Any]) -> str | None:
        """Add a line; returns a message for the user if the disk is full. A learner that died when it had decided and no
        checkpoint said so decides once more: the line replaces that one."""
        policy, decision = record["policy"], record["decision"]
        if (lines := self._newest.get(policy)) and decision <= lines[-1].get("decision", -1):
            with suppress(OSError):  # a full disk: the older line stays, too
                self._keep(lambda line: line["policy"] != policy or line.get("decision", -1) < decision)
        self._note(record)
        self._file = self._file or AppendFile(self.path)
        return self._file.append(json.dumps(record).encode() + b"\n")

    def has(self, record: dict[str, Any]) -> bool:
        """Whether this is one of the newest lines of its policy: a learner that goes on from a checkpoint reports them again."""
        return record in self._newest.get(record["policy"], ())

    def _note(self, line: dict[str, Any]) -> None:
        self._newest.setdefault(line["policy"], deque(maxlen=NEWEST)).append(line)

    def rewind(self, policy: int, step: int) -> None:
        """Training of this policy goes on from this global step: its later lines are removed, and those of copies that were
        decided before and had not been taken over yet."""
        if self.path.exists():
            self._keep(lambda line: line["policy"] != policy or line.get("taken_at", line["global_step"]) <= step)

    def _keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Remove all other lines."""
        self.close()
        kept = [line for line in read(self.path.parent) if wanted(line)]
        write_json_lines(self.path, kept)
        self._newest = {}
        for line in kept:
            self._note(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read(run: os.PathLike[str] | str) -> list[dict[str, Any]]:
    """The decisions of a run in the order in which they were made; a line that a crash cut short is left out."""
    return [line for line in read_json_lines(Path(run) / FILE) if isinstance(line, dict) and "policy" in line]


def sentence(record: dict[str, Any]) -> str | None:
    """A decision as a line for the log; None where nothing changed."""
    before = record["before"]
    changed = [f"{k} {before.get(k, v):.4g} to {v:.4g}" for k, v in record["values"].items() if before.get(k) != v]
    if record["donor"] is None and not changed:
        return None
    p, objectives = record["policy"], record["objectives"]
    parts = [f"Population: policy {p}"]
    if record["rank"] is not None:
        parts.append(f"(place {record['rank'] + 1} of {len(objectives)}, objective {objectives[p]:.4g})")
    if record["donor"] is not None:
        parts.append(f"becomes a copy of policy {record['donor']} (objective {objectives[record['donor']]:.4g})")
        parts += ["and mutates:" if changed else "", ", ".join(changed)]
    else:
        parts += ["mutates:", ", ".join(changed)]
    return " ".join(part for part in parts if part)


def draw(run: os.PathLike[str] | str, size: int, path: os.PathLike[str] | str | None = None) -> Path:
    """Draw the objectives and the hyperparameters of all policies over their steps; an arrow from the donor's curve to the
    policy's shows each replacement. Returns the picture's path (population.png in the run folder).

    Raises `ConfigError` if the `plots` extra is not installed or there is nothing to draw.
    """
    lines = read(run) if (Path(run) / FILE).exists() else []
    if not lines:
        raise ConfigError(f"nothing to draw: no decision was made in {run}")
    names = sorted({name for line in lines for name in line["values"]})
    figure = new_figure((8, 2 + 2 * (1 + len(names))))
    axes = figure.subplots(1 + len(names), 1, sharex=True, squeeze=False)[:, 0]
    for p in range(size):
        own = [line for line in lines if line["policy"] == p]
        known = [(line["global_step"], line["objectives"][p]) for line in own if line["objectives"][p] is not None]
        axes[0].plot([x for x, _ in known], [y for _, y in known], ".-", color=f"C{p}", label=f"policy {p}")
        for line in own:
            if line["donor"] is not None:
                x = line["global_step"]
                axes[0].annotate(
                    "", (x, line["objectives"][p]), (x, line["objectives"][line["donor"]]),
                    arrowprops={"arrowstyle": "->", "color": f"C{line['donor']}", "alpha": 0.6},
                )  # fmt: skip
        for axis, name in zip(axes[1:], names, strict=True):
            known = [(line["global_step"], line[when]) for line in own for when in ("before", "values")]
            points = [(x, values[name]) for x, values in known if name in values]
            axis.plot([x for x, _ in points], [y for _, y in points], ".-", color=f"C{p}", drawstyle="steps-post")
    axes[0].set(ylabel="objective")
    axes[0].legend(fontsize="small", ncols=4)
    for axis, name in zip(axes[1:], names, strict=True):
        values = [line["values"][name] for line in lines if name in line["values"]]
        axis.set(ylabel=name, yscale="log" if min(values) > 0 else "linear")
    axes[-1].set(xlabel="steps of the policy")
    for axis in axes:
        axis.grid(alpha=0.3)
    picture = Path(path or Path(run) / PICTURE)
    figure.savefig(picture, dpi=120)
    return picture
