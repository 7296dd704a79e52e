"""Signals that ask for the end of a run: Ctrl-C, SIGTERM (service managers, `timeout`) and SIGHUP (a closed terminal)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Interrupt:
    """Whether somebody has asked for the end of the run."""

    requested: bool = False


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """The first signal only sets `requested`, so that the run ends between two updates with a checkpoint; a second one raises
    `KeyboardInterrupt`. Only Python's main thread may ask for signals; in another thread nothing changes."""
    interrupt = Interrupt()

    def handle(number: int, frame: object) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = [(number, signal.signal(number, handle)) for number in SIGNALS]
    try:
        yield interrupt
    finally:
        for number, old in before:
            signal.signal(number, old)
