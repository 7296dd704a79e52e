"""What several ranks learn from together: every rank has batches of its own, and all learn at the same time or none does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headrace.accelerator.ranks import Ranks
from headrace.envs.contract import EnvSpec
from headrace.experience.batch import Arrivals, Batch, Experience, Filling


def joint(own: Experience, ranks: Ranks, spec: EnvSpec) -> Experience:
    """The experience of one rank among others; of the only rank, its own."""
    return own if ranks.size == 1 else JointExperience(own, ranks, spec)


class JointExperience:
    """One rank's experience. A batch is given out when every rank has one; what arrived is counted over all ranks, so that
    counters, schedules and ends are the same everywhere."""

    def __init__(self, own: Experience, ranks: Ranks, spec: EnvSpec):
        self._own, self._ranks, self._tasks, self._of_agents = own, ranks, len(spec.tasks), bool(spec.agents)
        self._batch: Batch | None = None
        """Of this rank, while others have none yet."""

    def next(self, timeout: float | None = None) -> Batch | Filling | None:
        """See `Experience.next`. Every rank must call it equally often; `Filling` also where another rank has no batch yet.

        Raises `RankLost`.
        """
        arrived: list[Arrivals] = []
        if self._batch is None:
            got = self._own.next(timeout)
            if got is not None:
                arrived.append(got.arrivals)
            if isinstance(got, Batch):
                self._batch = got
        mine = Arrivals.sum(arrived)
        of_tasks = np.pad(mine.task_steps, (0, self._tasks - len(mine.task_steps)))
        ready, steps, episodes, *task_steps = self._ranks.count(
            self._batch is not None, mine.steps, len(mine.returns), *of_tasks.tolist()
        )
        ended = (self._ranks.join(mine.returns), self._ranks.join(mine.lengths)) if episodes else (mine.returns, mine.lengths)
        arrivals = Arrivals(steps, *ended, task_steps=np.array(task_steps, np.int64))
        if self._tasks:
            arrivals.tasks = self._ranks.join(mine.tasks) if episodes else mine.tasks
        if self._of_agents:
            arrivals.agents = self._ranks.join(mine.agents) if episodes else mine.agents
        if ready < self._ranks.size:
            return Filling(arrivals) if steps or episodes else None
        assert self._batch is not None
        batch, self._batch = self._batch, None
        return replace(batch, arrivals=arrivals)

    def update_priorities(self, keys: Any, priorities: Tensor) -> None:
        """See `Experience.update_priorities`; of this rank's own batch."""
        self._own.update_priorities(keys, priorities)

    def release(self) -> None:
        """See `Experience.release`."""
        self._own.release()

    def metrics(self) -> dict[str, float]:
        """See `Experience.metrics`; of this rank."""
        return self._own.metrics()

    def save(self, folder: Path) -> None:
        """See `Experience.save`; of this rank."""
        self._own.save(folder)

    def get_state(self) -> dict[str, Any] | None:
        """See `Experience.get_state`; of this rank."""
        return self._own.get_state()

    def restore(self, folder: Path, state: Any) -> list[str]:
        """See `Experience.restore`. What rank 0 saved is rank 0's."""
        return self._own.restore(folder, state) if self._ranks.index == 0 else []
