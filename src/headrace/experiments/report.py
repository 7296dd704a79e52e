"""A report of any runs: scores with their intervals, time and speed, and settings.

Runs that differ only in their seeds are one configuration (`records.grouped`). A report reads only the run folders, so it can be
made while the runs go on.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config.errors import ConfigError
from headrace.envs.core.reference_scores import reference
from headrace.experiments import charts, laboratory, page, run_facts, statistics
from headrace.experiments.charts import Rows, rounded
from headrace.experiments.page import Chart, Section, Table
from headrace.experiments.plan import FILE, Plan
from headrace.experiments.records import Group, NotReadable, Run, envs_of, find, folders_with, grouped, pairs
from headrace.experiments.runner import ENDED
from headrace.experiments.search import FILE as SEARCH
from headrace.experiments.trials import compared, searched
from headrace.runs.files import write_whole

POINTS = 12_000  # points of the curves of all single runs in one chart, which share them
MOST_POINTS, LEAST_POINTS = 200, 30
GRID = 100  # points of a mean curve and of a profile
RETURN = "return of the last 100 episodes"

References = Mapping[str, tuple[float, float]]  # environment: the scores that count as 0 and as 1


@dataclass(frozen=True)
class Made:
    """A report that was written: its page, all its files, and the run folders that were left out."""

    page: Path
    files: list[Path]
    runs: int
    left_out: list[tuple[Path, str]]


def make(folders: Sequence[Path], out: Path, references: References | None = None, pictures: bool = True) -> Made:
    """Write report.html, runs.csv and, with `pictures`, one PNG per chart into `out`.

    Raises `NotReadable` where no folder holds a run that can be shown, `ConfigError` without the extra `lab`, `OSError`.
    """
    searches = folders_with(SEARCH, folders)
    runs, left_out = find(folders, {folder: compared(folder) for folder in searches})
    if not runs:
        reasons = "\n".join(f"  {path}: {reason}" for path, reason in left_out)
        raise NotReadable(f"there is nothing to report:\n{reasons}")
    page.renderer()
    shown = grouped(runs)
    known = dict(references or {})
    sections = [
        _overview(folders, shown, left_out), *map(searched, searches), _curves(shown), _final(shown, known),
        _aggregates(shown, known), *run_facts.ratings(shown), run_facts.speed(shown), *laboratory.sections(shown),
        run_facts.settings(runs), run_facts.machines(runs), run_facts.commands(runs), *run_facts.videos(runs),
    ]  # fmt: skip
    sections = [section for section in sections if section.items]
    out.mkdir(parents=True, exist_ok=True)
    envs = list(dict.fromkeys(run.env for run in runs))
    title = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {', '.join(envs[:3])}{' and others' if len(envs) > 3 else ''}"
    page.write(html := out / "report.html", title, INTRODUCTION, sections)
    write_whole(table := out / "runs.csv", _csv(shown, known))
    drawn = page.write_pictures(out / "pictures", sections) if pictures else []
    return Made(html, [html, table, *drawn], len(runs), left_out)


INTRODUCTION = (
    "Charts show values beside the pointer. With Shift, the wheel zooms and dragging moves; a double click goes back. "
    "A click on a configuration in a legend makes the others pale. The menu of a chart saves it as SVG or PNG.",
)


# -- sections ---------------------------------------------------------------------------------------------------------------


FEW_SEEDS = 5
FEW = f" Intervals of fewer than {FEW_SEEDS} seeds are too narrow: train more seeds before you rely on a difference."


def _overview(folders: Sequence[Path], groups: Sequence[Group], left_out: Sequence[tuple[Path, str]]) -> Section:
    section = Section("Overview")
    for folder in folders:
        if os.path.lexists(folder / FILE):
            try:
                plan = Plan.read(folder)
            except ConfigError as error:  # the runs can be read without it
                left_out = [*left_out, (folder / FILE, str(error))]
                continue
            planned = list(plan.runs())
            left = [run.name for run in planned if not (folder / "runs" / run.name / ENDED).exists()]
            done = f"{len(planned) - len(left)} of {len(planned)} planned runs have ended; budget of each: {plan.budget}."
            others = ", ".join(left[:10]) + ", ..." * (len(left) > 10)
            so_far = f" What is shown of the others is what they have reached so far: {others}." if left else ""
            section.items.append(f"`{folder}`: {done}{so_far}")
    rows = []
    caption = f"The final score is the mean {RETURN}, at the end of a run."
    for group in groups:
        for env in envs_of([group]):
            runs = group.of(env)
            minutes = "{:.1f}" if any(run.minutes >= 1 for run in runs) else "{:.2g}"
            if 1 < len(runs) < FEW_SEEDS and FEW not in caption:
                caption += FEW
            rows.append((
                group.label, env, str(len(runs)), _range([run.steps for run in runs], "{:,.0f}"),
                _range([run.minutes for run in runs], minutes), _mean(group.scores(env)),
            ))  # fmt: skip
    heads = ("configuration", "environment", "seeds", "steps", "minutes", "final score, mean (95 %)")
    section.items.append(Table(heads, rows, caption))
    if left_out:
        named = [(f"`{path}`", reason) for path, reason in left_out]
        section.items.append(Table(("left out", "why"), named, "What could not be used"))
    return section


def _curves(groups: Sequence[Group]) -> Section:
    section = Section("Learning curves")
    names = [group.label for group in groups]
    total = sum(len(group.runs) for group in groups)
    points = max(LEAST_POINTS, min(MOST_POINTS, POINTS // total))
    several = "Thick: mean of the seeds, with a 95 % bootstrap band over them, as far as all seeds reach. Thin: single runs."
    for env in envs_of(groups):
        for x, along in (("steps", lambda run: run.curve[:, 0]), ("minutes", lambda run: run.minutes_at(run.curve[:, 0]))):
            means, single = _curve_rows([(group.label, group.of(env)) for group in groups], along, points)
            if single:
                caption = several if x == "steps" else f"{several} Minutes of training, without pauses between two starts."
                section.items.append(Chart(charts.curves(f"{env} by {x}", x, RETURN, names, means, single), caption))
    return section


def _curve_rows(groups: Sequence[tuple[str, list[Run]]], along: Callable[[Run], np.ndarray], points: int) -> tuple[Rows, Rows]:
    """The rows of `charts.curves`. `along`: the horizontal axis of a run's curve, float64 [n]."""
    means: Rows = []
    single: Rows = []
    for label, runs in groups:
        known = [(x, run.curve[:, 1]) for run in runs if np.isfinite(x := along(run)).all()]
        for x, y in known:
            number = single[-1]["r"] + 1 if single else 0
            kept = np.unique(np.linspace(0, len(x) - 1, min(points, len(x))).round().astype(int))
            single += [{"g": label, "r": number, "x": rounded(a), "y": rounded(b)} for a, b in zip(x[kept], y[kept], strict=True)]
        if known and (low := max(x[0] for x, _ in known)) < (high := min(x[-1] for x, _ in known)):
            grid = np.linspace(low, high, GRID)
            values = np.stack([np.interp(grid, x, y) for x, y in known], axis=1)
            ends = statistics.band(values)
            means += [
                {"g": label, "x": rounded(x), "y": rounded(y), **charts.ends(a, b)}
                for x, y, a, b in zip(grid, values.mean(1), *ends, strict=True)
            ]
    return means, single


