"""Run control: stop, which learners are ready, heartbeats, and where every worker's time goes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from headrace.arrays import ArrayLayout, ArraySpec
from headrace.config import hardware
from headrace.shm.phases import PHASES
from headrace.shm.primitives import Words
from headrace.shm.segment import Mapped, Segment

POLL_INTERVAL = 0.2  # seconds after which a waiting process looks whether the run has ended, and renews its heartbeat

_HEARTBEAT, _STEPS = -2, -1
_STOP, _FIRST_LEARNER = 0, 1
_LIVES, _ASKED, _LEARNED = 0, 1, 2
CUT_SHORT_AFTER = 2.0  # seconds from the user's request to end the run (Ctrl-C) until batches and updates are cut short


class RunControl(Mapped):
    """What every process of a run may read and what only its owner writes; made by the parent, passed to every child.

    Args:
        workers: number of workers by role, the keys of `PHASES`.
        num_policies: P.
    """

    def __init__(self, workers: Mapping[str, int], num_policies: int = 1):
        self._words = Words(_FIRST_LEARNER + num_policies)
        shapes: dict[str, tuple[int, ...]] = {"times": (3,)} | {role: (n, len(PHASES[role]) + 2) for role, n in workers.items()}
        self._layout = ArrayLayout({name: ArraySpec(shape, np.dtype(np.float64)) for name, shape in shapes.items()})
        self._segment = Segment(self._layout.nbytes)
        self._map()

    def _map(self) -> None:
        self.clocks = self._layout.views(self._segment.buffer)
        """By role, float64 [workers, phases + 2]: seconds spent in each phase, the last heartbeat (perf_counter), steps done."""
        self._times = self.clocks.pop("times")
        """perf_counter: the main process's last heartbeat, when the user asked for the end of the run, and when learning began
        (0: not yet)."""

    # -- stop and ready ---------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether the run is ending."""
        return self._words.load(_STOP) != 0

    def stop(self) -> None:
        """Tell every process to end."""
        self._words.store(_STOP, 1)

    def ask_to_stop(self) -> None:
        """Note that the user asks for the end of the run (Ctrl-C). It ends after the updates that are under way."""
        self._times[_ASKED] = perf_counter()

    @property
    def hurried(self) -> bool:
        """Whether `ask_to_stop` was called more than `CUT_SHORT_AFTER` seconds ago: what takes long is to be cut short."""
        asked = float(self._times[_ASKED])
        return asked > 0 and perf_counter() > asked + CUT_SHORT_AFTER

    def wait_for_stop(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the run; whether it is ending."""
        return self._words.wait_nonzero(_STOP, timeout) != 0

    def learning_began(self) -> float:
        """When learning began in this run (perf_counter): now, at the first call. A learner that takes the place of one that was
        killed finds the first one's, and of ranks that start again it is when they first started."""
        if not self._times[_LEARNED]:
            self._times[_LEARNED] = float(os.environ.get(hardware.RUN_BEGAN, perf_counter()))
        return float(self._times[_LEARNED])

    def set_ready(self, policy: int) -> None:
        """The learner of this policy has published its first weights: sampling may start."""
        self._words.store(_FIRST_LEARNER + policy, 1)

    @property
    def ready(self) -> bool:
        """Whether every learner is ready."""
        return all(self._words.load(i) for i in range(_FIRST_LEARNER, len(self._words)))

    def wait_until_ready(self) -> None:
        """Wait for every learner or the end of the run: experience of weights that a checkpoint is about to replace is wasted."""
        for word in range(_FIRST_LEARNER, len(self._words)):
            while not self._words.load(word) and not self.stopped:
                self._words.wait_nonzero(word, POLL_INTERVAL)

    # -- heartbeats -------------------------------------------------------------------------------------------------------

    def clock(self, role: str, index: int) -> PhaseClock:
        """The phase clock of one worker, starting now."""
        return PhaseClock(role, self.clocks[role][index])

    def heartbeat(self, role: str, index: int) -> float:
        """When this worker last showed that it lives (perf_counter); 0 before the first time."""
        return float(self.clocks[role][index, _HEARTBEAT])

    def clear_heartbeat(self, role: str, index: int) -> None:
        """Reset a worker's heartbeat before a new process takes its place."""
        self.clocks[role][index, _HEARTBEAT] = 0

    @property
    def supervisor_heartbeat(self) -> float:
        """When the supervisor last looked at the processes (perf_counter); 0 before the first time."""
        return float(self._times[_LIVES])

    def supervisor_lives(self) -> None:
        """Renew the supervisor's heartbeat."""
        self._times[_LIVES] = perf_counter()

    def seconds(self, role: str, phase: str, index: int | None = None) -> float:
        """Seconds that one worker of a role, or all together, have spent in this phase."""
        spent = self.clocks[role][:, list(PHASES[role]).index(phase)]
        return float(spent.sum() if index is None else spent[index])

    def snapshot(self) -> dict[str, np.ndarray]:
        """A copy of all clocks, by role."""
        return {role: clock.copy() for role, clock in self.clocks.items()}


class PhaseClock:
    """Adds up where one worker's time goes; every call is a heartbeat. Costs two clock reads and one store a phase."""

    def __init__(self, role: str, row: np.ndarray | None = None):
        """`row`: float64 [phases + 2] of `RunControl.clocks`; None: the times stay in this object."""
        phases = PHASES[role]
        # A memoryview reads and writes single numbers several times faster than an array, and this happens at every step.
        array: Any = np.zeros(len(phases) + 2) if row is None else row
        self._row: Any = memoryview(array)
        self._index = {name: i for i, name in enumerate(phases)}
        self._last = perf_counter()

    def spent(self, phase: str, now: float) -> None:
        """The time since the last call was spent in `phase`; `now` is perf_counter()."""
        row = self._row
        row[self._index[phase]] += now - self._last
        row[_HEARTBEAT] = self._last = now

    def alive(self, now: float) -> None:
        """A heartbeat without a phase: somebody else writes this worker's times."""
        self._row[_HEARTBEAT] = now

    def count(self, steps: int) -> None:
        """Add to the steps done."""
        self._row[_STEPS] += steps
