"""A child process: what it reports, its Python stacks, how it ended. Nothing waits for it but `receive`, `wait` and `end`."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from time import perf_counter
from typing import Any

from headrace.processes.orphaned_programs import end_programs, origin
from headrace.processes.reports import ReportWriter, report_pipe
from headrace.processes.start import die_with_parent, forked_children_die_too, start_child
from headrace.shm.segment import Segment

STACKS_BYTES = 1 << 16  # bytes for the Python stacks of one process
LOST_EXIT_CODE = 255  # what multiprocessing says of a child whose fork server has died: it may be alive all the same
EXIT_CODE_TIMEOUT = 1.0
"""Seconds after a process's end in which its fork server tells the exit code; one that is stopped never does."""
KILL_TIMEOUT = 10.0
"""Seconds after which a process that was killed and is still there is left to the kernel, which waits for a device or a disk."""
REST_OF_STACKS = 0.05  # seconds in which a process that writes its stacks has written them
END_TIMEOUT = 2.0  # seconds that `Child.end` waits for a process that it has killed, which the kernel may hold
POLL_INTERVAL = 0.002


def how_it_ended(exit_code: int) -> str:
    """In a few words, for a code as `subprocess` and `multiprocessing` give it."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    named = {number.value: number.name for number in signal.Signals}  # real-time signals have no names
    return f"killed by {named.get(-exit_code, f'signal {-exit_code}')}"


class Child:
    """A process that runs `main(report, *arguments)`; started by the constructor. `report` is a `ReportWriter`.

    It dies with this process, and what it forks dies with it. `top` and `ps` show `name`. Arguments are as for `start_child`.

    Raises OSError or EOFError where it cannot be started: the machine has no room for another process, or the fork server died.
    """

    def __init__(self, main: Callable[..., None], arguments: tuple[Any, ...], name: str, daemon: bool = True):
        self.reports, there = report_pipe()
        self._stacks = Segment(STACKS_BYTES)  # memory, not a file: nothing is left behind however the run ends
        self.started = perf_counter()
        self.reason = ""  # why this process ends it; "" where it ends by itself
        self.asked: float | None = None  # when it was asked for its stacks (perf_counter)
        self.killed: float | None = None  # when it was killed (perf_counter)
        self._without_code: float | None = None  # when it was seen to have ended while its fork server had not told how
        try:
            self.process = start_child(_run, (name, self._stacks, main, there, arguments), f"headrace {name}", daemon)
        except BaseException:
            self.reports.close()
            raise
        finally:
            there.close()
        self.pid: int = self.process.pid  # type: ignore[assignment]
        self._pidfd = _pidfd(self.pid)

    @property
    def stack_text(self) -> str:
        """The Python stacks it wrote, because it was asked to or because a fault of memory ended it."""
        return bytes(self._stacks.buffer).partition(b"\0")[0].decode(errors="replace")

    @property
    def gone(self) -> bool:
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
        if self.killed:  # it is looked at often anyway; its end can be readable for long before it is gone
            return reports
        ends = [self.process.sentinel] if self._pidfd is None or self._without_code else [self.process.sentinel, self._pidfd]
        return [*reports, *ends]

    def end_reason(self) -> str:
        """Why the process ended, in a few words."""
        code = self.process.exitcode
        if self.reason:
            return self.reason
        if code is None or code == LOST_EXIT_CODE:
            return "nobody knows how: its fork server does not tell"
        return how_it_ended(code)

    def receive(self, timeout: float) -> list[Any]:
        """Wait for reports, up to `timeout` seconds or until it can report no more. Raises `ValueError` for what is no report."""
        deadline = perf_counter() + timeout
        while not (reports := self.reports.read()) and not self.reports.ended and not self.gone:
            if (left := deadline - perf_counter()) <= 0:
                return []
            connection.wait(self.watched, left)
        return reports or self.reports.read()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end; whether it has ended."""
        deadline = perf_counter() + timeout
        while not (gone := self.gone) and perf_counter() < deadline:
            time.sleep(POLL_INTERVAL)
        return gone

    def ask_for_stacks(self) -> None:
        """Let it write the Python stacks of its threads, for `stack_text`; one that is stopped cannot."""
        self.asked = perf_counter()
        self._signal(signal.SIGUSR1)

    def stacks(self, timeout: float) -> str:
        """Ask for its Python stacks and wait for them, up to `timeout` seconds; "" where it does not answer."""
        self.ask_for_stacks()
        deadline = perf_counter() + timeout
        while not self.stack_text and perf_counter() < deadline:
            time.sleep(POLL_INTERVAL)
        time.sleep(REST_OF_STACKS)
        return self.stack_text

    def kill(self, reason: str = "") -> None:
        """End it at once; `gone` says when it has ended."""
        self.killed = perf_counter()
        self.reason = self.reason or reason
        self._signal(signal.SIGKILL)

    def end(self, timeout: float = 0.0) -> None:
        """Kill it unless it ends by itself within `timeout` seconds, end the programs that it has started, and release what is
        held here for it."""
        if not self.wait(timeout):
            self.kill()
            self.wait(END_TIMEOUT)
        end_programs(origin(), {self.pid})
        self.close()

    def close(self) -> None:
        """Release what this process holds for the child, which has ended or will never run again."""
        self.reports.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if not self.process.is_alive():
            self.process.join()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)


def _pidfd(pid: int) -> int | None:
    """A descriptor that stands for the process, also when its number is another's; None where the kernel has none (before Linux
    5.3), or the process has ended already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _run(name: str, stacks: Segment, main: Callable[..., None], report: ReportWriter, arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    forked_children_die_too()
    Path("/proc/self/comm").write_text(name)
    faulthandler.enable(stacks.fd)
    faulthandler.register(signal.SIGUSR1, stacks.fd)
    main(report, *arguments)