def _final(groups: Sequence[Group], references: References) -> Section:
    section = Section("Final scores")
    names = [group.label for group in groups]
    for env in envs_of(groups):
        own = [(group.label, group.scores(env)) for group in groups if len(group.scores(env))]
        means = [_with_interval(label, statistics.mean, [scores])[0] for label, scores in own]
        single = [{"g": label, "x": rounded(score)} for label, scores in own for score in scores]
        caption = "Large: mean of the seeds, with its 95 % bootstrap interval. Small: single runs."
        section.items.append(Chart(charts.points(f"{env}, final score", RETURN, names, means, single), caption))
    rows = []
    for group in groups:
        for env in envs_of([group]):
            scores = group.scores(env)
            scale = _scale(env, references)
            human = _mean(_scaled(scores, scale)) if scale else ""
            numbers = [_mean(scores), *(f"{x:.4g}" for x in (np.median(scores), scores.min(), scores.max()))]
            rows.append((group.label, env, str(len(scores)), *numbers, human))
    heads = ("configuration", "environment", "seeds", "mean (95 %)", "median", "least", "most", "normalised (95 %)")
    section.items.append(Table(heads, rows))
    if any(reference(env) for env in envs_of(groups)):
        section.items.append(NORMALISED)
    return section


NORMALISED = (
    "Normalised: (score - random) / (human - random). Atari: the published returns of Wang et al. 2016 (Dueling networks, "
    "table 2), as in DeepMind's DQN Zoo; DMLab: Espeholt et al. 2018 (IMPALA), table B.1. They were measured on whole games "
    "that begin with up to 30 no-ops; these are games of training, in which the policy still explores."
)


def _scale(env: str, references: References) -> tuple[float, float] | None:
    """The returns of random play and of a human: those given to the report, else published ones."""
    return references.get(env) or reference(env)


