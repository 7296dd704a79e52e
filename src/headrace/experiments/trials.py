"""The section of a report about a search: its trials, and what was tried in them. Needs no Optuna."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from headrace.config import ConfigError
from headrace.config.file_reading import Unreadable, read_json
from headrace.experiments import charts
from headrace.experiments.charts import rounded
from headrace.experiments.page import Chart, Section, Table
from headrace.experiments.records import find
from headrace.experiments.search import BEST, FILE, PRESET, TEST, TRIALS, TUNING_SEED

MOST_TRIALS = 200  # trials in the table, the best ones
SCORE, FRONT = "mean score of the seeds", "Pareto front"
OF_THE_FRONT = "No trial has both a higher score and fewer minutes than one on the Pareto front."
COMPARED = "The other charts and tables compare it with the defaults on seeds that the search never saw."
NOT_COMPARED = "The other charts and tables are of all trials, on the seeds of the search, on which the best one was chosen."


def searched(folder: Path) -> Section:
    """The trials of the search in a folder. Raises `ConfigError` where its files cannot be read."""
    try:
        trials = read_json(folder / TRIALS) if (folder / TRIALS).exists() else []
        best = read_json(folder / BEST)["about"] if (folder / BEST).exists() else None
        return _section(folder, read_json(folder / FILE), trials, best)
    except (Unreadable, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} holds no search that can be read: {error}") from error


def compared(folder: Path) -> Path:
    """The runs of a search that a report is about: those on unseen seeds, or where there are none, all of the trials."""
    return folder / TEST if find([folder / TEST])[0] else folder / "trials"


def _section(folder: Path, search: dict[str, Any], trials: list[dict[str, Any]], about: dict[str, Any] | None) -> Section:
    ended = [trial for trial in trials if trial["state"] == "complete"]
    early = sum(trial["state"] == "pruned" for trial in trials)
    timed = search["objectives"] == "score-and-minutes"
    text = (
        f"`{folder}`: {len(trials)} trials of {search['seeds']} seeds (from {TUNING_SEED}), budget {search['budget']} each; "
        f"{early} ended early. "
    )
    if about is None:
        return Section(f"Search: {folder.name}", [f"{text}None has ended by itself yet. {NOT_COMPARED}"])
    text += (
        f"Trial {about['trial']} has the highest score, {about['score']:.4g} on these seeds. "
        f"{COMPARED if compared(folder) == folder / TEST else NOT_COMPARED} "
        f"`{about.get('train') or 'headrace train ' + search['env']} --preset {shlex.quote(str(folder / BEST))}` trains with it, "
        f"`--preset {folder}/trials/N/{PRESET}` with trial N."
    )
    section = Section(f"Search: {folder.name}", [text])
    if timed:
        rows = [
            {"g": FRONT if trial["best"] else "other trials", "t": trial["number"], "x": rounded(trial["minutes"]),
             "y": rounded(trial["value"])}
            for trial in ended
        ]  # fmt: skip
        section.items.append(Chart(charts.scatter("Score and minutes", "mean minutes of the seeds", SCORE, rows), OF_THE_FRONT))
    for name in search["over"]:
        if rows := [
            {"g": "trials", "t": trial["number"], "x": trial["params"][name], "y": rounded(trial["value"])} for trial in ended
        ]:
            section.items.append(Chart(charts.scatter(f"Trials: {name}", name, SCORE, rows)))
    ranked = sorted(trials, key=lambda trial: (trial["value"] is None, -(trial["value"] or 0)))[:MOST_TRIALS]
    heads = ["trial", "state", "mean score", *(("mean minutes", "on the front") if timed else ()), "by seed"]
    table = []
    for trial in ranked:
        row = [str(trial["number"]), trial["state"], _shown(trial["value"])]
        row += [_shown(trial["minutes"]), "yes" if trial["best"] else ""] if timed else []
        row.append(", ".join(f"{score:.4g}" for score in trial["scores"]))
        table.append([*row, *(_shown(trial["params"].get(name)) for name in search["over"])])
    heads += [name.rpartition(".")[2].replace("_", " ") for name in search["over"]]
    section.items.append(Table(heads, table, "Trials, the best first. Trial 0 has the defaults where the ranges hold them."))
    return section


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
