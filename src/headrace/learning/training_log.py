"""Statistics of a learner between two reports, and its last episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from headrace.experience.batch import Arrivals
from headrace.learning.learner import Learner, Update
from headrace.learning.task_log import TaskLog

EPISODE_WINDOW = 100
"""Episodes in `charts/episodic_return_100`, which `run.goal` is compared with."""
CURVE_POINTS = 20
"""Largest number of points that an interval adds to the learning curve."""


class TrainingLog:
    """Statistics of the learner between two reports, and the last episodes. `tasks`: ids of the tasks, if there are several.
    `agents`: names of the agents of a match, if there are several."""

    def __init__(self, tasks: Sequence[str] = (), agents: Sequence[str] = ()) -> None:
        self.returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self.tasks = TaskLog(tasks, EPISODE_WINDOW) if tasks else None
        """Where the policy is trained on several."""
        self._sums: list[dict[str, torch.Tensor]] = []
        self._ended: list[tuple[float, int]] = []
        self._agents: dict[str, list[float]] = {agent: [] for agent in agents}
        """Returns of the episodes that have ended, by agent."""
        self._curve: list[tuple[int, float, float, float]] = []

    @property
    def mean_return(self) -> float:
        """Mean return of the last `EPISODE_WINDOW` episodes, NaN before the first. With several tasks: the mean of the tasks'
        mean returns, so that tasks with short episodes do not count more."""
        if self.tasks is not None:
            return self.tasks.mean_return
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def full(self) -> bool:
        """Whether `EPISODE_WINDOW` episodes have ended, with several tasks of each."""
        return len(self.returns) == EPISODE_WINDOW if self.tasks is None else self.tasks.full

    def add(self, arrivals: Arrivals, update: Update | None = None, step: int | None = None) -> None:
        """Add new experience and the update made with it, if any. `step`: the global step after it, for the learning curve."""
        if update is not None:
            self._sums.append(update.statistics)
        returns = arrivals.returns.tolist()
        self.returns.extend(returns)
        self._ended.extend(zip(returns, arrivals.lengths.tolist(), strict=True))
        if self._agents:
            names = [*self._agents]
            for agent, r in zip(arrivals.agents.tolist(), returns, strict=True):
                self._agents[names[agent]].append(r)
        if self.tasks is not None:
            self.tasks.add(arrivals)
        if step is not None and len(arrivals.returns):
            self._add_to_curve(step)

    def _add_to_curve(self, step: int) -> None:
        if self.tasks is not None:
            if not math.isnan(mean := self.mean_return):
                self._curve.append((step, mean, min(self.tasks.means), max(self.tasks.means)))
            return
        returns = sorted(self.returns)
        low, high = returns[len(returns) // 10], returns[-1 - len(returns) // 10]
        self._curve.append((step, sum(returns) / len(returns), low, high))

    def curve(self) -> list[tuple[int, float, float, float]]:
        """Points of the learning curve since the last call, at most `CURVE_POINTS`, evenly chosen, with the newest: global step,
        and of the last `EPISODE_WINDOW` episodes the mean return and the returns that a tenth of them are below and above. Of
        several tasks: `mean_return`, and the smallest and the largest mean return of a task."""
        points, self._curve = self._curve, []
        count = min(len(points), CURVE_POINTS)
        return [points[len(points) * (i + 1) // count - 1] for i in range(count)]

    def metrics(self, learner: Learner) -> dict[str, float]:
        """Everything since the last call, by metric name; starts a new interval."""
        p = learner.progress
        result = {
            "global_step": float(p.global_step),
            "charts/updates": float(p.updates),
            "charts/episodes": float(p.episodes),
            "charts/learning_rate": learner.learning_rate,
            "lag/masked": float(p.stale_steps),
        }
        for key in dict.fromkeys(key for statistics in self._sums for key in statistics):
            values = torch.stack([s[key] for s in self._sums if key in s])
            result[key] = float(values.min() if key == "lag/min" else values.max() if key == "lag/max" else values.mean())
        if self._ended:
            result["charts/episodic_return"] = float(np.mean([r for r, _ in self._ended]))
            result["charts/episodic_length"] = float(np.mean([n for _, n in self._ended]))
        if not math.isnan(self.mean_return):
            result["charts/episodic_return_100"] = self.mean_return
        if self.tasks is not None:
            result |= self.tasks.metrics()
        self._sums, self._ended = [], []
        return result | self.agent_means()

    def agent_means(self) -> dict[str, float]:
        """Mean return of the episodes of each agent since the last call, by metric name."""
        means = {f"agents/{agent}/episodic_return": float(np.mean(own)) for agent, own in self._agents.items() if own}
        for own in self._agents.values():
            own.clear()
        return means
