"""Queues, words, versioned buffers and slot credits between real processes, hundreds of which are killed at random instants."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch

import headrace._native.ipc as native
from headrace.shm.primitives import Closed, Queue, Slots, Words
from headrace.shm.segment import Segment, available_memory
from headrace.shm.weight_store import WeightStore

# Processes that are killed by the hundred must start fast; the other ways to start one are tested by name.
fork = multiprocessing.get_context("fork")


def child(target, *args):
    process = fork.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()


# Segment


def test_segment_is_shared_zeroed_and_kept_alive_by_its_views():
    segment = Segment(256)
    array = segment.ndarray(np.float32, (4, 2), offset=64)
    tensor = torch.frombuffer(segment, dtype=torch.uint8)
    assert segment.nbytes == 256
    assert not tensor.any()
    del segment
    process = child(array.__setitem__, (3, 1), 7.0)
    process.join()
    assert array[3, 1] == 7.0
    assert tensor[64 + 28 : 64 + 32].numpy().view(np.float32)[0] == 7.0


def test_segment_leaves_no_name_and_no_descriptor():
    gc.collect()  # what earlier tests have left must not be closed meanwhile
    descriptors, names = descriptors_of_this_process(), names_of_this_process()
    segment = Segment(1 << 20)
    segment.prefault()
    assert names_of_this_process() == names
    assert len(descriptors_of_this_process() - descriptors) == 1
    del segment
    assert descriptors_of_this_process() <= descriptors


def descriptors_of_this_process():
    """Each with what it stands for."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def names_of_this_process():
    """In /dev/shm, where other programs come and go."""
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if "/dev/shm/" in line}


def test_segment_cannot_be_resized_under_its_users():
    segment = Segment(4096)
    with pytest.raises(OSError, match="Operation not permitted"):
        os.ftruncate(segment.fd, 0)


def test_segment_too_large_says_how_much_there_is():
    needed = available_memory() + (1 << 44)  # however much other programs give back meanwhile
    with pytest.raises(MemoryError, match=r"the trajectory store needs [\d,]+ MiB; [\d,]+ MiB are available"):
        Segment(needed, purpose="the trajectory store")


def test_pickling_is_refused_outside_the_start_of_a_process():
    with pytest.raises(TypeError, match="process that is being started"):
        pickle.dumps(Queue(4))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda s: s.ndarray(np.uint8, 300), TypeError),
        (lambda s: native.Queue(s, 0, 64), IndexError),
        (lambda s: native.Queue(s, 8, 1), IndexError),
        (lambda s: Queue(0), ValueError),
        (lambda s: Slots(40_000), ValueError),
        (lambda s: Words(2).load(2), IndexError),
        (lambda s: WeightStore(8).read(np.zeros(9, np.uint8)), ValueError),
        (lambda s: Slots(2).reclaim(0), ValueError),
        (lambda s: Segment(0), ValueError),
    ],
)
def test_what_cannot_be_is_refused(make, error):
    with pytest.raises(error):
        make(Segment(256))


def use_everything(segment, queue, words, buffer, slots):
    slot = np.zeros(1, np.int32)
    slots.acquire(3, slot)
    queue.put(slots.ticket(slot[0]))
    buffer.publish(np.full(100, 5, np.uint8), 17)
    segment.ndarray(np.int64, 1)[0] = 99
    words.store(1, 4)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_every_way_to_start_a_process_shares(method):
    segment, queue, words, buffer, slots = Segment(8), Queue(8), Words(2), WeightStore(100), Slots(5)
    context = multiprocessing.get_context(method)
    process = context.Process(target=use_everything, args=(segment, queue, words, buffer, slots))
    process.start()
    assert words.wait_nonzero(1, timeout=60) == 4
    out = np.zeros(100, np.uint8)
    assert buffer.read(out) == 17
    assert (out == 5).all()
    assert slots.transfer(queue.get(), 9)
    assert segment.ndarray(np.int64, 1)[0] == 99
    process.join()
    assert process.exitcode == 0


# Queue


