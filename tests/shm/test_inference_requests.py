"""Inference requests: every request is answered once, by one policy worker; nobody waits for the dead."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest

from headrace.shm.inference_requests import IDLE, READY, TAKEN, WAITING, InferenceRequests
from headrace.shm.primitives import Closed

fork = multiprocessing.get_context("fork")


def make(num_workers: int = 2, num_groups: int = 2, num_lanes: int = 1, C: int = 3, core_widths: tuple[int, ...] = (4,)) -> Any:
    return InferenceRequests(num_workers, num_groups, num_lanes, C, core_widths)


def child(target: Any, *args: Any) -> BaseProcess:
    process = fork.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def queued(requests: InferenceRequests, policy: int = 0, timeout: float = 0) -> list[int]:
    out = np.zeros(100, np.int32)
    return out[: requests.get_many(policy, out, 1, timeout, 0)].tolist()


def words(requests: InferenceRequests) -> list[int]:
    return [requests._words.load(lane) for lane in range(requests.L)]


# -- the way of one request ---------------------------------------------------------------------------------------------------


def test_a_request_is_claimed_answered_and_taken() -> None:
    r = make()
    r.request(2)
    assert queued(r) == [2]
    assert r.claim([2], policy_worker=0) == [2]
    r.next_cores[0][2] = 5
    assert not r.take([2])
    assert r.woken_groups(1) == []
    r.answer([2], policy_worker=0)
    assert r.woken_groups(1) == [0]
    assert r.woken_groups(1) == []
    assert not r.cores[0][2].any()  # the state before the row stays until the action is taken
    assert r.take([2])
    assert (r.cores[0][2] == 5).all()
    assert words(r) == [IDLE] * 4


def test_lanes_are_numbered_by_worker_group_and_lane() -> None:
    r = make(num_workers=3, num_groups=2, num_lanes=4)
    numbers = [lane for w in range(3) for g in range(2) for lane in r.lanes_of(w, g)]
    assert numbers == list(range(r.L)) == list(range(24))
    for lane in r.lanes_of(2, 1):
        r.answered(lane)
    assert [r.woken_groups(w) for w in range(3)] == [[], [], [1]]


def test_a_group_is_ready_when_all_of_its_lanes_are() -> None:
    r = make(num_lanes=3)
    lanes = list(r.lanes_of(0, 1))
    for lane in lanes:
        r.request(lane)
    r.answer(r.claim(lanes[:2], 0), 0)
    assert not r.take(lanes)
    assert words(r)[3:6] == [READY, READY, WAITING]  # nothing was half taken
    r.answer(r.claim(lanes, 0), 0)
    assert r.take(lanes)


def test_every_policy_has_its_own_queue_and_its_own_core_states() -> None:
    r = make(core_widths=(4, 2))
    r.policy[:] = [0, 1, 0, 1]
    for lane in (3, 0, 1):
        r.request(lane)
    assert queued(r, 0) == [0]
    assert queued(r, 1) == [3, 1]
    r.next_cores[0][:], r.next_cores[1][:] = 1, 2
    r.answer(r.claim([0, 1, 3], 0), 0)
    assert r.take([0])
    assert r.take([1])
    assert (r.cores[0][0] == 1).all()
    assert not r.cores[0][1].any()
    assert (r.cores[1][1] == 2).all()
    assert [a.shape for a in r.cores] == [(4, 3, 4), (4, 3, 2)]


def test_a_request_is_claimed_by_one_policy_worker_only() -> None:
    r = make()
    r.request(1)
    assert r.claim([1, 1, 0], policy_worker=0) == [1]
    assert r.claim([1], policy_worker=1) == []
    r.answer([1], policy_worker=1)  # who has not claimed it has no answer to it
    assert words(r)[1] == TAKEN
    r.answer([1], policy_worker=0)
    assert words(r)[1] == READY


def test_a_sleeping_rollout_worker_is_woken_by_the_answer() -> None:
    r = make()
    r.request(0)
    process = child(serve, r, 0)
    started = time.monotonic()
    while not r.take([0]):
        r.wait(0, timeout=5)
        r.woken_groups(0)
        assert time.monotonic() - started < 60
    kill(process)


def serve(r: InferenceRequests, policy_worker: int, policy: int = 0) -> None:
    out = np.zeros(100, np.int32)
    while True:
        n = r.get_many(policy, out, 1, 1, 0)
        mine = r.claim(out[:n].tolist(), policy_worker)
        r.answer(mine, policy_worker)


def test_another_process_sees_the_same_tables() -> None:
    r = make()
    process = multiprocessing.get_context("spawn").Process(target=write_tables, args=(r,))
    process.start()
    assert queued(r, timeout=60) == [3]
    assert r.cursor[3].tolist() == [7, 8]
    assert (r.cores[0][3] == 9).all()
    process.join()


def write_tables(r: InferenceRequests) -> None:
    r.cursor[3], r.cores[0][3] = (7, 8), 9
    r.request(3)


# -- deaths -------------------------------------------------------------------------------------------------------------------


def test_requests_of_a_dead_rollout_worker_are_withdrawn_and_never_answered() -> None:
    r = make()
    r.request(0)
    r.request(1)
    r.request(2)
    assert r.withdraw(0) == set()
    assert words(r) == [IDLE, IDLE, WAITING, IDLE]  # the other worker's still waits
    assert r.claim(queued(r), 0) == [2]


def test_what_a_policy_worker_is_computing_keeps_a_dead_workers_slots() -> None:
    r = make()
    r.request(0)
    r.request(1)
    r.claim([0], policy_worker=4)
    assert r.withdraw(0) == {4}
    assert words(r)[:2] == [TAKEN + 4, IDLE]
    r.answer([0], policy_worker=4)
    assert r.withdraw(0) == set()
    assert words(r)[:2] == [IDLE, IDLE]


def test_an_answer_that_comes_after_the_policy_workers_own_end_is_refused() -> None:
    r = make()
    r.request(0)
    r.claim([0], policy_worker=4)
    r.requeue_requests_of(4)
    assert r.withdraw(0) == set()
    r.answer([0], policy_worker=4)
    assert words(r)[0] == IDLE


def test_wake_ups_of_a_dead_rollout_worker_are_forgotten() -> None:
    r = make()
    r.wake(1, 0)
    r.wake(0, 1)
    r.clear_wake_up(1)
    assert [r.woken_groups(0), r.woken_groups(1)] == [[1], []]


def test_recovery_asks_again_exactly_what_was_taken() -> None:
    r = make(num_workers=3)
    for lane in range(5):
        r.request(lane)
    queued(r)  # all of the numbers are in policy workers' hands
    r.claim([0, 3], policy_worker=1)
    r.claim([1], policy_worker=2)
    r.answer([0], policy_worker=1)
    assert r.requeue_requests_of(1) == 1
    assert words(r) == [READY, TAKEN + 2, WAITING, WAITING, WAITING, IDLE]
    # 2 and 4, whose numbers the dead one may have held, are queued again, too; 0 was answered, 1 is another's
    assert queued(r) == [2, 3, 4]
    assert [r.woken_groups(w) for w in range(3)] == [[0, 1]] * 3  # a wake-up may have been lost with it


def test_what_is_computed_again_begins_with_the_same_core_state() -> None:
    r = make()
    r.cores[0][0] = 1
    r.request(0)
    r.claim([0], policy_worker=0)
    r.next_cores[0][0] = 2  # written, and killed before it could say so
    r.requeue_requests_of(0)
    assert r.claim(queued(r), policy_worker=1) == [0]
    assert (r.cores[0][0] == 1).all()


def test_recovery_never_waits_for_a_queue_full_of_old_numbers() -> None:
    """A policy whose workers die one after the other: every recovery queues numbers, and nobody takes any."""
    r = make()
    r.request(0)
    r.request(1)
    waits = []

    class Noting:
        """The queue, and how long each `put` may wait."""

        def __init__(self, queue: Any) -> None:
            self._queue = queue

        def put(self, number: int, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return self._queue.put(number, timeout=timeout)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._queue, name)

    r._queues[0] = Noting(r._queues[0])
    for _ in range(50):
        r.claim([0, 1], policy_worker=0)
        assert r.requeue_requests_of(0) == 2
    r.request(2)  # nor does a rollout worker
    assert set(waits) == {0}
    while numbers := queued(r):
        mine = r.claim(numbers, policy_worker=1)
        r.answer(mine, policy_worker=1)
    assert words(r)[:2] == [READY, READY]
    # Lane 2's number may have found no room: it is asked for again once the queue is empty.
    assert r.queue_waiting() == 1
    assert r.claim(queued(r), policy_worker=1) == [2]


def test_the_sweep_finds_lost_numbers_of_empty_queues_only() -> None:
    r = make(core_widths=(0, 0))
    r.policy[:] = [0, 1, 0, 1]
    assert r.queue_waiting() == 0
    for lane in range(4):
        r.request(lane)
    queued(r, 0)  # lost with a policy worker that was killed before it claimed them
    assert r.queue_waiting() == 2
    assert queued(r, 0) == [0, 2]
    assert queued(r, 1) == [1, 3]  # once: the queue of policy 1 was not empty
    r.claim([0, 1, 2], policy_worker=0)
    r.answer([0], policy_worker=0)
    assert r.queue_waiting() == 1  # neither what is being computed nor what is answered
    assert queued(r, 1) == [3]


def test_the_numbers_in_a_queue_can_be_read_without_taking_them() -> None:
    r = make()
    for lane in (2, 0, 3):
        r.request(lane)
    assert r.queued(0) == [2, 0, 3]
    assert r.queued(0) == [2, 0, 3]


def test_the_end_of_the_run_wakes_everybody() -> None:
    r = make()
    r.close()
    assert [r.woken_groups(w) for w in range(2)] == [[0, 1]] * 2
    with pytest.raises(Closed):
        queued(r, timeout=10)
    with pytest.raises(Closed):
        r.request(0)


# -- with real deaths -----------------------------------------------------------------------------------------------------

POLICY_WORKERS = 3


def ask(r: InferenceRequests, worker: int, done: Any) -> None:
    """Ask, for every lane in turn, and count the answers; the core state counts them, too."""
    lanes = [lane for g in range(r.num_groups) for lane in r.lanes_of(worker, g)]
    for lane in lanes:
        r.cores[0][lane] = 0
        r.request(lane)
    counts = dict.fromkeys(lanes, 0)
    while True:
        r.wait(worker, 1)
        for g in r.woken_groups(worker):
            for lane in r.lanes_of(worker, g):
                if r.take([lane]):
                    counts[lane] += 1
                    if (r.cores[0][lane] != counts[lane]).any():  # computed once too often, or not at all
                        done[worker] = -(10**9)
                    done[worker] += 1
                    r.request(lane)


def act(r: InferenceRequests, policy_worker: int) -> None:
    out = np.zeros(100, np.int32)
    while True:
        n = r.get_many(0, out, 2, 1, 0.001)
        mine = r.claim(out[:n].tolist(), policy_worker)
        for lane in mine:
            r.next_cores[0][lane] = r.cores[0][lane] + 1
        r.answer(mine, policy_worker)


@pytest.mark.parametrize("kills", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_kills(kills: int) -> None:
    """Rollout and policy workers killed at random instants: every request is answered once, and never the request of the dead."""
    rng, r = random.Random(4), make(num_workers=2, num_groups=2)
    done = fork.RawArray("q", 2)
    rollouts = [child(ask, r, w, done) for w in range(2)]
    policies = [child(act, r, p) for p in range(POLICY_WORKERS)]
    for _ in range(kills):
        time.sleep(rng.random() * 0.02)
        if rng.random() < 0.6:
            p = rng.randrange(POLICY_WORKERS)
            kill(policies[p])
            r.requeue_requests_of(p)
            policies[p] = child(act, r, p)
        else:
            w = rng.randrange(2)
            kill(rollouts[w])
            deadline = time.monotonic() + 60
            while r.withdraw(w):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            r.clear_wake_up(w)
            rollouts[w] = child(ask, r, w, done)
    before, deadline = list(done), time.monotonic() + 60
    while min(now - then for now, then in zip(done, before, strict=True)) < 50 and time.monotonic() < deadline:
        time.sleep(0.01)
        r.queue_waiting()
    assert min(now - then for now, then in zip(done, before, strict=True)) >= 50
    assert min(done) > 0
    for process in (*rollouts, *policies):
        kill(process)