def _aggregates(groups: Sequence[Group], references: References) -> Section:
    section = Section("Over all runs and environments")
    common = [env for env in envs_of(groups) if all(group.of(env) for group in groups)]
    if not common:
        return Section(section.title, ["No environment has runs of every configuration, so there is nothing to aggregate."])
    scales = {env: _scale(env, references) for env in common}
    known, what = all(scales.values()), "normalised score"
    if not known and len(common) == 1:
        scales, what = {common[0]: (0.0, 1.0)}, "score"
    elif not known:
        every = {env: np.concatenate([group.scores(env) for group in groups]) for env in common}
        scales = {env: (float(own.min()), float(max(own.max(), own.min() + 1e-9))) for env, own in every.items()}
    of = {group.label: [_scaled(group.scores(env), scales[env]) for env in common] for group in groups}
    section.items.append(_about(common, what, known))
    names = [group.label for group in groups]
    table: list[list[str]] = [[name] for name in names]
    aggregates = {name: s for name, s in statistics.AGGREGATES.items() if known or name != "optimality gap"}
    if common == list(statistics.ATARI_5) and not references.keys() & common:
        aggregates["median of 57 games (Atari-5)"] = statistics.atari_5
    for name, statistic in aggregates.items():
        rows = []
        for line, (label, tasks) in zip(table, of.items(), strict=True):
            row, text = _with_interval(label, statistic, tasks)
            rows.append(row)
            line.append(text)
        section.items.append(Chart(charts.points(f"{name[0].upper()}{name[1:]}", f"{what}, {name}", names, rows)))
    section.items.insert(1, Table(("configuration", *aggregates), table, "With 95 % stratified bootstrap intervals"))
    section.items += [_profile(of, what), *_improvement(of)]
    return section


def _scaled(scores: np.ndarray, scale: tuple[float, float] | None) -> np.ndarray:
    """Scores for which the ends of the scale are 0 and 1."""
    assert scale is not None
    return (scores - scale[0]) / (scale[1] - scale[0])


def _about(common: Sequence[str], what: str, known: bool) -> str:
    scale = "There are no reference scores for all of them, so 0 and 1 are the least and the largest score of this report."
    if known:
        scale = "Scores are normalised with published or given references."
    elif what == "score":
        scale = "Scores are returns; `--reference` normalises them, and adds the optimality gap."
    names = ", ".join(common[:6]) + (f" and {len(common) - 6} more" if len(common) > 6 else "")
    return (
        f"Environments: {names}. {scale} Definitions and intervals: Agarwal et al. 2021 (rliable), {statistics.RESAMPLES:,} "
        "resamples of the runs of each environment."
    )


def _profile(of: Mapping[str, list[np.ndarray]], what: str) -> Chart:
    every = np.concatenate([scores for tasks in of.values() for scores in tasks])
    span = (every.max() - every.min()) or 1.0
    levels = np.linspace(every.min() - 0.02 * span, every.max() + 0.02 * span, GRID)
    rows: Rows = []
    for label, tasks in of.items():
        statistic = statistics.profile(levels)
        ends = statistics.interval(statistic, tasks)
        rows += [
            {"g": label, "x": rounded(x), "y": rounded(y), **charts.ends(a, b)}
            for x, y, a, b in zip(levels, statistic(*tasks), *ends, strict=True)
        ]
    caption = "How many runs score more than the level below, with 95 % bands. A curve above another is better at every level."
    return Chart(charts.curves("Performance profiles", what, "share of runs above", list(of), rows, []), caption)


def _improvement(of: Mapping[str, list[np.ndarray]]) -> list[Chart | Table | str | page.Video]:
    rows, table = [], []
    for x, y in pairs(sorted(of, key=lambda label: -float(statistics.mean(*of[label])))):
        row, text = _with_interval(f"{x} > {y}", statistics.probability_of_improvement, [*of[x], *of[y]])
        rows.append(row)
        table.append((x, y, text))
    if not rows:
        return []
    names = [f"{x} > {y}" for x, y, _ in table]
    caption = "How probable it is that a run of the first configuration scores more than one of the second. 0.5: no difference."
    chart = Chart(charts.points("Probability of improvement", "probability", names, rows, zero=0.5), caption)
    return [chart, Table(("a run of", "is better than one of", "probability (95 %)"), table)]


# -- numbers as text ------------------------------------------------------------------------------------------------


def _with_interval(label: str, statistic: statistics.Statistic, tasks: Sequence[np.ndarray]) -> tuple[dict[str, Any], str]:
    """A statistic with its interval: a row of `charts.points`, and text."""
    value, (low, high) = float(statistic(*tasks)), statistics.interval(statistic, tasks)
    text = f"{value:.4g}" if math.isnan(low) else f"{value:.4g} ({low:.4g} to {high:.4g})"
    return {"g": label, "x": rounded(value), **charts.ends(low, high)}, text


def _mean(scores: np.ndarray) -> str:
    return _with_interval("", statistics.mean, [scores])[1]


def _range(values: Sequence[float], form: str) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "unknown"
    low, high = form.format(min(known)), form.format(max(known))
    return low if low == high else f"{low} to {high}"


def _csv(groups: Sequence[Group], references: References) -> str:
    """One line per run."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("environment", "configuration", "seed", "policy", "steps", "minutes", "score", "normalised_score",
                   "steps_per_second", "folder"))  # fmt: skip
    for label, run in ((group.label, run) for group in groups for run in group.runs):
        scale = _scale(run.env, references)
        human = (run.score - scale[0]) / (scale[1] - scale[0]) if scale else math.nan
        values = (run.minutes, run.score, human, run.steps_per_second)
        known = ["" if math.isnan(value) else round(value, 6) for value in values]
        rows.writerow((run.env, label, run.seed, "" if run.policy is None else run.policy, run.steps, *known, run.path))
    return text.getvalue()
