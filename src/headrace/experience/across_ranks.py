"""The experience of ranks that learn one policy together: all of them learn at the same time, each from its own batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.accelerator.ranks import Ranks
from headrace.envs.core.contract import EnvSpec
from headrace.experience.batch import Arrivals, Batch, Experience, Filling


def across_ranks(own: Experience, ranks: Ranks, spec: EnvSpec) -> Experience:
    """The experience of one rank among others; of the only rank, its own."""
    return own if ranks.size == 1 else ExperienceAcrossRanks(own, ranks, spec)


class ExperienceAcrossRanks:
    """One rank's experience. A batch is given out when every rank has one. What arrived is counted over all ranks, so that
    counters, schedules and ends are the same everywhere; everything else is this rank's own."""

    def __init__(self, own: Experience, ranks: Ranks, spec: EnvSpec):
        self._own, self._ranks, self._tasks = own, ranks, len(spec.tasks)
        self._infos = len(spec.info_metrics)
        self._joined = ["returns", "lengths", *(["tasks"] if spec.tasks else []), *(["agents"] if spec.agents else [])]
        """What is known of every episode."""
        self._batch: Batch | None = None  # this rank's next batch, which waits until every other rank has one
        self.update_priorities, self.release, self.metrics = own.update_priorities, own.release, own.metrics
        self.save, self.get_state = own.save, own.get_state
        self.restore = own.restore if ranks.index == 0 else lambda folder, state: list[str]()  # rank 0 has saved its own

    def next(self, timeout: float | None = None) -> Batch | Filling | None:
        """See `Experience.next`. Every rank must call it equally often; `Filling` also where another rank has no batch yet.

        Raises `RankLost`.
        """
        got = self._own.next(timeout) if self._batch is None else None
        if isinstance(got, Batch):
            self._batch = got
        mine = Arrivals.sum([] if got is None else [got.arrivals])
        task_steps = np.pad(mine.task_steps, (0, self._tasks - len(mine.task_steps))).tolist()
        ready, steps, episodes, *task_steps = self._ranks.count(
            self._batch is not None, mine.steps, len(mine.returns), *task_steps
        )
        arrivals = Arrivals(steps, task_steps=np.array(task_steps, np.int64))
        for name in self._joined if episodes else ():
            setattr(arrivals, name, self._ranks.join(getattr(mine, name)))
        if episodes and self._infos:
            arrivals.infos = self._ranks.join(mine.infos.ravel()).reshape(-1, self._infos)
        if ready < self._ranks.size:
            return Filling(arrivals) if steps or episodes else None
        assert self._batch is not None
        batch, self._batch = self._batch, None
        return replace(batch, arrivals=arrivals)
