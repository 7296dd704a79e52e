"""The reporter of a run: metrics and messages of all processes go to the metrics files, the dashboard and the log."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Any

import numpy as np
import psutil

from headrace.config import Config
from headrace.envs.contract import EnvSpec
from headrace.runs.dashboard import Dashboard
from headrace.runs.folder import RunFolder
from headrace.runs.metrics import MetricsWriter


class Reporter:
    """Receives the reports of the learner, adds rates and shares of time, and passes them to the files and the dashboard."""

    def __init__(self, config: Config, spec: EnvSpec, folder: RunFolder, phases: dict[str, tuple[str, ...]]):
        self._frameskip, self._folder, self._phases = spec.frameskip, folder, phases
        self._writer = MetricsWriter(folder.path, config)
        self._dashboard = Dashboard(config)
        self.global_step = 0
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._times: dict[str, np.ndarray] = {}

    def message(self, text: str) -> None:
        """Show a message on the dashboard and write it to the log."""
        self._folder.log(text)
        self._dashboard.message(text)

    def receive(self, kind: str, content: Any, times: dict[str, np.ndarray], restarts: int) -> None:
        """Receive one report.

        `kind` and `content`: "start", the global step at which training starts; "message", a text; "metrics", {key: value};
        "eval", {key: value} of an evaluation at an earlier step.
        `times`: for each part, the phase clocks of its workers, float64 [workers, phases + 2] (seconds).
        `restarts`: processes replaced so far.
        """
        if kind == "start":
            self._writer.rewind(content)
            return
        if kind == "message":
            self.message(content)
            return
        metrics: dict[str, float] = dict(content)
        if kind == "eval":
            self._write(metrics)
            self.message(f"Evaluation at step {metrics['global_step']:,.0f}: mean return {metrics['eval/episodic_return']:.2f}")
            return
        metrics |= self._rates(metrics["global_step"]) | self._shares(times)
        metrics["sampling/faults"] = float(restarts)
        metrics["system/cpu"] = psutil.cpu_percent() / 100  # since the call before
        self.global_step = int(metrics["global_step"])
        self._write(metrics)
        self._dashboard.update(metrics)

    def _write(self, metrics: dict[str, float]) -> None:
        if problem := self._writer.write(metrics):
            self.message(problem)

    def _rates(self, step: float) -> dict[str, float]:
        """Steps and frames per second in this interval, and steps per second since the start."""
        now = monotonic()
        first, last = self._first or (now, step), self._last or (now, step)
        self._first, self._last = first, (now, step)
        if now == first[0]:
            return {}
        interval = (step - last[1]) / (now - last[0])
        return {
            "charts/SPS": (step - first[1]) / (now - first[0]),
            "charts/SPS_interval": interval,
            "charts/FPS": interval * self._frameskip,
        }

    def _shares(self, times: dict[str, np.ndarray]) -> dict[str, float]:
        """The phases of each part in this interval, as shares of the time of all its workers."""
        result: dict[str, float] = {}
        for role, phases in self._phases.items():
            spent = times[role][:, : len(phases)].sum(0)
            before = self._times.get(role, np.zeros_like(spent))
            self._times[role] = spent
            if (total := float((spent - before).sum())) > 0:
                result |= {f"time/{role}/{p}": float(s) / total for p, s in zip(phases, spent - before, strict=True)}
        return result

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._folder.log(f"{type(error).__name__}: {error}")
        self._dashboard.close()
        self._writer.close()
