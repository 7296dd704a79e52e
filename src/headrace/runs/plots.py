"""Plots of the metrics of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError, package
from headrace.runs.metrics import CURVE, CURVE_KEYS, read_jsonl

RETURNS = "charts/episodic_return_100"


def curve(run: Path, key: str) -> tuple[list[float], list[float]]:
    """The global steps at which a metric was logged, and its values."""
    lines = [line for line in read_jsonl(run / "metrics.jsonl") if key in line]
    return [line["global_step"] for line in lines], [line[key] for line in lines]


def band(run: Path) -> tuple[list[float], ...]:
    """The run's learning curve: global steps, and of the last 100 episodes the mean return and the returns that a tenth of them
    are below and above. Empty for a run that has none."""
    path = run / CURVE
    lines = read_jsonl(path) if path.exists() else []
    return tuple([line[key] for line in lines] for key in ("global_step", *CURVE_KEYS))


def task_curves(run: Path, path: Path, tasks: Sequence[str]) -> None:
    """Draw the mean return of the last episodes of each task over `global_step`, one below the other since their returns are of
    different size. Raises `ConfigError` if the `plots` extra is not installed."""
    figure = new_figure((7, 1.8 * len(tasks)))
    panels = figure.subplots(len(tasks), sharex=True, squeeze=False)[:, 0]
    for panel, task in zip(panels, tasks, strict=True):
        panel.plot(*curve(run, f"tasks/{task}/episodic_return"))
        panel.set(ylabel="return")
        panel.set_title(task, fontsize="small", loc="left")
        panel.grid(alpha=0.3)
    panels[-1].set(xlabel="steps")
    figure.savefig(path, dpi=120)


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of so many inches. Raises `ConfigError` if the `plots` extra is not installed."""
    matplotlib = package("matplotlib.figure", "plots", "drawing needs a package that is not installed")
    return matplotlib.Figure(figsize=size, layout="constrained")


def learning_curve(runs: Sequence[Path], path: Path, *, title: str = "", goal: float | None = None) -> None:
    """Draw the returns of one or more runs over `global_step` into a PNG (or whatever the suffix of `path` says): the means of
    the last 100 episodes, with a band in which four fifths of these episodes are.

    Raises `ConfigError` if the `plots` extra is not installed or no run has logged returns.
    """
    figure = new_figure((7, 4))
    axes = figure.add_subplot()
    for run in runs:
        steps, means, low, high = band(run)
        points = (steps, means) if steps else curve(run, RETURNS)
        (line,) = axes.plot(*points, label=os.fsencode(run.name).decode(errors="replace"))
        if steps:
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    if not any(len(line.get_xdata()) for line in axes.lines):
        raise ConfigError(f"nothing to draw: {', '.join(map(str, runs))} logged no {RETURNS}")
    if goal is not None:
        axes.axhline(goal, color="grey", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(xlabel="steps", ylabel=RETURNS, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
