"""Plots of the metrics of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.config import ConfigError
from headrace.runs.metrics import read_jsonl


def curve(run: os.PathLike[str] | str, key: str) -> tuple[list[float], list[float]]:
    """The global steps at which a metric was logged, and its values."""
    lines = [line for line in read_jsonl(Path(run) / "metrics.jsonl") if key in line]
    return [line["global_step"] for line in lines], [line[key] for line in lines]


def learning_curve(
    runs: Sequence[os.PathLike[str] | str],
    path: os.PathLike[str] | str,
    *,
    key: str = "charts/episodic_return_100",
    title: str = "",
    goal: float | None = None,
) -> None:
    """Draw one metric of one or more runs over `global_step` into a PNG (or whatever the suffix of `path` says).

    Raises `ConfigError` if the `plots` extra is not installed or no run has logged `key`.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError('drawing curves needs a package that is not installed: pip install "headrace[plots]"') from error
    curves = {str(run): curve(run, key) for run in runs}
    if not any(steps for steps, _ in curves.values()):
        raise ConfigError(f"nothing to draw: {', '.join(curves)} logged no {key}")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, (steps, values) in curves.items():
        axes.plot(steps, values, label=Path(name).name)
    if goal is not None:
        axes.axhline(goal, color="grey", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(xlabel="steps", ylabel=key, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
