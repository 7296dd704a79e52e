"""How many threads torch computes with on the CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from statistics import median
from time import monotonic, perf_counter

import psutil
import torch

from headrace.config import Config

PROBE_PERIOD = 3.0  # seconds between two measurements of `AdaptiveThreads`
GAIN = 1.2  # factor by which another number of threads must be faster to be taken
TRUST = 60.0  # seconds that an increase of threads must last for the required number of measurements to go back to one
MOST_PATIENCE = 16  # upper limit of the measurements in a row that must be in favour of more threads


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Context in which torch computes with `number` threads.

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
    """Seconds that a series of small matrix products takes with this many threads: the median of 5 series. After each product all
    threads wait for the last one."""
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


def idle_seconds() -> float:
    """How long the cores that this process may use have been idle since the machine started; their sum."""
    times = psutil.cpu_times(percpu=True)
    return float(sum(times[core].idle for core in os.sched_getaffinity(0) if core < len(times)))


class ThreadTrials:
    """Lets a learner that limits the run try more threads than it began with, and keep them if updates become faster.

    Which is better cannot be told in advance: a second thread takes its time from the rollout workers, and is worth it where they
    wait for the learner anyway. So updates are counted in windows of `WINDOW` seconds. If the learner has computed for `BUSY` of
    one, and `SPARE` cores were idle, the next has `most` threads; they are kept if it had `WORTH` times as many updates per
    second. Later `few` threads are tried in the same way. Each trial that changes nothing doubles the time to the next, from
    `FIRST_PERIOD` to `LONGEST_PERIOD`. If updates become slower than they were with few threads, these are tried at once.

    Args:
        few: threads at the start.
        most: the other number, larger.
        idle: seconds that cores have been idle.
    """

    WINDOW = 3.0  # Seconds; longer if it has fewer updates than `UPDATES`
    UPDATES = 5
    BUSY = 0.95
    SPARE = 0.25  # where all cores work, further threads only take turns with other processes, and wait for each other meanwhile
    WORTH = 1.05
    FIRST_PERIOD = 60.0
    LONGEST_PERIOD = 960.0

    def __init__(self, few: int, most: int, idle: Callable[[], float] = idle_seconds):
        self.few, self.most, self.threads, self._idle = few, most, few, idle
        self._window: tuple[float, float, int, float] | None = None
        self._before: float | None = None  # while the other number is tried: updates per second with the one before
        self._few_reached = 0.0  # updates per second with few threads when these were tried last
        self._period, self._next = self.FIRST_PERIOD, float("-inf")

    @property
    def idle(self) -> bool:
        """Whether the learner has few threads, and nothing is tried."""
        return self.threads == self.few and self._before is None

    def adapt(self, now: float, computed: float, updates: int) -> str | None:
        """To be called after every update. Sets torch's number of threads; returns a line for the log if another one is kept.

        `now`: seconds (monotonic). `computed`: seconds that the learner has spent on updates. `updates`: their number.
        """
        if self._window is None:
            self._window = now, computed, updates, self._idle()
        began, computed_before, updates_before, idle_before = self._window
        seconds, done = now - began, updates - updates_before
        # With the other number of threads there would have been twice as many updates by now: no need to wait for slow ones.
        known = self._few_reached if self._before is None else self._before
        slower = self.threads == self.most and seconds * known >= 2 * self.UPDATES
        if seconds < self.WINDOW or (done < self.UPDATES and not slower):
            return None
        self._window = now, computed, updates, (idle := self._idle())
        return self._judge(done / seconds, (computed - computed_before) / seconds, (idle - idle_before) / seconds, now)

    def _judge(self, rate: float, busy: float, spare: float, now: float) -> str | None:
        """Decide what the next window has. `rate`: updates per second; `busy`: share of the time spent on updates;
        `spare`: cores that were idle, on average."""
        if self._before is not None:
            return self._end_trial(rate, self._before, now)
        limits = busy >= self.BUSY and spare >= self.SPARE and torch.get_num_threads() == self.few
        due = (limits or self.threads == self.most) and now >= self._next
        if due or (self.threads == self.most and rate < self._few_reached):
            self._before = rate
            self._take(self.few + self.most - self.threads)
        return None

    def _end_trial(self, rate: float, rate_before: float, now: float) -> str | None:
        tried, self._before = self.threads, None
        before = self.few + self.most - tried
        of_few, of_most = (rate, rate_before) if tried == self.few else (rate_before, rate)
        best = self.most if of_most >= self.WORTH * of_few else self.few
        self._few_reached = of_few
        self._take(best)
        self._period = min(2 * self._period, self.LONGEST_PERIOD) if best == before else self.FIRST_PERIOD
        self._next = now + self._period
        rates = f"{rate:.3g} updates/s with {tried}, {rate_before:.3g} with {before}"
        return None if best == before else f"Threads of torch: {best} instead of {before} ({rates})"

    def _take(self, threads: int) -> None:
        self.threads = threads
        torch.set_num_threads(threads)


class LearnerThreads:
    """Torch's threads in a learner on the CPU: fewer while other programs hold cores (`AdaptiveThreads`), more while the learner
    limits the run (`ThreadTrials`). While more are in use or tried, only updates are measured. On another device, and where the
    user has fixed the number (`learning.num_threads`), nothing is changed.

    `measured`: seconds that this learner has spent on updates, and the version of its weights; None where the same process
    samples, too: more threads are then not tried.
    """

    def __init__(self, config: Config, measured: Callable[[], tuple[float, int]] | None = None):
        self._adaptive: AdaptiveThreads | None = None
        self._trials: ThreadTrials | None = None
        self._measured, self._version, self._updates = measured, 0, 0
        if config.device != "cpu" or config.learning.num_threads is not None:
            return
        self._adaptive = AdaptiveThreads(config.learner_threads)
        # Without `samples_per_insert` no process waits for a learner on a replay: more updates only mean fewer steps between
        # them.
        waited_for = not config.uses_replay or config.replay.samples_per_insert is not None
        if measured is not None and waited_for and config.most_learner_threads > config.learner_threads:
            self._trials = ThreadTrials(config.learner_threads, config.most_learner_threads)

    def adapt(self, now: float | None = None) -> str | None:
        """To be called after every round, which makes one update at most. Returns a line for the log if another number of threads
        is kept.

        `now`: seconds (monotonic).
        """
        now = monotonic() if now is None else now
        if self._trials is not None and self._measured is not None:
            computed, version = self._measured()
            if version != self._version:
                self._version, self._updates = version, self._updates + 1  # of a policy that became a copy, versions leap
                change = self._trials.adapt(now, computed, self._updates)
                if change is not None:
                    return change
            if not self._trials.idle:
                return None
        return None if self._adaptive is None else self._adaptive.adapt(now)
