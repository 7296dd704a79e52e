"""Signals that ask for the end of a run: Ctrl-C, SIGTERM (service managers, `timeout`) and SIGHUP (a closed terminal). Ctrl-Z
stops it until the shell continues it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from weakref import WeakSet

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_REQUEST = 0.5
"""Seconds within which several signals are one request: a wrapper may pass on what the process got from the terminal too."""


class Interrupted(KeyboardInterrupt):
    """Somebody has asked for the end of a command, or of a run for the second time."""


_stopped_too: WeakSet[subprocess.Popen[bytes]] = WeakSet()


def stops_with_this(process: subprocess.Popen[bytes]) -> None:
    """Have Ctrl-Z, which a terminal sends to its own session only, stop the session that `process` leads until this process goes
    on. Nothing changes outside Python's main thread, and where somebody has decided what Ctrl-Z does."""
    _stopped_too.add(process)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _stop_together)


def _stop_together(number: int, frame: object) -> None:
    groups = [process.pid for process in _stopped_too if process.poll() is None]
    _signal(groups, signal.SIGSTOP)  # SIGTSTP has no effect where no shell could continue them
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)  # returns when this process goes on; at once where no shell could continue it
    signal.signal(number, _stop_together)
    _signal(groups, signal.SIGCONT)


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def is_interrupt(error: BaseException) -> bool:
    """Whether somebody has interrupted this process, as Ctrl-C does. An environment can raise `KeyboardInterrupt`, too; that is
    told apart where no signal raises it: in other threads, in child processes and within `interrupts`."""
    if not isinstance(error, KeyboardInterrupt) or isinstance(error, Interrupted):
        return isinstance(error, Interrupted)
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def handled_signals() -> list[signal.Signals]:
    """The `SIGNALS` that this process does not ignore: `nohup` has it ignore SIGHUP, and a script that starts it in the
    background SIGINT."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` within the context after so many seconds, in Python code and in system calls. Nothing happens outside
    Python's main thread, which alone gets signals, and where another alarm comes sooner."""
    other, began = signal.getitimer(signal.ITIMER_REAL)[0], monotonic()
    if threading.current_thread() is not threading.main_thread() or 0 < other <= seconds:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"no end after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if other:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, other - (monotonic() - began)))


@dataclass
class Interrupt:
    """Whether somebody has asked for the end of the run."""

    on_request: Callable[[], None]
    requested: bool = False

    def request(self) -> None:
        self.requested = True
        self.on_request()


@contextmanager
def interrupts(on_request: Callable[[], None], signals: Collection[signal.Signals] = SIGNALS) -> Iterator[Interrupt]:
    """The first signal only sets `requested` and calls `on_request`, so that the run ends between two updates with a checkpoint.
    A second one raises `Interrupted`, unless it is SIGHUP or comes at once: when a terminal is closed, the kernel and the
    shell both send one. A signal that this process ignores stays ignored. Only Python's main thread may ask for signals; in
    another thread nothing changes."""
    interrupt = Interrupt(on_request)
    first = 0.0

    def handle(number: int, frame: object) -> None:
        nonlocal first
        if not interrupt.requested:
            first = monotonic()
            interrupt.request()
        elif number != signal.SIGHUP and monotonic() > first + SAME_REQUEST:
            raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = [(number, signal.signal(number, handle)) for number in handled_signals() if number in signals]
    try:
        yield interrupt
    finally:
        for number, old in before:
            signal.signal(number, old)


def as_ctrl_c() -> AbstractContextManager[Interrupt]:
    """Within the context SIGTERM and SIGHUP raise `KeyboardInterrupt`, as Ctrl-C does by itself."""

    def end() -> None:
        raise Interrupted

    return interrupts(end, (signal.SIGTERM, signal.SIGHUP))


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Raises `KeyboardInterrupt` after the context if somebody has asked for the end within it. Ctrl-C while torch is imported
    would abort the process: the exception cannot pass through its C++. Where Ctrl-C raises nothing, as within `interrupts` and
    in child processes, nothing changes."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    with interrupts(lambda: None) as interrupt:
        yield
    if interrupt.requested:
        raise KeyboardInterrupt
