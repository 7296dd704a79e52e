"""headrace report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli.options import parse
from headrace.config import ConfigError
from headrace.processes.output import show


@dataclasses.dataclass
class Report:
    """Make one HTML file of any runs and experiments, beside PNGs of its charts and a table of the runs as CSV.

    The file needs no network and no server. Runs that differ only in their seeds are shown as one configuration. Runs that are
    damaged or have learned nothing yet are left out, and named. Reports can be made while runs go on.
    """

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER...")]
    """Run folders, experiments, or folders that hold some."""
    out: Path | None = None
    """Folder of the report. None: `report` in the first folder."""
    reference: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="ENV=LOW:HIGH")] = ()
    """The scores of an environment that count as 0 and as 1, for example those of a random policy and of the best one known; may
    be given several times. Atari and DMLab-30 have the published scores of a random policy and of a human."""
    pictures: bool = True
    """Write the charts as PNGs too."""


def run(arguments: list[str]) -> int:
    asked: Report = parse(Report, "report", arguments)
    if not asked.folders:
        raise ConfigError("name at least one folder: headrace report runs/x")
    from headrace.experiments import report

    made = report.make(
        asked.folders, asked.out or asked.folders[0] / "report", dict(map(_reference, asked.reference)), asked.pictures
    )
    for path, reason in made.left_out:
        show(f"Left out: {path}: {reason}")
    size = made.page.stat().st_size / 1e6
    show(f"{made.page}: {made.runs} runs, {size:.1f} MB; beside it runs.csv and {len(made.files) - 2} pictures")
    return 0


def _reference(text: str) -> tuple[str, tuple[float, float]]:
    env, _, ends = text.rpartition("=")
    try:
        low, high = (float(part) for part in ends.split(":"))
    except ValueError:
        low = high = 0.0
    if not env or not low < high:
        raise ConfigError(f"--reference {text!r}: give it as ENV=LOW:HIGH, with LOW below HIGH")
    return env, (low, high)
