"""What a run reports: metrics from all processes become rows in the files, the dashboard and the log."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from headrace.config import Config, policy_configs
from headrace.runs.dashboard import Dashboard
from headrace.runs.folder import FolderUnusable, RunFolder, explained
from headrace.runs.messages import Message
from headrace.runs.metrics import MetricsWriter
from headrace.shm.phases import PHASES


class Records(Protocol):
    """Files of a population in the run folder; see `headrace.population.records`."""

    def receive(self, kind: str, content: Any) -> Iterator[str]:
        """Take a report of any kind; yields messages for the user."""

    def rewind(self, policy: int, step: int) -> None:
        """Training of this policy goes on from this global step: later records are removed."""

    def close(self) -> None:
        """Close the files."""


class Reporter:
    """Takes the learners' reports, adds shares of time, and passes them to the files, the dashboard and the log.

    `frameskip`: simulator frames per step. `records` takes the reports about a population. With several policies each has its own
    metrics; the dashboard shows the first, and the returns of all.
    """

    def __init__(self, config: Config, frameskip: int, folder: RunFolder, records: Records):
        self._frameskip, self.folder, self._records = frameskip, folder, records
        with explained(folder.path):
            self._writers = [MetricsWriter(config.policy_folder(p), own) for p, own in enumerate(policy_configs(config))]
        self._dashboard = Dashboard(config)
        self._began: dict[int, int] = {}  # by policy, the global step at which training goes on
        self._steps: dict[int, int] = {}
        self._times: dict[tuple[int, str], np.ndarray] = {}

    @property
    def global_step(self) -> int:
        """Steps learned from so far, over all policies."""
        return sum(self._steps.values())

    @property
    def has_learned(self) -> bool:
        """Whether any policy has learned from a step since this process started or resumed the run."""
        return any(self._steps.get(policy, 0) > step for policy, step in self._began.items())

    def message(self, text: str) -> None:
        """A message for people: on the screen and in the log."""
        self.folder.log(text)
        self._dashboard.message(text)

    def receive(self, report: Message, times: dict[str, np.ndarray], restarts: int) -> None:
        """Take one report. `times`: the clocks of all workers by role, [workers, phases + 2]; `restarts`: processes replaced."""
        kind, policy = report.kind, report.policy
        if kind == "start":
            if policy == 0 and policy not in self._began:  # not where a learner is replaced
                self._dashboard.begun()
            self._began.setdefault(policy, report.content)
            with explained(self.folder.path):
                problem = self._writers[policy].rewind(report.content)
                self._records.rewind(policy, report.content)
                if policy == 0:
                    self._dashboard.curve(self._writers[0].curve(), anew=True)
            if problem:
                self.message(problem)
        elif kind == "message":
            self.message(report.content)
        elif kind == "done":
            self._steps[policy] = report.content["global_step"]
        elif kind == "eval":
            metrics = dict(report.content)
            self._write(metrics, policy)
            self.message(f"Evaluation at step {metrics['global_step']:,.0f}: mean return {metrics['eval/episodic_return']:.2f}")
        elif kind == "curve":
            if problem := self._writers[policy].write_curve(report.content):
                self.message(problem)
            if policy == 0:
                self._dashboard.curve(point[1] for point in report.content)
        elif kind == "metrics":
            self._metrics(dict(report.content), policy, times, restarts)
        elif kind in ("population", "standings"):
            for text in self._records.receive(kind, report.content):
                self.message(text)

    def _metrics(self, metrics: dict[str, float], policy: int, times: dict[str, np.ndarray], restarts: int) -> None:
        metrics |= self._shares(times, policy)
        if "charts/SPS_interval" in metrics:
            metrics["charts/FPS"] = metrics["charts/SPS_interval"] * self._frameskip
        metrics["sampling/faults"] = float(restarts)
        self._steps[policy] = int(metrics["global_step"])
        self._write(metrics, policy)
        if len(self._writers) > 1:
            self._dashboard.policy(policy, metrics)
        if policy == 0:
            self._dashboard.update(metrics)

    def _write(self, metrics: dict[str, float], policy: int) -> None:
        if problem := self._writers[policy].write(metrics):
            self.message(problem)

    def _shares(self, times: dict[str, np.ndarray], policy: int) -> dict[str, float]:
        """Each role's time in this interval by phase, as shares of all its workers' time."""
        result: dict[str, float] = {}
        for role, phases in PHASES.items():
            spent = times[role][:, : len(phases)].sum(0)
            before = self._times.get((policy, role), np.zeros_like(spent))
            self._times[policy, role] = spent
            if (total := float((spent - before).sum())) > 0:
                result |= {f"time/{role}/{p}": float(s) / total for p, s in zip(phases, spent - before, strict=True)}
        return result

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.folder.log("".join(traceback.format_exception(error)))
        self._dashboard.close()
        first_error_counts = suppress(FolderUnusable) if error is not None else nullcontext()
        with first_error_counts, explained(self.folder.path), ExitStack() as writers:
            writers.callback(self._records.close)
            for writer in self._writers:
                writers.callback(writer.close)
