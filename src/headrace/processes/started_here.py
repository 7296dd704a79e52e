"""Ends, with the run, the processes and programs that environments have started in the run's main process, where the placements
`serial` and `device` step them. (Those that were started in a worker end with the worker.)"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from typing import ClassVar

from headrace.processes.orphaned_programs import STARTED_BY, end_programs, mark_programs, origin
from headrace.processes.start import tie_forked


class StartedHere:
    """Records the processes and programs that this process starts within `noted`, and ends them."""

    _now: ClassVar[StartedHere | None] = None  # whose `noted` is under way
    _not_ended: ClassVar[list[StartedHere]] = []
    _hooked: ClassVar[bool] = False

    def __init__(self) -> None:
        self._pipe = os.pipe()  # a forked process holds the reading end, and is killed when this process closes the other
        self._inode = os.fstat(self._pipe[0]).st_ino
        StartedHere._not_ended.append(self)
        if not StartedHere._hooked:
            os.register_at_fork(after_in_child=_after_fork)
            StartedHere._hooked = True

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Environments run in this block: processes and programs that start in it belong to them, not to the user's own
        program."""
        before, others = os.environ.get(STARTED_BY), StartedHere._now
        mark_programs(origin())
        StartedHere._now = self
        try:
            yield
        finally:
            StartedHere._now = others
            if before is None:
                os.environ.pop(STARTED_BY, None)
            else:
                os.environ[STARTED_BY] = before

    def end(self) -> None:
        """End all of them."""
        StartedHere._not_ended.remove(self)
        for fd in self._pipe:
            with suppress(OSError):  # an environment may have closed it
                if os.fstat(fd).st_ino == self._inode:
                    os.close(fd)
        # An environment may have been the first to need a helper of multiprocessing, which serves the whole process.
        server, tracker = forkserver._forkserver, resource_tracker._resource_tracker  # type: ignore[attr-defined]
        helpers = (server._forkserver_pid, tracker._pid)  # type: ignore[attr-defined]
        end_programs(origin(), {os.getpid()}, [pid for pid in helpers if pid is not None])


def _after_fork() -> None:
    for each in [*StartedHere._not_ended]:
        if each is StartedHere._now:
            tie_forked(*each._pipe)
        else:  # of the user's own program: it must not keep the pipe open
            StartedHere._not_ended.remove(each)
            with suppress(OSError):
                os.close(each._pipe[1])
