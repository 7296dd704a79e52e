"""Statistics of a learner between two reports, its last episodes and those of single tasks; and whether training is to end."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import torch

from headrace.config import Config
from headrace.envs.core.reference_scores import normalized
from headrace.experience.batch import Arrivals
from headrace.learning.learner import Learner, Progress, Update

EPISODE_WINDOW = 100  # episodes in `charts/episodic_return_100`, which `run.goal` is compared with
REASONS = (None, "total_steps", "goal", "max_minutes", "no_samples", "interrupted")
"""Reasons to end training. If ranks have different reasons, all of them report the one that is last in this list."""
CURVE_POINTS = 20  # largest number of points that an interval adds to the learning curve


class TrainingLog:
    """Statistics of the learner between two reports, and the last episodes. `tasks`: ids of the tasks, if there are several.
    `agents`: names of the agents of a match, if there are several. `infos`: see `EnvSpec.info_metrics`."""

    def __init__(self, tasks: Sequence[str] = (), agents: Sequence[str] = (), infos: Sequence[str] = ()) -> None:
        self.returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self.tasks = TaskLog(tasks) if tasks else None  # where the policy is trained on several
        self.first_version = 0  # episodes that older weights ended do not count: they were another policy's
        self._statistics: list[dict[str, torch.Tensor]] = []
        self._names = ("return", "length", *infos)
        self._ended: list[tuple[float, ...]] = []  # of every episode the numbers of these names
        self._agents: dict[str, list[float]] = {agent: [] for agent in agents}
        """Returns of the episodes that have ended, by agent."""
        self._curve: list[tuple[int, float, float, float]] = []
        self._reported: list[tuple[float, int]] = []  # time and global step of the first report and of the newest with more steps

    @property
    def mean_return(self) -> float:
        """Mean return of the last `EPISODE_WINDOW` episodes, NaN before the first. With several tasks: the mean of the tasks'
        mean returns, so that tasks with short episodes do not count more."""
        return _mean(self.returns) if self.tasks is None else float(np.mean(self.tasks.means))

    @property
    def full(self) -> bool:
        """Whether `EPISODE_WINDOW` episodes have ended, with several tasks of each."""
        return all(len(returns) == EPISODE_WINDOW for returns in ([self.returns] if self.tasks is None else self.tasks.returns))

    def add(self, arrivals: Arrivals, update: Update | None = None, step: int | None = None) -> None:
        """Add new experience and the update made with it, if any. `step`: the global step after it, for the learning curve."""
        arrivals = arrivals.since(self.first_version)
        if update is not None:
            self._statistics.append(update.statistics)
        returns = arrivals.returns.tolist()
        self.returns.extend(returns)
        self._ended.extend(zip(returns, arrivals.lengths.tolist(), *arrivals.infos.T.tolist(), strict=True))
        if self._agents:
            names = [*self._agents]
            for agent, r in zip(arrivals.agents.tolist(), returns, strict=True):
                self._agents[names[agent]].append(r)
        if self.tasks is not None:
            self.tasks.add(arrivals)
        if step is not None and returns and not math.isnan(mean := self.mean_return):
            own = sorted(self.returns if self.tasks is None else self.tasks.means)
            outside = len(own) // 10 if self.tasks is None else 0
            self._curve.append((step, mean, own[outside], own[-1 - outside]))

    @property
    def episodes(self) -> list[dict[str, float]]:
        """Return, length and numbers for `envs.info_metrics` of the episodes since the last `metrics`, by name."""
        return [dict(zip(self._names, numbers, strict=True)) for numbers in self._ended]

    def curve(self) -> list[tuple[int, float, float, float]]:
        """Points of the learning curve since the last call, at most `CURVE_POINTS`, evenly chosen, with the newest: global step,
        and of the last `EPISODE_WINDOW` episodes the mean return and the returns that a tenth of them are below and above. Of
        several tasks: `mean_return`, and the smallest and the largest mean return of a task."""
        points, self._curve = self._curve, []
        count = min(len(points), CURVE_POINTS)
        return [points[len(points) * (i + 1) // count - 1] for i in range(count)]

    def get_state(self) -> dict[str, Any]:
        """The returns of the last episodes, for checkpoints and for policies that become a copy of this one."""
        return {"returns": list(self.returns), "task_returns": None if self.tasks is None else self.tasks.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        returns = [float(value) for value in state["returns"]]
        self.returns.clear()
        self.returns.extend(returns)
        if self.tasks is not None:
            self.tasks.set_state(state["task_returns"])

    def metrics(self, learner: Learner) -> dict[str, float]:
        """Everything since the last call, by metric name; starts a new interval. What depends on the time is measured here: the
        process that reads reports may be held up."""
        p = learner.progress
        result = {
            "time": time.time(),
            "system/cpu": psutil.cpu_percent() / 100,  # since the call before
            "global_step": float(p.global_step),
            "charts/updates": float(p.updates),
            "charts/episodes": float(p.episodes),
            "charts/learning_rate": learner.learning_rate,
            "lag/masked": float(p.stale_steps),
        }
        for key in dict.fromkeys(key for statistics in self._statistics for key in statistics):
            values = torch.stack([s[key] for s in self._statistics if key in s])
            result[key] = float(values.min() if key == "lag/min" else values.max() if key == "lag/max" else values.mean())
        if self._ended:
            returns, lengths, *infos = zip(*self._ended, strict=True)
            result |= {"charts/episodic_return": float(np.mean(returns)), "charts/episodic_length": float(np.mean(lengths))}
            means = {f"episode/{name}": known_mean(numbers) for name, numbers in zip(self._names[2:], infos, strict=True)}
            result |= {name: mean for name, mean in means.items() if not math.isnan(mean)}
        if not math.isnan(self.mean_return):
            result["charts/episodic_return_100"] = self.mean_return
        if self.tasks is not None:
            result |= self.tasks.metrics()
        self._statistics, self._ended = [], []
        learner.measure()
        return result | self._rates(p.global_step) | self.agent_means()

    def _rates(self, step: int) -> dict[str, float]:
        """Steps per second since the first report and since the last one with more steps; nothing if there was no step."""
        now = time.perf_counter()
        first, last = self._reported or [(now, step)] * 2
        self._reported = [first, last if step == last[1] else (now, step)]
        if step == last[1]:
            return {}
        return {
            "charts/SPS": (step - first[1]) / (now - first[0]),
            "charts/SPS_interval": (step - last[1]) / (now - last[0]),
        }

    def agent_means(self) -> dict[str, float]:
        """Mean return of the episodes of each agent since the last call, by metric name."""
        means = {f"agents/{agent}/episodic_return": _mean(own) for agent, own in self._agents.items() if own}
        for own in self._agents.values():
            own.clear()
        return means


def reason_to_stop(config: Config, progress: Progress, log: TrainingLog, seconds: float) -> str | None:
    """The reason to end this policy's training now, `seconds` after learning began; None to go on."""
    if progress.global_step >= config.learning.total_steps:
        return "total_steps"
    if config.run.goal is not None and log.full and log.mean_return >= config.run.goal:
        return "goal"
    if config.run.max_minutes is not None and seconds >= 60 * config.run.max_minutes:
        return "max_minutes"
    return None


