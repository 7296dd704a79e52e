"""The trajectory store: a slot is never owned twice, nothing that is finished is lost, whoever dies."""

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

from headrace.shm.primitives import Closed
from headrace.shm.trajectory_store import LEARNER, TrajectoryField, TrajectoryStore

# Processes that are killed by the dozen must start fast.
fork = multiprocessing.get_context("fork")
FIELDS = {
    "obs/x": TrajectoryField((2,), np.dtype(np.float32), rows="T+1"),
    "reward": TrajectoryField((), np.dtype(np.float32)),
    "core": TrajectoryField((3,), np.dtype(np.float32), rows="once"),
}


def make(num_slots: int = 4, T: int = 5, C: int = 2) -> TrajectoryStore:
    return TrajectoryStore(FIELDS, num_slots, T, C)


def child(target: Any, *args: Any) -> BaseProcess:
    process = fork.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def sweep(store: TrajectoryStore) -> int:
    """What the supervisor does once nothing is queued; how many tickets it queued again."""
    lost = store.untaken()
    for ticket in lost:
        store.offer_again(ticket)
    return len(lost)


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_arrays_have_the_shapes_of_their_fields_and_do_not_overlap() -> None:
    store = make()
    assert {name: a.shape for name, a in store.arrays.items()} == {
        "obs/x": (4, 6, 2, 2), "reward": (4, 5, 2), "core": (4, 2, 3),
    }  # fmt: skip
    for number, array in enumerate(store.arrays.values()):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(store.arrays.values()))


def test_another_process_writes_to_the_same_memory() -> None:
    store = make()
    process = multiprocessing.get_context("spawn").Process(target=write_one, args=(store,))
    process.start()
    slot = store.take(timeout=60)
    assert slot is not None
    assert (store.arrays["reward"][slot] == 3).all()
    process.join()


def write_one(store: TrajectoryStore) -> None:
    slot = store.acquire(0, timeout=60)
    assert slot is not None
    store.arrays["reward"][slot] = 3
    store.finish(slot)


def test_too_little_memory_is_said_with_the_numbers() -> None:
    with pytest.raises(MemoryError, match=r"trajectory store \(1000 slots of 1000000 x 1000 steps.*MiB are available"):
        TrajectoryStore(FIELDS, 1000, 1_000_000, 1000)


# -- ownership ------------------------------------------------------------------------------------------------------------


def test_a_slot_goes_from_worker_to_learner_and_is_free_again() -> None:
    store = make(num_slots=1)
    assert store.acquire(0, timeout=0) == 0
    assert store.acquire(1, timeout=0) is None
    assert store.take(timeout=0) is None
    store.finish(0)
    assert store.qsize() == 1
    assert store.take(timeout=0) == 0
    assert store.acquire(1, timeout=0) is None  # not before it is released
    store.release(0)
    assert store.acquire(1, timeout=0) == 0


def test_finished_slots_are_taken_in_order() -> None:
    store = make()
    slots = [store.acquire(0, timeout=0) for _ in range(4)]
    assert sorted(s for s in slots if s is not None) == [0, 1, 2, 3]
    order = [2, 0, 3, 1]
    for slot in order:
        store.finish(slot)
    assert [store.take(timeout=0) for _ in order] == order


def test_who_waits_for_a_slot_gets_the_one_that_is_released() -> None:
    store = make(num_slots=1)
    store.acquire(0, timeout=0)
    store.finish(0)
    process = child(write_one, store)
    time.sleep(0.1)
    assert store.take(timeout=1) == 0
    store.release(0)
    assert store.take(timeout=60) == 0
    process.join()


def test_two_threads_of_one_worker_get_two_slots() -> None:
    """The second one asks, and is answered, between the first one's answer and the moment that it looks at it."""
    store, others = make(), []

    class Owners:
        def acquire(self, *arguments: Any, **timeout: Any) -> int:
            acquired: int = owners.acquire(*arguments, **timeout)
            if not others:
                others.append(-1)
                others.append(store.acquire(0, timeout=0))
            return acquired

    owners, store._owners = store._owners, Owners()  # type: ignore[assignment]
    first = store.acquire(0, timeout=1)
    assert first is not None
    assert sorted([first, others[-1]]) == [0, 1]


def test_a_dead_workers_slots_are_free_and_its_tickets_refused() -> None:
    store = make()
    finished, filling = store.acquire(0, timeout=0), store.acquire(0, timeout=0)
    others = store.acquire(1, timeout=0)
    assert finished is not None
    assert others is not None
    store.finish(finished)
    assert store.free_worker(0) == 2
    assert store.take(timeout=0) is None  # its ticket is in the queue, and refused
    assert {store.acquire(2, timeout=0), store.acquire(2, timeout=0), store.acquire(2, timeout=0)} > {finished, filling}
    assert store.acquire(2, timeout=0) is None  # the other worker still owns its own
    store.finish(others)
    assert store.take(timeout=0) == others


def test_a_stale_ticket_is_refused_also_when_its_slot_was_finished_by_somebody_else() -> None:
    store = make(num_slots=1)
    store.acquire(0, timeout=0)
    store.finish(0)
    store.free_worker(0)
    store.acquire(1, timeout=0)  # the same slot, one life later: half-filled
    assert store.take(timeout=0) is None
    store.finish(0)
    assert store.take(timeout=0) == 0
    assert store.take(timeout=0) is None  # not once more


