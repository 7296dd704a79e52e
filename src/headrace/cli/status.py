"""headrace status."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from headrace.cli.options import RunWord, parse
from headrace.config import Config, ConfigError, load, override
from headrace.experiments.plan import FILE as PLAN
from headrace.experiments.search import FILE as SEARCH
from headrace.processes.output import show
from headrace.runs.dashboard import Dashboard, duration
from headrace.runs.files import end_of
from headrace.runs.folder import NotRunning, training_process
from headrace.runs.metrics import CURVE, of_training, read_jsonl

LAST_LINES = 5  # lines of log.txt that are shown
LOG_BYTES = 1 << 16


@dataclasses.dataclass(kw_only=True)
class Status:
    """Show the dashboard of a running training as it is now, with a line for each sampling node of a cluster, and the last lines
    of its log. This reads the run folder, on the machine where the run trains; its terminal is not needed."""

    run: RunWord
    """Run folder."""


def run(arguments: list[str]) -> int:
    asked: Status = parse(Status, "status", arguments)
    pid = training_process(asked.run)
    if any((asked.run / name).exists() for name in (PLAN, SEARCH)):
        going = ", ".join(map(str, _going_on(asked.run))) or "none at this moment"
        raise ConfigError(f"{asked.run} holds an experiment, which goes on (process {pid}); name one of its runs: {going}")
    config = load(asked.run / "config.json")
    show(f"{asked.run}: process {pid} is training")
    try:
        _show(asked.run, override(config, **{"run.dashboard": False, "run.folder": str(asked.run)}))
    except OSError as error:
        raise ConfigError(f"{asked.run} cannot be read: {error.strerror}") from error
    return 0


def _going_on(experiment: Path) -> Iterator[Path]:
    """The runs of an experiment, or of the trials of a search, that are trained now."""
    for lock in sorted(experiment.glob("**/run.lock")):
        if (lock.parent / "config.json").exists():
            with suppress(NotRunning):
                training_process(lock.parent)
                yield lock.parent


def _show(folder: Path, config: Config) -> None:
    _ = config.device  # takes an import of torch, seconds in which training goes on
    metrics = _metrics(config, 0)
    with closing(Dashboard(config)) as dashboard:
        for p in range(config.population.size if config.population.size > 1 else 0):
            if own := _metrics(config, p):
                dashboard.policy(p, own[-1])
        if (path := config.policy_folder(0) / CURVE).exists():
            dashboard.curve(line["mean"] for line in read_jsonl(path) if "mean" in line)
        if metrics:
            age = duration(max(0.0, time.time() - metrics[-1].get("time", time.time())))
            dashboard.message(f"Metrics of {age} ago:")
            # The last interval of a run may be too short for a speed or a return.
            dashboard.picture({key: value for line in metrics[-2:] for key, value in line.items()})
        else:
            dashboard.message("No metrics yet.")
        for line in end_of(folder / "log.txt", LOG_BYTES).decode(errors="replace").splitlines()[-LAST_LINES:]:
            dashboard.message(line)


def _metrics(config: Config, policy: int) -> list[dict[str, float]]:
    path = config.policy_folder(policy) / "metrics.jsonl"
    return of_training(read_jsonl(path)) if path.exists() else []
