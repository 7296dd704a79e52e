"""Requests for actions: what every lane waits for, where its current row is, and its recurrent state.

One step of one lane, with double buffering the other groups of its worker are elsewhere in this circle:

    rollout worker   writes observation t, cursor = (slot, t), request word = WAITING, lane number to the policy's queue
    policy worker    takes the number, request word WAITING -> TAKEN + its index, reads observation t, writes action t and the
                     policy version, request word -> READY, wakes the worker
    rollout worker   when all lanes of the group are READY: request words -> IDLE, the core state after row t becomes the one
                     before row t + 1; steps the environments, writes reward t and observation t + 1

The request words are the truth, the queues are hints: a killed process may leave a number that is not true any more, or take one
with it. So a queue is never waited for: a number that finds it full, or is lost, is queued again by the supervisor, which finds
in the words what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.arrays import ArrayLayout, ArraySpec
from headrace.shm.primitives import Queue, Words
from headrace.shm.segment import Mapped, Segment

IDLE, WAITING, READY, TAKEN = 0, 1, 2, 16
"""Values of a request word; TAKEN + w: policy worker w is computing the action."""


class InferenceRequests(Mapped):
    """Tables over all lanes of a run, and one queue per policy; made by the parent, passed to every child.

    Lane number = (worker x groups + group) x lanes + lane.

    Args:
        num_workers, num_groups, num_lanes: rollout workers, groups of each (at most 32: one bit each in the worker's wake-up
            word), lanes of each group.
        C: agents of one lane.
        core_widths: S of every policy, the width of its recurrent state.
        queue_of: the queue of every policy, if some share one: past versions of a policy have that policy's. None: each its own.
    """

    def __init__(
        self, num_workers: int, num_groups: int, num_lanes: int, C: int, core_widths: Sequence[int],
        queue_of: Sequence[int] | None = None,
    ):  # fmt: skip
        self.num_workers, self.num_groups, self.num_lanes, self.C = num_workers, num_groups, num_lanes, C
        self.lanes_per_worker = num_groups * num_lanes
        self.L = num_workers * self.lanes_per_worker
        self._recurrent = any(core_widths)
        self._words = Words(self.L)
        self._wake = Words(num_workers)
        # Room for every lane several times over: doubles after a policy worker's death must not fill a queue.
        self._queue_of = list(range(len(core_widths)) if queue_of is None else queue_of)
        self._queues = [Queue(4 * self.L) for _ in range(len(set(self._queue_of)))]
        tables = {"cursor": ArraySpec((self.L, 2), np.dtype(np.int32)), "policy": ArraySpec((self.L,), np.dtype(np.int32))}
        for p, width in enumerate(core_widths):
            tables[f"cores {p}"] = ArraySpec((2, self.L, C, width), np.dtype(np.float32))
        self._layout = ArrayLayout(tables)
        self._segment = Segment(self._layout.nbytes)
        self._map()

    def _map(self) -> None:
        self.cursor, self.policy, *cores = self._layout.views(self._segment.buffer).values()
        """int32 [L, 2]: every lane's slot and row; int32 [L]: the policy that acts for the lane, which changes only between
        episodes."""
        self.cores = [pair[0] for pair in cores]
        """By policy, float32 [L, C, S]: every lane's recurrent state before its current row."""
        self.next_cores = [pair[1] for pair in cores]
        """The same after that row, once its action is computed. Two arrays, because the state before the row must still be there
        when a policy worker dies and another has to compute the same again."""

    def lanes_of(self, worker: int, group: int) -> range:
        """Lane numbers of one group of one worker."""
        first = (worker * self.num_groups + group) * self.num_lanes
        return range(first, first + self.num_lanes)

    # -- rollout workers --------------------------------------------------------------------------------------------------

    def request(self, lane: int) -> None:
        """Ask for the actions of a lane's current row. Raises `Closed` at the end of the run."""
        self._words.store(lane, WAITING)
        self._queue(lane)

    def _queue(self, lane: int) -> None:
        # Without waiting for room: only old numbers can fill a queue, and `queue_waiting` finds this lane when they are gone.
        self._queues[self._queue_of[self.policy[lane]]].put(lane, timeout=0)

    def answered(self, lane: int) -> None:
        """Mark the lane's current row as answered: an `inline` policy or a scripted opponent has written its actions, without a
        request."""
        self._words.store(lane, READY)
        self._wake_worker_of(lane)

    def take(self, lanes: Sequence[int]) -> bool:
        """Take the answers of a group's lanes, and move their core states on by one row. False, and nothing changes, while an
        answer is missing."""
        words = self._words
        # Nobody but the group's own worker changes a word that is READY.
        for lane in lanes:
            if words.load(lane) != READY:
                return False
        for lane in lanes:
            words.compare_exchange(lane, READY, IDLE)
            if self._recurrent:
                policy = self.policy[lane]
                self.cores[policy][lane] = self.next_cores[policy][lane]  # nobody computes the lane's current row any more
        return True

    def wait(self, worker: int, timeout: float) -> None:
        """Sleep up to `timeout` seconds until there may be something to do for one of the worker's groups."""
        self._wake.wait_nonzero(worker, timeout)

    def woken_groups(self, worker: int) -> list[int]:
        """Groups of the worker for which something may have happened since the last call. Only a hint: look at each."""
        bits = self._wake.take(worker)
        return [g for g in range(self.num_groups) if bits >> g & 1] if bits else []

    def wake(self, worker: int, group: int) -> None:
        """Wake the worker for this group: its actions are there, or its environments have finished their step."""
        self._wake.fetch_or(worker, 1 << group)

    def _wake_worker_of(self, lane: int) -> None:
        group = lane // self.num_lanes
        self._wake.fetch_or(group // self.num_groups, 1 << (group % self.num_groups))

    # -- policy workers ---------------------------------------------------------------------------------------------------

    def get_many(self, policy: int, out: np.ndarray, minimum: int, timeout: float, batch_timeout: float) -> int:
        """Lane numbers from queue `policy` into `out` (int32 [n]): waits up to `timeout` seconds for the first and then up to
        `batch_timeout` seconds for `minimum` of them. Returns how many there are. Raises `Closed` at the end of the run."""
        return self._queues[policy].get_many(out, minimum, timeout, batch_timeout)

    def claim(self, lanes: Sequence[int], policy_worker: int) -> list[int]:
        """Assign those of `lanes` that wait to this policy worker, and return them. A number from a queue may be out of date or
        occur twice."""
        claim = self._words.compare_exchange
        return [lane for lane in lanes if claim(lane, WAITING, TAKEN + policy_worker)]

    def give_up(self, lanes: Sequence[int], policy_worker: int) -> None:
        """Put lanes that were claimed into the queue of another policy, which acts for them now."""
        for lane in lanes:
            if self._words.compare_exchange(lane, TAKEN + policy_worker, WAITING):
                self._queue(lane)

    def answer(self, lanes: Sequence[int], policy_worker: int) -> None:
        """Mark these lanes as answered, and wake their workers."""
        for lane in lanes:
            # Not so if the lane's rollout worker died meanwhile and its requests were withdrawn.
            if self._words.compare_exchange(lane, TAKEN + policy_worker, READY):
                self._wake_worker_of(lane)

    # -- exact resume -----------------------------------------------------------------------------------------------------

    def queued(self, policy: int) -> list[int]:
        """The numbers in a policy's queue, which stays as it is. For runs in one process."""
        return self._queues[policy].contents()

    def answered_lanes(self) -> list[int]:
        """Lanes whose actions are written and not taken yet, such as those of scripted opponents. For runs in one process."""
        return [lane for lane in range(self.L) if self._words.load(lane) == READY]

    # -- the supervisor ---------------------------------------------------------------------------------------------------

    def withdraw(self, worker: int) -> set[int]:
        """Withdraw the requests of a rollout worker that has ended. Returns the policy workers that still compute answers to some
        of them: they may write to its slots, which must not be used again before these workers are done."""
        holders = set()
        for lane in range(worker * self.lanes_per_worker, (worker + 1) * self.lanes_per_worker):
            while (state := self._words.load(lane)) < TAKEN:
                if self._words.compare_exchange(lane, state, IDLE):
                    break
            else:
                holders.add(state - TAKEN)
        return holders

    def clear_wake_up(self, worker: int) -> None:
        """Reset the wake-up word of a rollout worker that has ended."""
        self._wake.store(worker, 0)

    def requeue_requests_of(self, policy_worker: int) -> int:
        """Let other policy workers answer the requests that a dead policy worker had taken, and send again the wake-ups and
        numbers that were lost with it. Returns how many requests it had taken. Never waits."""
        taken = sum(self._words.compare_exchange(lane, TAKEN + policy_worker, WAITING) for lane in range(self.L))
        self._queue_waiting(range(self.L))
        self.wake_all()
        return taken

    def queue_waiting(self) -> int:
        """Queue the numbers of lanes that wait although their policy's queue is empty: they were lost with a process, or found
        the queue full. Returns how many. A number that is queued twice does no harm: the second is refused by `claim`."""
        empty = {policy for policy, q in enumerate(self._queue_of) if not self._queues[q].qsize()}
        return self._queue_waiting(np.flatnonzero(np.isin(self.policy, list(empty))).tolist()) if empty else 0

    def _queue_waiting(self, lanes: Iterable[int]) -> int:
        waiting = [lane for lane in lanes if self._words.load(lane) == WAITING]
        for lane in waiting:
            self._queue(lane)
        return len(waiting)

    def wake_all(self) -> None:
        """Wake every rollout worker for all of its groups."""
        for worker in range(self.num_workers):
            self._wake.fetch_or(worker, (1 << self.num_groups) - 1)

    def close(self) -> None:
        """End the run: all waiting processes wake up."""
        self.wake_all()
        for queue in self._queues:
            queue.close()