def test_a_dead_learners_slots_are_free() -> None:
    store = make()
    for _ in range(3):
        slot = store.acquire(0, timeout=0)
        assert slot is not None
        store.finish(slot)
    store.take(timeout=0)
    store.take(timeout=0)
    assert store.free_learner() == 2
    assert store.qsize() == 1  # what it had not taken still waits
    assert len([s for s in (store.acquire(1, timeout=0) for _ in range(4)) if s is not None]) == 3


def test_a_ticket_lost_with_a_learner_is_found_and_taken_once() -> None:
    store = make()
    slots = [store.acquire(0, timeout=0) for _ in range(3)]
    for slot in slots:
        assert slot is not None
        store.finish(slot)
    assert store.take(timeout=0) == slots[0]
    assert store._ready.get(timeout=0) is not None  # the learner is killed between the queue and the table
    assert store.take(timeout=0) == slots[2]
    assert sweep(store) == 1
    assert sweep(store) == 1  # queued twice
    assert store.take(timeout=0) == slots[1]
    assert store.take(timeout=0) is None
    assert sweep(store) == 0


def test_nothing_is_lost_to_the_sweep_before_it_is_finished() -> None:
    store = make()
    assert store.untaken() == set()
    store.acquire(0, timeout=0)
    assert store.untaken() == set()
    for _ in range(3):  # nor what was finished in an earlier life of the slot
        store.finish(0)
        store.take(timeout=0)
        store.release(0)
        store.acquire(0, timeout=0)
        assert store.untaken() == set()


def test_nobody_waits_for_a_queue_full_of_stale_tickets() -> None:
    """Workers that finish slots and die, again and again, while the learner is away."""
    store = make(num_slots=2)
    for _ in range(20):
        for _ in range(2):
            slot = store.acquire(0, timeout=0)
            assert slot is not None
            store.finish(slot)
        store.free_worker(0)
    slot = store.acquire(1, timeout=0)
    assert slot is not None
    started = time.monotonic()
    store.finish(slot)
    assert time.monotonic() - started < 30  # seconds; there is room again when the learner is back, that is, never
    assert store.take(timeout=0) in (None, slot)  # whether or not there was room
    store.acquire(1, timeout=0)
    sweep(store)
    taken = {store.take(timeout=0), store.take(timeout=0)}
    assert taken <= {None, slot}


def test_the_end_of_the_run_ends_every_wait() -> None:
    store = make()
    slot = store.acquire(0, timeout=0)
    assert slot is not None
    store.close()
    with pytest.raises(Closed):
        store.take(timeout=10)
    with pytest.raises(Closed):
        store.finish(slot)


# -- with real deaths -----------------------------------------------------------------------------------------------------

NUM_SLOTS = 6


def work(store: TrajectoryStore, worker: int, life: int) -> None:
    """Fill slots with the worker's signature, row by row; a slot that somebody else writes to meanwhile would be mixed."""
    number = 1
    while True:
        slot = store.acquire(worker, timeout=1)
        if slot is None:
            continue
        for t in range(store.T):
            store.arrays["reward"][slot, t] = worker * 1e6 + life * 1e3 + number % 1000
        assert store._owners.owner(slot) == worker + 1
        store.finish(slot)
        number += 1


def learn(store: TrajectoryStore, taken: Any) -> None:
    """Take, check, release; counts in `taken`."""
    while True:
        slot = store.take(timeout=1)
        if slot is None:
            continue
        assert store._owners.owner(slot) == LEARNER
        rewards = store.arrays["reward"][slot].copy()
        if len(set(rewards.ravel().tolist())) != 1:
            taken[1] += 1  # mixed
        store.release(slot)
        taken[0] += 1


@pytest.mark.parametrize("kills", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_kills(kills: int) -> None:
    """Two workers and a learner, killed at random instants: no slot is mixed, none is lost."""
    rng, store = random.Random(3), TrajectoryStore(FIELDS, NUM_SLOTS, T=20, C=2)
    taken = fork.RawArray("q", 2)
    lives = [0, 0]
    workers = [child(work, store, w, 0) for w in range(2)]
    learner = child(learn, store, taken)
    for _ in range(kills):
        time.sleep(rng.random() * 0.02)
        if rng.random() < 0.3:
            kill(learner)
            store.free_learner()
            learner = child(learn, store, taken)
        else:
            w = rng.randrange(2)
            kill(workers[w])
            store.free_worker(w)
            lives[w] += 1
            workers[w] = child(work, store, w, lives[w])
    before, deadline = taken[0], time.monotonic() + 60
    while taken[0] < before + 50 and time.monotonic() < deadline:
        sweep(store)  # a learner's death may have hidden tickets; often, so doubles are refused, too
        time.sleep(0.01)
    assert taken[0] >= before + 50
    assert all(process.is_alive() for process in (*workers, learner)), "somebody's check failed"
    for process in (*workers, learner):
        kill(process)
    for w in range(2):
        store.free_worker(w)
    store.free_learner()
    assert taken[1] == 0
    got = [store.acquire(9, timeout=0) for _ in range(NUM_SLOTS)]
    assert sorted(s for s in got if s is not None) == list(range(NUM_SLOTS))
