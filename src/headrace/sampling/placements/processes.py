"""What `served` and `inline` have in common: workers and learners are processes under a supervisor."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from headrace.envs.core.imports import import_files
from headrace.processes.start import preload
from headrace.runs.messages import Message
from headrace.sampling.match_worker import make_rollout_worker
from headrace.sampling.placements.base import Learn, Placement
from headrace.sampling.rollout_worker import InlineAct
from headrace.sampling.supervisor import Supervisor
from headrace.sampling.worker_process import Role, Start, environment_seed, pin
from headrace.shm.primitives import Closed

Main = Callable[[Start], None]


class ProcessPlacement(Placement):
    """Every process that it starts gets a copy of it without the supervisor, which replaces dead and hung processes."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        preload("headrace.train")  # learners and what acts need torch, whose import takes seconds: once for all
        self._supervisor = Supervisor(self)

    @abstractmethod
    def workers(self) -> dict[Role, tuple[range, Main]]:
        """The numbers of rollout and policy workers, and their main functions, by role."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_supervisor": None}

    def start(self, learn: Learn, main: Main | None = None) -> None:
        """Start every process; the learners first, since the others wait for their first weights. `main`: the main function of
        what takes the learners' place; None: learners."""
        self._supervisor.start("learner", range(self.memory.learners), main or learner_main, learn)
        for role, (indices, main) in self.workers().items():
            self._supervisor.start(role, indices, main)

    def messages(self, timeout: float) -> Iterator[Message]:
        return self._supervisor.messages(timeout)

    def stop(self) -> Iterator[Message]:
        return self._supervisor.stop()

    def kill(self) -> None:
        self._supervisor.kill()


def learner_main(start: Start) -> None:
    import torch

    from headrace.accelerator.cpu_allocator import keep_freed_memory
    from headrace.accelerator.threads import LearnerThreads
    from headrace.policies import pieces

    placement, p = start.placement, start.index
    config, control = placement.configs[p], placement.memory.control
    torch.set_num_threads(config.learner_threads)
    threads = LearnerThreads(config, lambda: (control.seconds("learner", "train", p), placement.version(p)))
    keep_freed_memory()
    pieces.divide()  # rollout workers hold the cores beside it
    for message in start.argument(placement, p):  # None: a round without a report
        if (change := threads.adapt()) is not None:
            start.report.send(Message("message", change, p))
        if message is not None:
            start.report.send(message)


def rollout_main(start: Start, act: InlineAct | None = None, seeded: Callable[[], None] = lambda: None) -> None:
    """The main function of a rollout worker. `act`: its own policy (inline); `seeded` is called when the learners are ready."""
    config, memory = start.placement.config, start.placement.memory
    os.nice(config.sampling.worker_niceness)
    pin(config, start.placement.rollout_workers.index(start.index))
    import_files(config.imports)
    worker = make_rollout_worker(start.placement, start.index, start.restarts, act)
    memory.control.wait_until_ready()
    seeded()
    try:
        worker.start(environment_seed(config, start.index, start.restarts, start.placement.version(0)))
        worker.run()
    except Closed:
        pass
    finally:
        worker.close()
