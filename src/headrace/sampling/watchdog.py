"""Who watches the supervisor: a thread of the same process."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from time import perf_counter

from headrace.shm.run_control import RunControl

LIMIT = 30.0
"""Seconds without a heartbeat of the supervisor after which the user is warned."""
INTERVAL = 1.0
"""Seconds between two looks."""


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Watchdog:
    """Tells the user, with the stack of its thread, that the supervisor does not look at the processes any more: it, or who is
    given its messages, waits for something. Watches the thread that calls `start`, until `stop`.

    Args:
        rescue: is called while the supervisor stands still; ends what it waits for, if it can, and says so.
        show: is given the texts. Both are called in the watchdog's thread, since the supervisor's own is the one that waits.
    """

    def __init__(
        self,
        control: RunControl,
        rescue: Callable[[], str | None] = lambda: None,
        show: Callable[[str], None] = _print,
        limit: float = LIMIT,
        interval: float = INTERVAL,
    ):
        self._control, self._rescue, self._show, self._limit, self._interval = control, rescue, show, limit, interval
        self._stopped = threading.Event()
        self._watched = 0

    def start(self) -> None:
        """Begin."""
        self._watched = threading.get_ident()
        self._control.supervisor_lives()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """End; without waiting for the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        warned, looked = False, perf_counter()
        awake_since = looked
        while not self._stopped.wait(self._interval):
            now = perf_counter()
            if now - looked > self._interval + 5:  # the whole process was stopped (Ctrl-Z)
                awake_since = now
            looked = now
            silent = now - max(self._control.supervisor_heartbeat, awake_since)
            if silent > self._limit and not warned:
                self._show(f"The supervisor has not looked at the processes for {silent:.0f} s. It is here:\n{self._stack()}")
            elif silent < self._limit and warned:
                self._show("The supervisor goes on")
            warned = silent > self._limit
            if warned and (rescued := self._rescue()):
                self._show(rescued)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched)
        return "its thread has ended" if frame is None else "".join(traceback.format_stack(frame))
