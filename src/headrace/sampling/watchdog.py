"""A thread that warns the user when the supervisor of its process stops looking at the workers."""

from __future__ import annotations

import sys
from collections.abc import Callable

from headrace.processes.hangs import HangDetector
from headrace.shm.run_control import RunControl

LIMIT = 30.0
"""Seconds without a heartbeat of the supervisor after which the user is warned."""
INTERVAL = 1.0
"""Seconds between two checks."""


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Watchdog(HangDetector):
    """Warns the user, with the stack of the supervisor's thread, when the supervisor, or the caller that receives its messages,
    is blocked.

    Args:
        rescue: called while the supervisor is blocked. It ends the blocking call if it can, and returns a text that says so.
        show: prints a text. The watchdog's thread calls both functions, since the supervisor's thread is blocked.
    """

    def __init__(
        self,
        control: RunControl,
        rescue: Callable[[], str | None] = lambda: None,
        show: Callable[[str], None] = _print,
        limit: float = LIMIT,
        interval: float = INTERVAL,
    ):
        super().__init__(interval)
        self._control, self._rescue, self._show, self._limit = control, rescue, show, limit
        self._warned = False

    def last_sign(self) -> float:
        """The supervisor's heartbeat."""
        return self._control.supervisor_heartbeat

    def look(self, silent: float) -> None:
        """Warn once each time that the supervisor is blocked, and call `rescue` while it is."""
        if silent > self._limit and not self._warned:
            stack = "its thread has ended" if (frames := self.stack()) is None else "".join(frames.format())
            self._show(f"The supervisor has not looked at the processes for {silent:.0f} s. It is here:\n{stack}")
        elif silent < self._limit and self._warned:
            self._show("The supervisor goes on")
        self._warned = silent > self._limit
        if self._warned and (rescued := self._rescue()):
            self._show(rescued)