def when_learning_begins(config: Config) -> str:
    """A line for the log of a run with a replay, which is filled first."""
    begins, total = f"Learning begins when the replay holds {config.replay.minimum:,} steps", config.learning.total_steps
    if total > config.replay.minimum:
        return begins
    return (
        f"{begins}, and this run ends after {total:,}: nothing will be learned. "
        f"Give more --learning.total-steps, or a smaller --replay.minimum"
    )


class TaskLog:
    """Returns of the last `EPISODE_WINDOW` episodes of each task, and each task's share of the samples. `tasks`: their ids."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks = tuple(tasks)
        self.returns: list[deque[float]] = [deque(maxlen=EPISODE_WINDOW) for _ in self.tasks]  # of the last episodes of each task
        self._steps = np.zeros(len(self.tasks), np.int64)

    @property
    def means(self) -> list[float]:
        """Mean return of the last episodes of each task; NaN before the first."""
        return [_mean(returns) for returns in self.returns]

    def add(self, arrivals: Arrivals) -> None:
        self._steps[: len(arrivals.task_steps)] += arrivals.task_steps
        for task, episode_return in zip(arrivals.tasks.tolist(), arrivals.returns.tolist(), strict=True):
            self.returns[task].append(episode_return)

    def metrics(self) -> dict[str, float]:
        """By metric name, with the shares since the last call; see `task_metrics`."""
        means = {task: mean for task, mean in zip(self.tasks, self.means, strict=True) if not math.isnan(mean)}
        result = task_metrics(means, len(self.tasks))
        if total := int(self._steps.sum()):
            result |= {f"tasks/{task}/share": int(n) / total for task, n in zip(self.tasks, self._steps, strict=True)}
        self._steps[:] = 0
        return result

    def get_state(self) -> dict[str, list[float]]:
        return {task: list(returns) for task, returns in zip(self.tasks, self.returns, strict=True)}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
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


def known_mean(numbers: Sequence[float]) -> float:
    """Mean of those that are not NaN, which stands for a number that is not known; NaN if there is none."""
    return _mean([x for x in numbers if not math.isnan(x)])


def _mean(returns: Sequence[float] | deque[float]) -> float:
    return float(np.mean(returns)) if returns else math.nan
