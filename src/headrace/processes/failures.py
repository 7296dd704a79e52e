"""How many failed processes a run replaces: `sampling.max_restarts` within `sampling.restart_window` seconds."""

from __future__ import annotations

from collections import deque

from headrace.config import SamplingConfig


class Failures:
    """The failures of a run that still count."""

    def __init__(self, settings: SamplingConfig) -> None:
        self._settings, self._times = settings, deque[float]()

    def add(self, now: float) -> str | None:
        """Count a failure at `now` (seconds, monotonic). Returns a text for the user if there have been too many."""
        s = self._settings
        self._times.append(now)
        while now - self._times[0] > s.restart_window:
            self._times.popleft()
        number = len(self._times)
        if number <= s.max_restarts:
            return None
        return f"failure {number} within {s.restart_window:,.0f} s (sampling.max_restarts: {s.max_restarts})"