def test_queue_order_bounds_and_end():
    queue = Queue(5)
    assert queue.capacity == 8
    assert queue.put_many(np.arange(-3, 17, dtype=np.int32), timeout=0.0) == 8
    assert not queue.put(1, timeout=0.01)
    assert queue.qsize() == 8
    out = np.zeros(5, np.int32)
    assert queue.get_many(out) == 5
    assert out.tolist() == [-3, -2, -1, 0, 1]
    assert queue.put(2**31 - 1)
    assert [queue.get() for _ in range(4)] == [2, 3, 4, 2**31 - 1]
    started = time.monotonic()
    assert queue.get(timeout=0.05) is None
    assert time.monotonic() - started >= 0.05
    assert queue.get(timeout=0) is None
    queue.put(6)
    queue.close()
    with pytest.raises(Closed):
        queue.put(7)
    assert queue.get() == 6
    with pytest.raises(Closed):
        queue.get()
    with pytest.raises(Closed):
        queue.get_many(out, min_items=3, patience=1.0)


def test_queue_many_laps():
    queue = Queue(4)
    for lap in range(20_000):
        assert queue.put_many(np.arange(lap, lap + 3, dtype=np.int32)) == 3
        assert [queue.get() for _ in range(3)] == [lap, lap + 1, lap + 2]


def test_get_many_waits_for_a_batch_but_not_longer_than_its_patience():
    queue, out = Queue(64), np.zeros(64, np.int32)

    def put_slowly(n):
        for value in range(n):
            time.sleep(0.02)
            queue.put(value)

    threading.Thread(target=put_slowly, args=(5,)).start()
    assert queue.get_many(out, min_items=5, patience=30.0) == 5
    threading.Thread(target=put_slowly, args=(1,)).start()
    started = time.monotonic()
    assert queue.get_many(out, min_items=5, patience=0.1) == 1
    assert 0.1 <= time.monotonic() - started < 25  # seconds; its `patience` before was 30
    assert queue.get_many(out, min_items=5, timeout=0.05, patience=30.0) == 0


def test_close_wakes_those_who_wait():
    queue, full, outcomes = Queue(4), Queue(1), Queue(8)
    full.put(0)

    def expect_closed(operation):
        with pytest.raises(Closed):
            operation()
        outcomes.put(1)

    out = np.zeros(4, np.int32)
    waiters = [queue.get, lambda: queue.get_many(out, 3, patience=60.0), lambda: full.put(1)]
    for waiter in waiters:
        threading.Thread(target=expect_closed, args=(waiter,)).start()
    time.sleep(0.05)
    queue.close()
    full.close()
    assert [outcomes.get(timeout=60) for _ in waiters] == [1, 1, 1]


def produce(queue, producer, n):
    rng, k = random.Random(producer), 0
    while k < n:
        many = min(rng.randrange(1, 7), n - k)
        queue.put_many((np.arange(k, k + many) * 16 + producer).astype(np.int32))
        k += many


def test_many_producers_and_consumers_lose_and_double_nothing():
    queue, producers, each = Queue(16), 3, 4000
    got = Segment(producers * each * 2).ndarray(np.uint16, (producers, each))

    def consume(most):
        out, last = np.zeros(most, np.int32), np.full(producers, -1)
        while True:
            try:
                n = queue.get_many(out)
            except Closed:
                return
            for value in out[:n]:
                k, producer = divmod(int(value), 16)
                assert k > last[producer]
                last[producer] = k
                got[producer, k] += 1  # each element is written by one process: its value is got once

    consumers = [child(consume, most) for most in (1, 5)]
    processes = [child(produce, queue, p, each) for p in range(producers)]
    for process in processes:
        process.join()
    queue.close()
    for consumer in consumers:
        consumer.join()
        assert consumer.exitcode == 0
    assert (got == 1).all()


