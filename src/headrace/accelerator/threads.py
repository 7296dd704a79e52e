"""How many threads torch computes with on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from statistics import median
from time import monotonic, perf_counter

import torch

from headrace.config import Config

PROBE_PERIOD = 3.0
"""Seconds between two measurements of `AdaptiveThreads`."""
GAIN = 1.2
"""Another number of threads is taken if it is so many times as fast."""
TRUST = 60.0
"""Seconds for which more threads must have been right for the next ones to be taken at once again."""
MOST_PATIENCE = 16
"""Measurements in a row that must speak for more threads, at most."""


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Torch computes with so many threads meanwhile.

    One is the default here: batches are small, and threads that wait for each other at every layer lose more on busy cores
    than they gain on idle ones (Nature CNN, 16 observations, 2 cores at load 15: 17 ms with one thread, 300 ms with two).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def probe(threads: int) -> float:
    """Seconds that a row of small matrix products takes with so many threads, each of which ends with all threads waiting for
    the last one: the median of 5 rows."""
    a, b = torch.ones(256, 512), torch.ones(512, 256)
    times = []
    with using_threads(threads):
        a @ b  # threads are started with the first product
        for _ in range(5):
            start = perf_counter()
            for _ in range(4):
                a @ b
            times.append(perf_counter() - start)
    return median(times)


class AdaptiveThreads:
    """Lets torch compute with fewer threads while other programs hold some of the cores.

    A thread that has lost its core keeps all others waiting at the end of every matrix product, which then is many times as slow
    as with one thread. Whether that is so is measured, now and then, by `probe`. Fewer threads are taken at once. More gain at
    most a factor of their number and may lose a factor of 20, and other programs are often idle for a moment: each time that
    more threads were wrong within `TRUST` seconds, twice as many measurements in a row must speak for more the next time.

    Args:
        most: the number of threads for an idle machine.
        measure: seconds that some work takes with a number of threads.
    """

    def __init__(self, most: int, measure: Callable[[int], float] = probe):
        self.candidates = sorted({1, max(1, most // 2), max(1, most - 1), most})
        self.threads = most
        self._measure, self._next = measure, 0.0
        self._patience, self._in_favour = 1, 0
        self._raised = float("-inf")  # when more threads were taken last

    def adapt(self, now: float | None = None) -> str | None:
        """Measure if it is time to, and set torch's number of threads. Returns a line for the log if it has changed.

        `now`: seconds (monotonic).
        """
        now = monotonic() if now is None else now
        if len(self.candidates) == 1 or now < self._next:
            return None
        seconds = {n: self._measure(n) for n in self.candidates}
        self._next = now + PROBE_PERIOD
        best, before = min(seconds, key=seconds.__getitem__), self.threads
        if best == before or seconds[before] < GAIN * seconds[best]:
            best = before
        if not self._is_time(best, now):
            return None
        self.threads = best
        torch.set_num_threads(best)
        why = "other programs hold cores" if best < before else "cores are free again"
        return (
            f"Threads of torch: {best} instead of {before}, since {why} (a small product takes "
            f"{1e3 * seconds[best]:.2f} ms with {best}, {1e3 * seconds[before]:.2f} ms with {before})"
        )

    def _is_time(self, best: int, now: float) -> bool:
        """Whether the number of threads becomes `best`."""
        if best < self.threads:
            wrong = now - self._raised < TRUST
            self._patience, self._in_favour = min(2 * self._patience, MOST_PATIENCE) if wrong else 1, 0
            return True
        self._in_favour = self._in_favour + 1 if best > self.threads else 0
        if best == self.threads or self._in_favour < self._patience:
            return False
        self._raised, self._in_favour = now, 0
        return True


def adaptive_threads(config: Config) -> AdaptiveThreads | None:
    """For a learner on the CPU. None where the user has fixed the number of its threads, or it is on another device."""
    if config.device != "cpu" or config.learning.num_threads is not None:
        return None
    return AdaptiveThreads(config.learner_threads)
