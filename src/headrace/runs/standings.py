"""How the members of a multi-agent run do against each other: standings.json in the run folder, and a picture of it.

The file has the `members` by name, and for each its `elo` rating, the `step` it was copied at (null for those that are no
copies), and the pay-off matrix: `score` (a win is 1, a draw 1/2) and `games` of each against each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.runs.files import write_whole
from headrace.runs.plots import curve, new_figure

FILE, PICTURE = "standings.json", "standings.png"
ELO = "matches/elo"
MOST_NUMBERS = 16
"""Members up to which every field of the matrix has its number written into it."""


def write(run: os.PathLike[str] | str, table: dict[str, Any]) -> str | None:
    """Replace the file; returns a message for the user where that is not possible now (a full disk)."""
    path = Path(run) / FILE
    try:
        write_whole(path, json.dumps(table, indent=1))
    except OSError as error:
        return f"{path} cannot be written now ({error.strerror}). What is there is older"
    return None


def read(run: os.PathLike[str] | str) -> dict[str, Any]:
    """The standings of a run. Raises `ConfigError` where it has none."""
    path = Path(run) / FILE
    if not path.exists():
        raise ConfigError(f"{run} has no {FILE}: nobody has played a match there")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def win_rates(table: dict[str, Any]) -> np.ndarray:
    """float64 [N, N]: the share of their games that the first won against the second, a draw being half a win; NaN where they
    have not played."""
    score, games = np.array(table["score"], float), np.array(table["games"], float)
    return np.where(games > 0, score / np.maximum(games, 1), np.nan)  # type: ignore[no-any-return]


def draw(
    run: os.PathLike[str] | str,
    policies: Sequence[os.PathLike[str] | str],
    path: os.PathLike[str] | str | None = None,
    title: str = "",
) -> Path:
    """Draw the pay-off matrix and the Elo ratings of all `policies` (their folders) over their steps, with past versions as
    points. Returns the picture's path (standings.png in the run folder).

    Raises `ConfigError` if the `plots` extra is not installed or there is nothing to draw.
    """
    table = read(run)
    figure = new_figure((12, 5))
    matrix, ratings = figure.subplots(1, 2)
    _draw_matrix(figure, matrix, table)
    for p, folder in enumerate(policies):
        ratings.plot(*curve(folder, ELO), color=f"C{p}", label=f"policy {p}")
    copies = [(step, elo) for step, elo in zip(table["step"], table["elo"], strict=True) if step is not None]
    if copies:
        ratings.plot(*zip(*copies, strict=True), "k.", label="past versions")
    ratings.set(xlabel="steps of the policy", ylabel="Elo rating")
    ratings.grid(alpha=0.3)
    ratings.legend(fontsize="small", ncols=2)
    figure.suptitle(title)
    picture = Path(path or Path(run) / PICTURE)
    figure.savefig(picture, dpi=100)
    return picture


def _draw_matrix(figure: Any, axes: Any, table: dict[str, Any]) -> None:
    """Rows are those who have played several others or are the first; whoever never learns has only played those that do."""
    rates, names = win_rates(table), [Path(name).name.replace(" at step ", " @ ") for name in table["members"]]
    rows = [i for i in range(len(names)) if i == 0 or (table["games"][i].count(0) < len(names) - 1 and table["step"][i] is None)]
    rates = rates[rows]
    image = axes.imshow(rates, cmap="RdBu", vmin=0, vmax=1, aspect="auto", interpolation="none")
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
    axes.set_yticks(range(len(rows)), [names[i] for i in rows], fontsize="small")
    axes.set(title="win rate of the row against the column (a draw is half a win)")
    for i, j in np.argwhere(~np.isnan(rates)) if len(names) <= MOST_NUMBERS else ():
        dark = abs(rates[i, j] - 0.5) > 0.35
        axes.text(j, i, f"{rates[i, j]:.2f}", ha="center", va="center", fontsize="x-small", color="white" if dark else "black")
    figure.colorbar(image, ax=axes, shrink=0.8)