@pytest.mark.process
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_queue_survives_hundreds_of_kills(seed):
    """Producers and consumers are killed inside puts and gets. Survivors must go on, ten values before the next kill; values must
    stay in each producer's order and come once, and no more may be lost than consumers were killed with in their hands."""
    kills, n_producers, most = 120, 2, 4
    rng, queue = random.Random(seed), Queue(8)
    put = Segment(8 * n_producers).ndarray(np.int64, n_producers)  # the next value; at most this one may be in or out
    got = Segment(1 << 24).ndarray(np.uint8, (n_producers, 1 << 23))

    def produce_forever(me):
        while True:
            queue.put(int(put[me]) * n_producers + me)
            put[me] += 1

    def consume_forever(many):
        out = np.zeros(many, np.int32)
        while True:
            n = queue.get_many(out, min_items=many, patience=0.001)
            for value in out[:n]:
                got[value % n_producers, value // n_producers] += 1

    def start(role):
        return child(produce_forever, role) if role < n_producers else child(consume_forever, most if role % 2 else 1)

    roles = [start(role) for role in range(n_producers + 2)]
    for _ in range(kills):
        time.sleep(rng.random() * 0.004)
        role = rng.randrange(len(roles))
        kill(roles[role])
        before = got.sum(dtype=np.int64)
        if role < n_producers:
            put[role] += 1  # whether the value it died with was put is unknown; it is not used again
        roles[role] = start(role)
        deadline = time.monotonic() + 60
        while got.sum(dtype=np.int64) < before + 10:
            assert time.monotonic() < deadline, "nobody goes on"
            time.sleep(0.001)
    for process in roles:
        kill(process)
    assert got.max() == 1, "a value was got twice"
    left = np.zeros(64, np.int32)
    for value in left[: queue.get_many(left, timeout=0)]:
        got[value % n_producers, value // n_producers] += 1
    lost = sum(int((got[p, : put[p]] == 0).sum()) for p in range(n_producers))
    assert got.max() == 1
    assert lost <= (kills + len(roles)) * most
    assert got.sum() >= 10 * kills


# Words


def test_words():
    words = Words(3)
    assert words.fetch_or(0, 0b101) == 0
    assert words.fetch_and(0, 0b100) == 0b101
    assert words.take(0) == 0b100
    assert words.add(1, -1) == 2**32 - 1
    assert words.add(1, 3) == 2
    assert words.compare_exchange(1, 2, 8)
    assert not words.compare_exchange(1, 2, 9)
    assert [words.load(i) for i in range(3)] == [0, 8, 0]
    assert words.wait_nonzero(2, timeout=0.01) == 0
    assert words.wait_change(1, 8, timeout=0.01) == 8
    assert words.wait_change(1, 7) == 8


def test_words_ping_pong_between_processes():
    words, rounds = Words(2), 3000

    def answer():
        for _ in range(rounds):
            while not words.take(0):
                words.wait_nonzero(0)
            words.fetch_or(1, 1)

    process = child(answer)
    for _ in range(rounds):
        words.fetch_or(0, 1)
        while not words.take(1):
            assert words.wait_nonzero(1, timeout=60), "a wake-up was lost"
    process.join()
    assert process.exitcode == 0


def test_ctrl_c_ends_every_wait():
    queue, full, words, buffer, slots = Queue(2), Queue(1), Words(1), WeightStore(8), Slots(1)
    full.put(0)
    out = np.zeros(2, np.int32)
    slots.acquire(1, out[:1])

    def interrupted(wait):  # with the timer in it: on a busy machine that may end before `wait` begins
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        wait()

    waits = [
        queue.get,
        lambda: queue.get_many(out, 2, patience=60),
        lambda: full.put(1),
        lambda: words.wait_nonzero(0),
        lambda: buffer.wait(0),
        lambda: slots.acquire(2, out),
    ]
    for wait in waits:
        started = time.monotonic()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            interrupted(wait)
        assert time.monotonic() - started < 30  # seconds; no wait ends by itself before 60


# WeightStore


def test_versioned_buffer_round_trip():
    buffer, out = WeightStore(5), np.zeros(5, np.uint8)
    assert buffer.version == buffer.read(out) == buffer.updates == 0
    for version in (3, 9, 4):
        buffer.publish(np.arange(5, dtype=np.uint8) + version, version)
        assert buffer.version == buffer.read(out) == version
        assert out.tolist() == list(range(version, version + 5))
    assert buffer.updates == 3
    assert not buffer.wait(3, timeout=0.01)


def test_versioned_buffer_never_shows_half_an_update_though_writers_are_killed():
    nbytes = 300_000
    buffer = WeightStore(nbytes)

    def publish_forever(seed):
        version = seed * 1_000_000
        while True:
            version += 1
            buffer.publish(np.full(nbytes, version % 251, np.uint8), version)

    rng, out, seen, writer = random.Random(0), np.zeros(nbytes, np.uint8), set(), None
    for kills in range(60):
        writer = child(publish_forever, kills)
        updates = buffer.updates
        assert buffer.wait(updates, timeout=60)
        until = time.monotonic() + rng.random() * 0.02
        while True:
            version = buffer.read(out)
            assert (out == version % 251).all()
            seen.add(version)
            if time.monotonic() >= until:
                break
        kill(writer)
    assert len(seen) >= 60, "one of every writer at least"


# Slots


def test_slots_change_hands():
    slots, out = Slots(3), np.zeros(5, np.int32)
    assert slots.acquire(7, out) == 3
    assert sorted(out[:3]) == [0, 1, 2]
    assert slots.count(7) == 3
    assert slots.acquire(8, out, timeout=0.01) == 0
    ticket = slots.ticket(1)
    assert Slots.slot_of(ticket) == 1
    assert slots.transfer(ticket, 100)
    assert not slots.transfer(ticket, 100)
    assert slots.owner(1) == 100
    assert not slots.release(1, 7)
    assert slots.release(1, 100)
    assert not slots.transfer(ticket, 100)
    assert slots.acquire(8, out) == 1
    assert out[0] == 1
    assert not slots.transfer(ticket, 100), "the ticket of an earlier life"
    assert slots.reclaim(7) == 2
    assert (slots.count(0), slots.count(7), slots.count(8)) == (2, 0, 1)


def test_tickets_stay_in_range_through_all_lives():
    slots, out = Slots(1), np.zeros(1, np.int32)
    for _ in range(70_000):
        assert slots.acquire(1, out) == 1
        assert 0 <= slots.ticket(0) < 2**31
        assert slots.release(0, 1)


def test_slot_credits_survive_hundreds_of_kills():
    """Rollout workers are killed at random; a learner must never see a slot that somebody else writes, and in the end every
    slot is free."""
    n_slots, n_workers, cells = 6, 3, 64
    slots, queue = Slots(n_slots), Queue(64)
    data = Segment(n_slots * cells * 8).ndarray(np.int64, (n_slots, cells))
    learner = 1000

    def work(me):
        out = np.zeros(1, np.int32)
        while True:
            slots.acquire(me, out)
            stamp = time.monotonic_ns()
            for cell in range(cells):
                data[out[0], cell] = stamp
            queue.put(slots.ticket(out[0]))

    rng = random.Random(3)
    workers = {me: child(work, me) for me in range(1, n_workers + 1)}
    learned, stale, kills, next_kill = 0, 0, 0, 0.0
    while kills < 120:
        ticket = queue.get(timeout=60)
        assert ticket is not None, "nobody goes on"
        if slots.transfer(ticket, learner):
            slot = Slots.slot_of(ticket)
            assert (data[slot] == data[slot, 0]).all(), "half a trajectory"
            data[slot] = -1
            slots.release(slot, learner)
            learned += 1
        else:
            stale += 1
        if time.monotonic() > next_kill and learned > 2 * kills:
            me = rng.randrange(1, n_workers + 1)
            kill(workers[me])
            assert slots.reclaim(me) <= n_slots
            workers[me] = child(work, me)
            kills, next_kill = kills + 1, time.monotonic() + rng.random() * 0.004
    for me, process in workers.items():
        kill(process)
        slots.reclaim(me)
    assert slots.count(0) == n_slots
    assert learned > kills
