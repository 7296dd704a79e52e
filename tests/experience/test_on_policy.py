"""`OnPolicyExperience` by itself: a trajectory store, whose slots the tests finish, and batches of them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.experience.on_policy import OnPolicyExperience
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.trajectory_store import TrajectoryStore

SPEC = EnvSpec({"obs": ArraySpec((2,), np.dtype(np.float32))}, ActionSpec((Categorical(3),)))
T, C, CORE, SLOTS = 3, 2, 5, 6


def make_store() -> TrajectoryStore:
    return TrajectoryStore(trajectory_fields(SPEC, CORE), SLOTS, T, C)


def finish(store: TrajectoryStore, number: int) -> int:
    """Finish a slot in which everything is `number`, but flags: the last row is no transition, one game ended with -`number`."""
    slot = store.acquire(0, timeout=60)
    assert slot is not None, "no slot is free"
    for name, array in store.arrays.items():
        array[slot] = name in ("valid",) if array.dtype == bool else number
    store.arrays["valid"][slot, T - 1] = False
    store.arrays["episode_return"][slot] = np.nan
    store.arrays["episode_return"][slot, 1, 0] = -number
    store.finish(slot)
    return slot


def free_slots(store: TrajectoryStore) -> int:
    """How many slots a rollout worker could have."""
    taken = []
    while (slot := store.acquire(9, timeout=0)) is not None:
        taken.append(slot)
    store.free_worker(9)
    return len(taken)


def numbers(batch: object) -> list[float]:
    """What the slots of a batch were filled with, in order."""
    reward = batch.data["reward"]  # type: ignore[attr-defined]
    assert (reward == reward[0]).all()
    return reward[0, ::C].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("reported", "returns"), [(range(7, 9), [-7, -8]), (None, [-7, -8, -9])])
def test_episodes_of_the_reported_environments_count(reported: range | None, returns: list[int]) -> None:
    index = {"env_index": ArraySpec((), np.dtype(np.int32))}
    store = TrajectoryStore(trajectory_fields(SPEC, CORE, index), SLOTS, T, C)
    experience = OnPolicyExperience(store, 3, "cpu", reported=reported)
    for number in (7, 8, 9):
        finish(store, number)
    batch = experience.next(timeout=60)
    assert batch is not None
    assert batch.arrivals.returns.tolist() == returns
    assert batch.arrivals.steps == 3 * C * (T - 1)


def test_a_batch_holds_its_slots_side_by_side_in_the_order_in_which_they_were_finished() -> None:
    store = make_store()
    experience = OnPolicyExperience(store, 3, "cpu")
    for number in (7, 8, 9):
        finish(store, number)
    batch = experience.next(timeout=60)
    assert batch is not None
    assert numbers(batch) == [7, 8, 9]
    assert set(batch.data) == set(store.fields)
    assert batch.data["obs/obs"].shape == (T + 1, 3 * C, 2)
    assert batch.data["action"].shape == (T, 3 * C, 1)
    assert batch.data["core"].tolist() == [[n] * CORE for n in (7, 7, 8, 8, 9, 9)]
    assert batch.version.tolist() == [[7, 7, 8, 8, 9, 9]] * T
    assert batch.valid is not None
    assert batch.valid[:, 0].tolist() == [True, True, False, True]
    assert batch.keys is None
    assert batch.arrivals.steps == 3 * C * (T - 1)  # row T belongs to the next slot
    assert batch.arrivals.returns.tolist() == [-7, -8, -9]
    assert batch.arrivals.lengths.tolist() == [7, 8, 9]
    assert free_slots(store) == SLOTS  # they were free as soon as they were copied


def test_nothing_within_the_timeout() -> None:
    store = make_store()
    experience = OnPolicyExperience(store, 2, "cpu")
    finish(store, 1)
    began = time.monotonic()
    assert experience.next(timeout=0.1) is None
    assert 0.1 <= time.monotonic() - began < 60
    finish(store, 2)
    batch = experience.next(timeout=60)
    assert batch is not None
    assert numbers(batch) == [1, 2]


def test_a_batch_is_not_overwritten_before_it_is_released() -> None:
    store = make_store()
    experience = OnPolicyExperience(store, 1, "cpu")
    finish(store, 1)
    batch = experience.next(timeout=60)
    assert batch is not None
    for number in (2, 3):
        finish(store, number)
    assert experience.next(timeout=0.2) is None  # on the CPU there is memory for one batch
    assert numbers(batch) == [1]
    for number in (2, 3):
        experience.release()
        later = experience.next(timeout=60)
        assert later is not None
        assert numbers(later) == [number]


def test_the_end_of_the_run_wakes_who_waits_and_stays_the_end() -> None:
    store = make_store()
    experience = OnPolicyExperience(store, 1, "cpu")
    threading.Timer(0.2, store.close).start()
    began = time.monotonic()
    assert experience.next() is None
    assert time.monotonic() - began < 60
    assert experience.next() is None
    assert experience.next(timeout=0.1) is None


def test_what_fails_in_the_thread_is_raised_for_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()

    def release(slot: int) -> None:
        raise RuntimeError(f"slot {slot} is nobody's")

    monkeypatch.setattr(store, "release", release)
    experience = OnPolicyExperience(store, 1, "cpu")
    slot = finish(store, 1)
    for _ in range(2):  # it does not go away
        with pytest.raises(RuntimeError, match=f"slot {slot} is nobody's"):
            experience.next(timeout=60)


def test_serial_collects_what_a_batch_needs_and_nothing_before() -> None:
    store, asked = make_store(), list[int]()

    def collect(n: int) -> None:
        asked.append(n)
        for number in range(n if len(asked) < 3 else 1):  # the third time it gives up half-way
            finish(store, 10 * len(asked) + number)

    experience = OnPolicyExperience(store, 2, "cpu", collect)
    assert asked == []
    for call in (1, 2):
        batch = experience.next()
        assert batch is not None
        assert numbers(batch) == [10 * call, 10 * call + 1]
        experience.release()
    assert experience.next() is None
    assert asked == [2, 2, 2]
    assert store.qsize() == 1  # a batch is taken whole or not at all


def test_trajectories_have_no_priorities_and_leave_nothing_to_save() -> None:
    experience = OnPolicyExperience(make_store(), 1, "cpu", lambda n: None)
    with pytest.raises(TypeError):
        experience.update_priorities(np.zeros(1, np.uint64), torch.zeros(1))
    assert (experience.metrics(), experience.get_state()) == ({}, None)
