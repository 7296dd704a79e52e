"""Everything the processes of a run share: memory and integers, no objects.

Two kinds of things live here. *Tables* are the truth: who owns a slot (`slots`), what every group waits for (`requests`), the
newest weights (`board`). *Queues* are only hints about where to look in a table (`inbox`, `full`). A process that is killed
may leave a hint that is not true any more, or take one with it; the table says so, and the supervisor puts hints back. So a
participant may die at any instruction.

One step of one group, with double buffering the other groups of the worker are somewhere else in this circle:

    rollout worker   writes observation t, cursor = (slot, t), request = WAITING, hint to `inbox`
    policy worker    takes the hint, request WAITING -> taken by me, reads observation t, writes action t and the policy's
                     version, request -> READY, wakes the worker
    rollout worker   request READY -> IDLE, the core state behind row t becomes the one before row t + 1; steps the
                     environments, writes reward t and observation t + 1; every T steps it
                     sends the slot's ticket to `full` and acquires a free slot, which is where it waits for the learner
    learner          takes T-step slots from `full`, copies them to a batch, releases them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.config import Config
from headrace.envs.contract import ArraySpec, EnvSpec
from headrace.sampling.device_slab import DeviceSlab
from headrace.sampling.slab import Slab, trajectory_fields
from headrace.shm.primitives import Board, Queue, Segment, Slots, Words

if TYPE_CHECKING:
    from headrace.experience.replay.buffer import Replay

IDLE, WAITING, READY, TAKEN = 0, 1, 2, 16
"""Values of a group's request word; TAKEN + p: policy worker p is computing the action."""

LEARNER = 0x7FFF
"""The learner's number in the table of slot owners; rollout worker w is w + 1."""

LOOK_AROUND = 0.2
"""Seconds after which a waiting process looks whether the run has ended, and shows that it lives."""

ROLLOUT_PHASES = ("step", "wait_actions", "wait_slots", "forward", "other")
POLICY_PHASES = ("wait", "weights", "gather", "forward", "scatter")
LEARNER_PHASES = ("wait", "train", "publish", "checkpoint")
PHASES = {"rollout": ROLLOUT_PHASES, "policy": POLICY_PHASES, "learner": LEARNER_PHASES}


