"""Statistics of the single tasks, where a policy is trained on several."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.envs.core.reference_scores import normalized
from headrace.experience.batch import Arrivals


class TaskLog:
    """Returns of the last episodes of each task, and each task's share of the samples.

    Args:
        tasks: their ids.
        window: number of last episodes per task that are averaged.
    """

    def __init__(self, tasks: Sequence[str], window: int) -> None:
        self.tasks, self._window = tuple(tasks), window
        self.returns: list[deque[float]] = [deque(maxlen=window) for _ in self.tasks]
        """Of the last episodes of each task."""
        self._steps = np.zeros(len(self.tasks), np.int64)

    @property
    def means(self) -> list[float]:
        """Mean return of the last episodes of each task; NaN before the first."""
        return [float(np.mean(returns)) if returns else math.nan for returns in self.returns]

    @property
    def mean_return(self) -> float:
        """Mean over all tasks of these means; NaN until every task has had an episode."""
        return float(np.mean(self.means))

    @property
    def full(self) -> bool:
        """Whether `window` episodes of every task have ended."""
        return all(len(returns) == self._window for returns in self.returns)

    def add(self, arrivals: Arrivals) -> None:
        """Count new experience."""
        self._steps[: len(arrivals.task_steps)] += arrivals.task_steps
        for task, episode_return in zip(arrivals.tasks.tolist(), arrivals.returns.tolist(), strict=True):
            self.returns[task].append(episode_return)

    def metrics(self) -> dict[str, float]:
        """By metric name, with the shares since the last call; see `task_metrics`."""
        means = dict(zip(self.tasks, self.means, strict=True))
        result = task_metrics({task: mean for task, mean in means.items() if not math.isnan(mean)}, len(self.tasks))
        if total := int(self._steps.sum()):
            result |= {f"tasks/{task}/share": int(n) / total for task, n in zip(self.tasks, self._steps, strict=True)}
        self._steps[:] = 0
        return result

    def get_state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {task: list(returns) for task, returns in zip(self.tasks, self.returns, strict=True)}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on from `get_state`."""
        for task, returns in zip(self.tasks, self.returns, strict=True):
            returns.clear()
            returns.extend(float(value) for value in state[task])


def task_metrics(means: Mapping[str, float], count: int, prefix: str = "") -> dict[str, float]:
    """Mean returns of tasks, and where they are known their human-normalised scores and, of all `count` tasks, the mean of the
    scores and the mean of the scores of at most 1, by metric name.

    The capped mean is the measure of Espeholt et al. 2018 (IMPALA), section 5.3, there in percent.
    """
    result = {f"{prefix}tasks/{task}/episodic_return": mean for task, mean in means.items()}
    scores = {task: score for task, mean in means.items() if (score := normalized(task, mean)) is not None}
    result |= {f"{prefix}tasks/{task}/score": score for task, score in scores.items()}
    if len(scores) == count:
        result[f"{prefix}tasks/mean_score"] = float(np.mean([*scores.values()]))
        result[f"{prefix}tasks/capped_mean_score"] = float(np.mean([min(1.0, score) for score in scores.values()]))
    return result
