"""The trajectory store of one policy: memory for all its trajectories, who owns which, and the queue of finished ones.

A *slot* is the trajectory of one lane: T steps of C agents that are stepped together. Rollout workers write its observations and
rewards, policy workers read the observations and write actions, the learner reads it whole. Nobody sends arrays to anybody.

Row t of a slot holds observation t, the action chosen on it and what the behaviour policy said about it, and the reward and the
flags to which that action led. Fields with T+1 rows also have row T, which holds the observation to bootstrap from; it is at the
same time row 0 of the lane's next slot. `headrace.envs.core.contract` says what happens at the end of an episode.

Slots are credits: a rollout worker needs a free one to go on, the learner frees them, so their number bounds memory and lag. The
owner table is the truth. The ready queue only says where to look: what a killed process took from it is found in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.arrays import ArrayLayout, ArraySpec, specs
from headrace.shm.primitives import Queue, Slots
from headrace.shm.segment import Mapped, Segment

Rows = Literal["T+1", "T", "once"]

LEARNER = 0x7FFF  # the learner's number in the owner table; rollout worker w is w + 1


@dataclass(frozen=True, kw_only=True)
class TrajectoryField(ArraySpec):
    """One array of the store: ``[slot, rows, C, *shape]``, without the rows for `once`."""

    rows: Rows = "T"


class TrajectoryStore(Mapped):
    """`num_slots` slots of T rows and C agents; made by the parent, passed to every child.

    Raises `MemoryError` where the machine has not the memory.
    """

    def __init__(self, fields: Mapping[str, TrajectoryField], num_slots: int, T: int, C: int):
        self.fields, self.num_slots, self.T, self.C = dict(fields), num_slots, T, C
        purpose = f"the trajectory store ({num_slots} slots of {T} x {C} steps; fewer of any needs less)"
        each = ((num_slots,), np.int32)
        locks = {"owners": ((Slots.bytes(num_slots),), np.uint8), "ready": ((Queue.bytes(4 * num_slots),), np.uint8)}
        bookkeeping = specs(finished=each, order=each, lane=each, **locks)
        arrays = {name: ArraySpec(self._shape(field), field.dtype) for name, field in self.fields.items()}
        # All in one segment: a league has dozens of stores, and a process can be handed 256 segments.
        self._layout = ArrayLayout(arrays | {f"slots: {name}": array for name, array in bookkeeping.items()})
        self._segment = Segment(self._layout.nbytes, purpose=purpose)
        self._segment.prefault()  # memory that is not there is missed now, not in the middle of training
        places = self._layout.slices()
        self._owners = Slots(num_slots, self._segment, places["slots: owners"].start)
        self._ready = Queue(4 * num_slots, self._segment, places["slots: ready"].start)
        self._map()
        self._finished[:] = -1

    def _shape(self, field: TrajectoryField) -> tuple[int, ...]:
        rows = {"T+1": (self.T + 1,), "T": (self.T,), "once": ()}[field.rows]
        return (self.num_slots, *rows, self.C, *field.shape)

    def _map(self) -> None:
        views = self._layout.views(self._segment.buffer)
        self.arrays = {name: views[name] for name in self.fields}
        """By field, ``[slot, rows, C, ...]``."""
        self._finished = views["slots: finished"]
        """int32 [slots]: the ticket with which the slot was finished last; -1: never."""
        self.order = views["slots: order"]
        """int32 [slots]: the trajectory's number among those of its lane. They may be taken in another order: a ticket that was
        lost with a learner is found late."""
        self.lane = views["slots: lane"]
        """int32 [slots]: the number of the lane that has written the slot, among those of this machine."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._segment.prefault()  # the memory is there, but every process has its own page table

    # -- rollout workers --------------------------------------------------------------------------------------------------

    def acquire(self, worker: int, timeout: float | None) -> int | None:
        """A free slot for this rollout worker, waited for up to `timeout` seconds; None if there is none."""
        found = np.empty(1, np.int32)  # of this call alone: a receiver asks in two threads
        return int(found[0]) if self._owners.acquire(worker + 1, found, timeout=timeout) else None

    def finish(self, slot: int, order: int = 0, lane: int = 0) -> None:
        """Give a slot whose rows are all written to the learner. `order`: the trajectory's number among those of its `lane`.
        Raises `Closed` at the end of the run."""
        self.order[slot], self.lane[slot] = order, lane
        self._finished[slot] = ticket = self._owners.ticket(slot)
        # Without waiting for room: the queue can only be full of old tickets, and `untaken` finds this one when they are gone.
        self._ready.put(ticket, timeout=0)

    def put_back(self, slot: int, worker: int) -> None:
        """Free a slot that is not to be learned from."""
        self._owners.release(slot, worker + 1)

    # -- the learner ------------------------------------------------------------------------------------------------------

    def take(self, timeout: float | None) -> int | None:
        """The next finished slot, now the learner's, waited for up to `timeout` seconds; None if there is none.

        Raises `Closed` at the end of the run.
        """
        while (ticket := self._ready.get(timeout=timeout)) is not None:
            # The ticket of a worker that died meanwhile is refused: its slot was freed and may be somebody else's.
            if self._owners.transfer(ticket, LEARNER):
                return self._owners.slot_of(ticket)
        return None

    def release(self, slot: int) -> None:
        """Free a slot that the learner has copied."""
        self._owners.release(slot, LEARNER)

    def discard(self) -> None:
        """Free all finished slots in the queue without learning from them. Raises `Closed` at the end of the run."""
        while (slot := self.take(timeout=0)) is not None:
            self.release(slot)

    def qsize(self) -> int:
        """Finished slots that wait for the learner; an estimate while others work."""
        return self._ready.qsize()

    def queued(self) -> list[int]:
        """Finished slots that wait for the learner, in the order of the queue. For runs in one process."""
        return [self._owners.slot_of(ticket) for ticket in self._ready.contents()]

    # -- the supervisor ---------------------------------------------------------------------------------------------------

    def free_worker(self, worker: int) -> int:
        """Free the slots of a rollout worker that has ended. Returns how many."""
        return self._owners.reclaim(worker + 1)

    def free_learner(self) -> int:
        """Free the slots of a learner that has ended. Returns how many."""
        return self._owners.reclaim(LEARNER)

    def untaken(self) -> set[int]:
        """Tickets of slots that are finished and not taken: queued, or lost with a learner that died between queue and table."""
        return {
            ticket
            for slot, ticket in enumerate(self._finished.tolist())
            if ticket == self._owners.ticket(slot) and 0 < self._owners.owner(slot) < LEARNER
        }

    def offer_again(self, ticket: int) -> None:
        """Queue a ticket once more, if there is room; a second copy of it is refused by `take`."""
        self._ready.put(ticket, timeout=0)

    def close(self) -> None:
        """End the run: a learner that waits in `take` wakes up."""
        self._ready.close()
