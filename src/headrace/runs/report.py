"""What a run tells: metrics from all processes become rows in the files, the dashboard and the log."""

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
    """Takes what the learner reports, adds rates and shares of time, and passes it to everything that shows it."""

    def __init__(self, config: Config, spec: EnvSpec, folder: RunFolder, phases: dict[str, tuple[str, ...]]):
        self._frameskip, self._folder, self._phases = spec.frameskip, folder, phases
        self._writer = MetricsWriter(folder.path, config)
        self._dashboard = Dashboard(config)
        self.global_step = 0
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None
        self._times: dict[str, np.ndarray] = {}

    def say(self, text: str) -> None:
        """A message for people: on the screen and in the log."""
        self._folder.log(text)
        self._dashboard.message(text)

    def receive(self, kind: str, content: Any, times: dict[str, np.ndarray], restarts: int) -> None:
        """Take one report.

        ("start", global step that the run goes on from), ("message", text), ("metrics", {name: value}) or
        ("eval", {name: value}) of an earlier step.
        `times`: the clocks of all workers, [workers, phases + 2].
        """
        if kind == "start":
            self._writer.rewind(content)
            return
        if kind == "message":
            self.say(content)
            return
        metrics: dict[str, float] = dict(content)
        if kind == "eval":
            self._write(metrics)
            self.say(f"Evaluation at step {metrics['global_step']:,.0f}: mean return {metrics['eval/episodic_return']:.2f}")
            return
        metrics |= self._rates(metrics["global_step"]) | self._shares(times)
        metrics["sampling/faults"] = float(restarts)
        metrics["system/cpu"] = psutil.cpu_percent() / 100  # since the call before
        self.global_step = int(metrics["global_step"])
        self._write(metrics)
        self._dashboard.update(metrics)

    def _write(self, metrics: dict[str, float]) -> None:
        if problem := self._writer.write(metrics):
            self.say(problem)

    def _rates(self, step: float) -> dict[str, float]:
        """Steps and frames per second, of this interval and since the start."""
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
        """Each role's time in this interval by phase, as shares of all its workers' time."""
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
