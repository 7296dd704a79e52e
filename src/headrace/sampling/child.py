"""One child process of a run, as its supervisor knows it. Nothing here waits for the child."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace.runs.processes import start_child
from headrace.sampling.reports import report_pipe
from headrace.sampling.worker_process import Role, Start, run_child
from headrace.shm.segment import Segment

if TYPE_CHECKING:
    from headrace.sampling.placements.processes import ProcessPlacement

STACKS_BYTES = 1 << 16
"""Bytes for the Python stacks of one process."""
LOST_EXIT_CODE = 255
"""What multiprocessing says of a child whose fork server has died: it may be alive all the same."""
EXIT_CODE_TIMEOUT = 1.0
"""Seconds after a process's end in which its fork server tells the exit code; one that is stopped never does."""


class Child:
    """A process that runs `main`; started by the constructor.

    Raises OSError or EOFError where it cannot be started: the machine has no room for another process, or the fork server died.
    """

    def __init__(self, role: Role, index: int, main: Callable[[Start], None], argument: Any, placement: ProcessPlacement):
        self.role, self.index, self.main, self.argument = role, index, main, argument
        self.reports, there = report_pipe()
        self.stacks = Segment(STACKS_BYTES)
        """Where its Python stacks are written (see `Start`). Memory, not a file: nothing is left behind however the run ends."""
        self.started = perf_counter()
        self.error = ""
        """The traceback it reported before it ended."""
        self.done = False
        """It has reported that its work is done: its end is no failure."""
        self.reason = ""
        """Why the supervisor ends it; "" where it ends by itself."""
        self.asked: float | None = None
        """When it was asked for its stacks (perf_counter)."""
        self.killed: float | None = None
        """When it was killed (perf_counter)."""
        self.ended: float | None = None
        """When its end was noticed, since which what it held is being recovered."""
        self._without_code: float | None = None
        """When it was seen to have ended while its fork server had not told how."""
        start = Start(role, index, placement.restarts, placement, there, self.stacks, argument)
        try:
            self.process: BaseProcess = start_child(run_child, (main, start), f"headrace {role} {index}")
        except BaseException:
            self.reports.close()
            raise
        finally:
            there.close()
        self._pidfd = _pidfd(self.process.pid)

    @property
    def name(self) -> str:
        """As in log lines."""
        if self.role == "learner":
            return f"learner {self.index}" if self.index else "learner"
        return f"{self.role} worker {self.index}"

    @property
    def stack_text(self) -> str:
        """The Python stacks it wrote, if any."""
        return bytes(self.stacks.buffer).partition(b"\0")[0].decode(errors="replace")

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        known = self._pidfd is not None
        ended = known and bool(connection.wait([self._pidfd], 0))  # type: ignore[list-item]
        if self.process.is_alive():
            if ended and self._without_code is None:
                self._without_code = perf_counter()
            return self._without_code is not None and perf_counter() > self._without_code + EXIT_CODE_TIMEOUT
        if self.process.exitcode == LOST_EXIT_CODE and known and not ended:
            if not self.killed:  # nobody would learn how it ends
                self.kill("the fork server ended")
            return False
        return True

    @property
    def watched(self) -> list[Any]:
        """For `multiprocessing.connection.wait`: what becomes readable when there is something to look at."""
        reports: list[Any] = [] if self.reports.ended else [self.reports]
        # A process that was told to end, or has, is looked at often anyway; some can be readable for long before it is gone.
        if self.killed or self.ended:
            return reports
        ends = [self.process.sentinel] if self._pidfd is None or self._without_code else [self.process.sentinel, self._pidfd]
        return [*reports, *ends]

    @property
    def failure(self) -> str:
        """The error it reported, with its name; one line where the error is."""
        return f"{self.name} failed:{chr(10) if chr(10) in self.error.strip() else ' '}{self.error}"

    def end_reason(self) -> str:
        """What it died of, in a few words."""
        if self.reason:
            return self.reason
        if self.error:
            return self.error.strip().splitlines()[-1]
        code = self.process.exitcode
        if code is None or code == LOST_EXIT_CODE:
            return "nobody knows how: its fork server does not tell"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def ask_for_stacks(self) -> None:
        """Let it write the Python stacks of its threads, for `stack_text`; one that is stopped cannot."""
        self.asked = perf_counter()
        self._signal(signal.SIGUSR1)

    def kill(self, reason: str = "") -> None:
        """End it at once; `gone` says when it has ended."""
        self.killed = perf_counter()
        self.reason = self.reason or reason
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Release what is held here for it; it has ended, or will never run again."""
        self.reports.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if not self.process.is_alive():
            self.process.join()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.process.pid is not None:
                os.kill(self.process.pid, number)


def _pidfd(pid: int | None) -> int | None:
    """A descriptor that stands for the process, also when its number is another's; None where the kernel has none (before Linux
    5.3), or the process has ended already."""
    try:
        return os.pidfd_open(pid or 0)
    except OSError:
        return None