class Exchange:
    """Created once by the parent, passed to every child process."""

    def __init__(self, config: Config, spec: EnvSpec, core_width: int, weights_nbytes: int, extra: dict[str, ArraySpec]):
        s = config.sampling
        self.T, self.E, self.G = s.rollout, config.envs_per_group, config.total_groups
        self.num_groups = s.num_groups
        self.slab = Slab(trajectory_fields(spec, core_width, extra), config.num_slots, self.T, self.E)
        self.device_slab = DeviceSlab(self.slab, config.device) if config.one_transfer else None
        self.slots = Slots(config.num_slots)
        self.requests = Words(self.G)
        self.wake = Words(s.num_workers)  # one bit per group: look at its request word
        self.inbox = Queue(_power_of_two(4 * self.G))  # group numbers for policy workers
        self.full = Queue(_power_of_two(4 * config.num_slots))  # tickets of finished slots for the learner
        self.board = Board(weights_nbytes)
        self.replay: Replay | None = None  # where experience goes through a replay; it outlives the learner process
        self.control = Words(2)  # word 0: 1 = stop; word 1: 1 = the learner is ready, samplers may start
        workers = s.num_workers + s.num_policy_workers + 1
        core_bytes = 2 * max(1, self.G * self.E * core_width) * 4
        self._layout = (core_width, s.num_workers, s.num_policy_workers)
        self._segment = Segment(8 * self.G + core_bytes + 4 * config.num_slots + workers * 8 * 12 + 512)
        self._map()
        self.finished[:] = -1

    def _map(self) -> None:
        core_width, rollout_workers, policy_workers = self._layout
        both = self._segment.ndarray(np.float32, (2, self.G, self.E, core_width), 0)
        offset = -(-both.nbytes // 64) * 64
        self.cores, self.next_cores = both
        """float32 [G, E, S]: every group's recurrent state before its current row, and behind it, once its action is computed.
        Two, because the one before must still be there when a policy worker dies and another has to compute the same again."""
        self.cursor = self._segment.ndarray(np.int32, (self.G, 2), offset)
        """int32 [G, 2]: every group's slot and row."""
        offset += -(-self.cursor.nbytes // 64) * 64
        self.finished = self._segment.ndarray(np.int32, len(self.slots), offset)
        """int32 [slots]: the ticket with which the slot was handed over last; -1: never."""
        offset += -(-self.finished.nbytes // 64) * 64
        self.clocks: dict[str, np.ndarray] = {}
        """float64 [workers, phases + 2]: seconds spent in each phase, then the time of the last sign of life and steps done."""
        for name, n in (("rollout", rollout_workers), ("policy", policy_workers), ("learner", 1)):
            self.clocks[name] = self._segment.ndarray(np.float64, (n, len(PHASES[name]) + 2), offset)
            offset += self.clocks[name].nbytes

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k not in ("cores", "next_cores", "cursor", "finished", "clocks")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._map()

    @property
    def stopped(self) -> bool:
        """Whether the run is ending."""
        return self.control.load(0) != 0

    def stop(self) -> None:
        """End the run: every waiting process wakes up and returns."""
        self.control.store(0, 1)
        for worker in range(len(self.clocks["rollout"])):
            self.wake.fetch_or(worker, 0xFFFFFFFF)
        self.inbox.close()
        self.full.close()

    def hand_over(self, slot: int) -> None:
        """Give a slot whose rows are all written to the learner."""
        self.finished[slot] = ticket = self.slots.ticket(slot)
        self.full.put(ticket)

    def lost_tickets(self) -> set[int]:
        """Tickets that were handed over and not taken: queued, or lost with a learner that died with one in its hand."""
        return {
            ticket
            for slot, ticket in enumerate(self.finished.tolist())
            if ticket == self.slots.ticket(slot) and 0 < self.slots.owner(slot) < LEARNER
        }

    def request(self, group: int) -> None:
        """Ask for the actions of a group's current row."""
        self.requests.store(group, WAITING)
        self.inbox.put(group)

    def withdraw(self, worker: int) -> set[int]:
        """Take back the requests of a dead rollout worker. Returns the policy workers that are still computing answers to some:
        until they are done they may write to its slots, which must not be anybody else's before."""
        holders = set()
        for group in range(worker * self.num_groups, (worker + 1) * self.num_groups):
            while (state := self.requests.load(group)) < TAKEN:
                if self.requests.compare_exchange(group, state, IDLE):
                    break
            else:
                holders.add(state - TAKEN)
        return holders

    def recover_rollout_worker(self, worker: int) -> int:
        """After a rollout worker's death, when its requests are withdrawn: free its slots. Returns how many."""
        self.wake.store(worker, 0)
        return self.slots.reclaim(worker + 1)

    def recover_policy_worker(self, index: int) -> int:
        """After a policy worker's death: what it had taken waits again, and lost wake-ups and hints are sent again."""
        taken = 0
        for group in range(self.G):
            if self.requests.compare_exchange(group, TAKEN + index, WAITING):
                taken += 1
            if self.requests.load(group) == WAITING:
                self.inbox.put(group)
        for worker in range(len(self.clocks["rollout"])):
            self.wake.fetch_or(worker, (1 << self.num_groups) - 1)
        return taken


class Clock:
    """Adds up where one worker's time goes; costs two clock reads and one store a phase."""

    def __init__(self, row: np.ndarray, phases: tuple[str, ...], now: float):
        self._row, self._last = row, now
        self._index = {name: i for i, name in enumerate(phases)}

    def spent(self, phase: str, now: float) -> None:
        """The time since the last call was spent in `phase`."""
        row = self._row
        row[self._index[phase]] += now - self._last
        row[-2] = self._last = now

    def count(self, steps: int) -> None:
        """Add to the steps done."""
        self._row[-1] += steps


def _power_of_two(n: int) -> int:
    return 1 << max(1, n - 1).bit_length()
