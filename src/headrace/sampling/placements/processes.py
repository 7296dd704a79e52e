"""What `served` and `inline` have in common: workers and learners are processes under a supervisor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace.sampling.placements.base import Learn, Message, Placement
from headrace.sampling.rollout_worker import InlineAct, RolloutWorker
from headrace.sampling.seating import make_seating
from headrace.sampling.supervisor import Supervisor
from headrace.sampling.worker_process import Role, Start, environment_seed, make_group, matchmaking_seed, pin
from headrace.shm.primitives import Closed

Main = Callable[[Start], None]


class ProcessPlacement(Placement):
    """Itself an argument of every process it starts: there it is the learner's side of it, without the supervisor."""

    _supervisor: Supervisor | None = None

    @abstractmethod
    def workers(self) -> dict[Role, tuple[int, Main]]:
        """The workers beside the learners: how many of each role, and what they run."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_supervisor": None}

    def start(self, learn: Learn) -> None:
        """Start every process. The learners first: the others wait until these have their weights."""
        self._supervisor = Supervisor(self)
        self._supervisor.start("learner", self.memory.learners, learner_main, learn)
        for role, (count, main) in self.workers().items():
            self._supervisor.start(role, count, main)

    def messages(self, timeout: float) -> Iterator[Message]:
        """See `Placement.messages`; meanwhile the dead and the hung are replaced."""
        if self._supervisor is not None:
            yield from self._supervisor.messages(timeout)

    def stop(self) -> Iterator[Message]:
        """See `Placement.stop`."""
        if self._supervisor is not None:
            yield from self._supervisor.stop()

    def kill(self) -> None:
        """See `Placement.kill`."""
        if self._supervisor is not None:
            self._supervisor.kill()

    def batches(self, p: int, reported_envs: range) -> Any:
        """See `Placement.batches`."""
        from headrace.experience import make_experience

        return make_experience(self.configs[p], self.memory.policies[p], self.memory.control, reported_envs)


def learner_main(start: Start) -> None:
    """What a learner's process runs."""
    import torch

    from headrace.accelerator.memory import keep_freed_memory
    from headrace.accelerator.threads import LearnerThreads

    placement, p = start.placement, start.index
    config, control = placement.configs[p], placement.memory.control
    torch.set_num_threads(config.learner_threads)
    threads = LearnerThreads(config, lambda: (control.seconds("learner", "train", p), placement.version(p)))
    keep_freed_memory()
    for message in start.argument(placement, p):  # None after every round without a report
        if (change := threads.adapt()) is not None:
            start.report.send(Message("message", change, p))
        if message is not None:
            start.report.send(message)


def rollout_main(start: Start, act: InlineAct | None = None, seeded: Callable[[], None] = lambda: None) -> None:
    """What a rollout worker's process runs. `act`: its own policy; `seeded` is called when the learners are ready."""
    import os

    from headrace.envs.imports import import_files
    from headrace.runs.processes import forked_children_die_too

    forked_children_die_too()
    config, memory = start.placement.config, start.placement.memory
    os.nice(config.sampling.worker_niceness)
    pin(config, start.index)
    import_files(config.imports)
    seed = matchmaking_seed(config, start.index, start.restarts)
    seat = make_seating(start.index, memory, config, start.placement.spec, start.placement.crew, seed)
    worker = RolloutWorker(start.index, memory, partial(make_group, config, start.placement.spec), act, seat)
    memory.control.wait_until_ready()
    seeded()
    try:
        worker.start(environment_seed(config, start.index, start.restarts, start.placement.version(0)))
        worker.run()
    except Closed:
        pass
    finally:
        worker.close()
