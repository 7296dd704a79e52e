"""For how long somebody has shown no sign of life, and a thread that watches another thread."""

from __future__ import annotations

import sys
import threading
import traceback
from abc import ABC, abstractmethod
from time import perf_counter

PAUSE = 5.0  # seconds between two looks after which this process must itself have been stopped (Ctrl-Z), and the others with it


class Silence:
    """Measures silences, without the time for which this process was itself stopped."""

    def __init__(self) -> None:
        self._looked = self._awake_since = perf_counter()

    def look(self) -> None:
        """Call it before `since`, at least every `PAUSE` seconds."""
        now = perf_counter()
        if now - self._looked > PAUSE:
            self._awake_since = now
        self._looked = now

    def since(self, last: float) -> float:
        """Seconds from `last` (perf_counter), or from where this process went on if that was later, to the last look."""
        return self._looked - max(last, self._awake_since)


class HangDetector(ABC):
    """Checks every `interval` seconds, in a thread of its own, whether the thread that called `start` still makes progress."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._watched = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang detector", daemon=True)

    @abstractmethod
    def last_sign(self) -> float | None:
        """When the watched thread last showed that it goes on (perf_counter); None while nothing is expected of it."""

    @abstractmethod
    def look(self, silent: float) -> None:
        """Called by the detector's thread: no sign for `silent` seconds."""

    def start(self) -> None:
        """Watch the calling thread until `stop`."""
        self._watched = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; without waiting for the detector's thread."""
        self._stopped.set()

    def _watch(self) -> None:
        silence = Silence()
        while not self._stopped.wait(self._interval):
            silence.look()
            if (last := self.last_sign()) is not None:
                self.look(silence.since(last))

    def stack(self) -> traceback.StackSummary | None:
        """Where the watched thread is; None: it has ended."""
        frame = sys._current_frames().get(self._watched)
        return None if frame is None else traceback.extract_stack(frame)
