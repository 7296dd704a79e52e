"""What a population leaves in the run folder, and pictures of it.

population.jsonl: decisions of population-based training. Each line is one decision about one policy: `policy`, its `global_step`
and `frames`, the number of the `decision`, the `objectives` of all policies then, its `rank` among them (0 is the best), the
`donor` whose weights it took over (or null) with the donor's `donor_step`, and its hyperparameters `before` and after (`values`).

standings.json: how the members of a multi-agent run do against each other. It has the `members` by name, for each its `elo`
rating and the `step` it was copied at (null for those that are no past versions), and the pay-off matrix: `score` (a win is 1, a
draw 1/2) and `games` of each against each.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import Config, ConfigError
from headrace.runs.files import AppendFile, read_json_lines, write_whole
from headrace.runs.plots import curve, new_figure

DECISIONS, STANDINGS = "population.jsonl", "standings.json"
NEWEST = 16
"""Number of a policy's newest decisions that its checkpoints hold as well: the process that writes the file may be killed before
it has read a learner's report."""
MOST_NUMBERS = 16  # most members for which the picture of the pay-off matrix shows numbers


class Records:
    """Writes population.jsonl and standings.json from the learners' reports. Lines of population.jsonl are only added; lines are
    removed only of steps that a resumed run repeats."""

    def __init__(self, config: Config) -> None:
        self._config, self._folder = config, config.run_folder
        self._file: AppendFile | None = None
        self._newest: dict[int, deque[dict[str, Any]]] = defaultdict(lambda: deque(maxlen=NEWEST))
        """By policy, its newest lines in the file."""

    def receive(self, kind: str, content: Any) -> Iterator[str]:
        """Take a report: a decision about a policy ("population"), or the standings ("standings"). Yields messages for the user,
        also where a disk is full."""
        if kind == "standings":
            try:
                write_whole(path := self._folder / STANDINGS, json.dumps(content, indent=1))
            except OSError as error:
                yield f"{path} cannot be written now ({error.strerror}). What is there is older"
        # A learner that goes on from a checkpoint reports its newest decisions again.
        elif kind == "population" and content not in self._newest[content["policy"]]:
            yield from filter(None, (self._append(content), sentence(content)))

    def _append(self, record: dict[str, Any]) -> str | None:
        """Add a line; returns a message for the user if the disk is full. A learner that died when it had decided and no
        checkpoint said so decides once more: the line replaces that one."""
        policy, decision = record["policy"], record["decision"]
        if (lines := self._newest[policy]) and decision <= lines[-1].get("decision", -1):
            with suppress(OSError):  # the older line stays, too
                self._keep(lambda line: line["policy"] != policy or line.get("decision", -1) < decision)
        self._newest[policy].append(record)
        return self._opened().append(json.dumps(record).encode() + b"\n")

    def _opened(self) -> AppendFile:
        self._file = self._file or AppendFile(self._folder / DECISIONS)
        return self._file

    def rewind(self, policy: int, step: int) -> None:
        """Remove later decisions of this policy, because its training is resumed from this global step, and earlier decisions to
        copy another policy where the copy had not been taken over yet."""
        if (self._folder / DECISIONS).exists():
            self._keep(lambda line: line["policy"] != policy or line.get("taken_at", line["global_step"]) <= step)

    def _keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Remove all other lines."""
        file = self._opened()
        kept = [line for line in file.lines() if _is_decision(line) and wanted(line)]
        file.keep_lines(lambda line: _is_decision(line) and wanted(line))
        self._newest.clear()
        for line in kept:
            self._newest[line["policy"]].append(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def draw(self) -> Iterator[str]:
        """Draw what there is, population.png and standings.png; yields messages for the user. Raises `ConfigError` if the `plots`
        extra is not installed."""
        if self._config.pbt.on and (self._folder / DECISIONS).exists():
            yield f"Population: {draw_decisions(self._folder, self._config.population.size)}"
        if (self._folder / STANDINGS).exists():
            yield f"Standings: {draw_standings(self._config)}"


def read_decisions(run: Path) -> list[dict[str, Any]]:
    """The decisions of a run in the order in which they were made, none for a run that ended before the first one. A line that a
    crash cut short is left out."""
    lines = read_json_lines(path) if (path := run / DECISIONS).exists() else ()
    return [line for line in lines if _is_decision(line)]


def _is_decision(line: Any) -> bool:
    return isinstance(line, dict) and "policy" in line


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


def draw_decisions(run: Path, size: int) -> Path:
    """Draw the objectives and the hyperparameters of all policies over their steps; an arrow from the donor's curve to the
    policy's shows each replacement. Returns the picture's path (population.png in the run folder).

    Raises `ConfigError` if the `plots` extra is not installed or there is nothing to draw.
    """
    lines = read_decisions(run)
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
    figure.savefig(picture := run / "population.png", dpi=120)
    return picture


def win_rates(table: dict[str, Any]) -> np.ndarray:
    """float64 [N, N]: the share of their games that the first won against the second, a draw being half a win; NaN where they
    have not played. `table`: what standings.json has."""
    score, games = np.array(table["score"], float), np.array(table["games"], float)
    return np.where(games > 0, score / np.maximum(games, 1), np.nan)  # type: ignore[no-any-return]


def draw_standings(config: Config) -> Path:
    """Draw the pay-off matrix and the Elo ratings of a run's policies over their steps, with past versions as points. Returns the
    picture's path (standings.png in the run folder).

    Raises `ConfigError` if the `plots` extra is not installed or nobody has played a match.
    """
    source = config.run_folder / STANDINGS
    if not source.exists():
        raise ConfigError(f"{config.run_folder} has no {STANDINGS}: nobody has played a match there")
    table = json.loads(source.read_text())
    figure = new_figure((12, 5))
    matrix, ratings = figure.subplots(1, 2)
    _draw_matrix(figure, matrix, table)
    for p in range(config.population.size):
        ratings.plot(*curve(config.policy_folder(p), "matches/elo"), color=f"C{p}", label=f"policy {p}")
    copies = [(step, elo) for step, elo in zip(table["step"], table["elo"], strict=True) if step is not None]
    if copies:
        ratings.plot(*zip(*copies, strict=True), "k.", label="past versions")
    ratings.set(xlabel="steps of the policy", ylabel="Elo rating")
    ratings.grid(alpha=0.3)
    ratings.legend(fontsize="small", ncols=2)
    figure.suptitle(config.env)
    figure.savefig(picture := source.with_suffix(".png"), dpi=100)
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
