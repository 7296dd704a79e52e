"""What the scripts of learning/ share: they call `headrace compare`, and read the runs that it leaves.

The same command goes on where it was stopped, since an experiment's finished runs count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.experiments.plan import as_flags
from headrace.experiments.records import Run, find

HEADRACE = [sys.executable, "-m", "headrace.cli"]
WORLDS = ("--import", str(Path(__file__).parent / "learning" / "worlds.py"))


def headrace(*words: str) -> None:
    """Call the program. Raises `CalledProcessError`."""
    subprocess.run([*HEADRACE, *words], check=True)


def compare(folder: Path, env: str, budget: str, seeds: int, settings: Mapping[str, Any], *flags: str) -> list[Run]:
    """Train with so many seeds; the runs in the folder, by seed. `settings`: by dotted name."""
    words = ["compare", env, *as_flags({name: text(value) for name, value in settings.items()}), *flags]
    headrace(*words, "--budget", budget, "--seeds", str(seeds), "--folder", str(folder))
    return runs_of(folder)


def text(value: Any) -> str:
    """A setting's value as on the command line."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict | bool) else str(value)


def runs_of(folder: Path) -> list[Run]:
    """All runs in a folder, by seed."""
    return sorted(find([folder])[0], key=lambda run: run.seed)


def reached(goal: float, run: Run) -> tuple[int, float] | None:
    """Steps after which the mean of 100 training games was first at least `goal`, and minutes since the first metrics; None:
    never."""
    above = run.curve[run.curve[:, 1] >= goal, 0]
    return (int(above[0]), round(float(run.minutes_at(above[:1])[0] - run.clock[0, 1]), 2)) if len(above) else None


def draw(path: Path, title: str, axes_of: Sequence[str], arms: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> None:
    """Returns by arm over each axis (steps, seconds): `arms` has the curves of an arm for each axis, all in one colour. A curve
    with `low` and `high` has a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(axes_of), 3.5), layout="constrained")
    for a, axes in enumerate(figure.subplots(1, len(axes_of), squeeze=False)[0]):
        for i, (arm, curves) in enumerate(arms.items()):
            for j, curve in enumerate(curves[a]):
                axes.plot(curve[axes_of[a]], curve["returns"], color=f"C{i}", label=arm if j == 0 else None)
                if "low" in curve:
                    band = (curve["low"], curve["high"])
                    axes.fill_between(curve[axes_of[a]], *band, color=f"C{i}", alpha=0.2, linewidth=0)
        axes.set(xlabel=axes_of[a], ylabel="return of the last 100 episodes", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)
