"""What an experiment shows while it runs: a table in a terminal, one line per event elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import mean

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.experiments.plan import Budget, Plan
from headrace.experiments.runner import Progress
from headrace.processes.output import BackgroundOutput, never_waiting, show
from headrace.runs.dashboard import LAST_OUTPUT_TIMEOUT, number
from headrace.runs.plots import RETURNS


@contextmanager
def table(plan: Plan, parallel: int) -> Iterator[Callable[[list[Progress]], None]]:
    """Yields what shows the state of all runs, and neither waits for the terminal nor fails without it."""
    if not sys.stdout.isatty():
        yield _lines()
        return
    output = never_waiting(sys.stdout)
    with Live(console=Console(file=output), refresh_per_second=4) as live:
        yield lambda runs: live.update(_table(plan, runs, parallel))
    if isinstance(output, BackgroundOutput):
        output.drain(LAST_OUTPUT_TIMEOUT)


def _lines() -> Callable[[list[Progress]], None]:
    known: dict[str, str] = {}

    def shown(runs: list[Progress]) -> None:
        for one in runs:
            if known.get(one.run.name, "waiting") != one.state:
                score = f", return {number(one.metrics[RETURNS])}" if RETURNS in one.metrics and one.state == "done" else ""
                show(f"{one.state:8} {one.run.name}{score}")
            known[one.run.name] = one.state

    return shown


def _table(plan: Plan, runs: list[Progress], parallel: int) -> Table:
    done = sum(one.state == "done" for one in runs)
    shown = Table(title=f"{plan.env}: {done} of {len(runs)} runs done", caption=f"{_left(plan, runs, parallel)} · Ctrl-C stops")
    for head in ("configuration", "seeds done", "now", "steps/s", "return, mean", "of the seeds"):
        shown.add_column(head, justify="left" if head in ("configuration", "now") else "right")
    groups: dict[str, list[Progress]] = {}
    for one in runs:
        groups.setdefault(one.run.label, []).append(one)
    for label, group in groups.items():
        now = ", ".join(f"seed {one.run.seed} {share_done(plan.budget, one):.0%}" for one in group if one.state == "running")
        rest = ", ".join(f"seed {one.run.seed} {one.state}" for one in group if one.state in ("failed", "stopped"))
        rates = [one.metrics.get("charts/SPS_interval", 0.0) for one in group if one.state == "running"]
        scores = [one.metrics[RETURNS] for one in group if RETURNS in one.metrics]
        ended = sum(one.state == "done" for one in group)
        returns = number(mean(scores)) if scores else "", ", ".join(map(number, scores[:5]))
        shown.add_row(label, f"{ended} of {len(group)}", now or rest, f"{sum(rates):,.0f}" if rates else "", *returns)
    return shown


def share_done(text: str, one: Progress) -> float:
    """Share of its budget, which is written as for the command line, that a run has used."""
    budget = Budget.parse(text)
    if budget.steps is not None:
        return min(1.0, one.metrics.get("global_step", 0) / budget.steps)
    assert budget.minutes is not None
    return min(1.0, one.minutes / budget.minutes)


def _left(plan: Plan, runs: list[Progress], parallel: int) -> str:
    """About how long the rest takes: as long a run as the budget says, or as those that have run now took."""
    budget = Budget.parse(plan.budget)
    left = sum(1 - share_done(plan.budget, one) for one in runs if one.state in ("waiting", "running"))
    took = [one.minutes / share for one in runs if one.seconds and (share := share_done(plan.budget, one)) > 0.02]
    each = budget.minutes if budget.minutes is not None else mean(took) if took else None
    if each is None:
        return "time left unknown"
    return f"about {left * each / parallel:.0f} minutes left" if left * each / parallel >= 1 else "less than a minute left"
