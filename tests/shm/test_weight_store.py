"""The weight store: whole updates only, whoever dies while writing."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest

from headrace.shm.weight_store import WeightStore

fork = multiprocessing.get_context("fork")
NBYTES = 1 << 20


def weights(number: int, nbytes: int = NBYTES) -> np.ndarray:
    return np.full(nbytes // 8, number, np.int64).view(np.uint8)


def test_readers_get_the_newest_with_its_version() -> None:
    store = WeightStore(64)
    assert (store.version, store.updates) == (0, 0)
    out = np.zeros(64, np.uint8)
    for update, version in enumerate((5, 6, 900), start=1):
        store.publish(weights(version, 64), version)
        assert (store.version, store.updates) == (version, update)
        assert store.read(out) == version
        assert (out.view(np.int64) == version).all()


def test_publishing_the_same_version_again_is_news() -> None:
    """A learner that starts again publishes what readers have to take, whatever its version."""
    store = WeightStore(64)
    store.publish(weights(1, 64), 7)
    before = store.updates
    store.publish(weights(2, 64), 7)
    assert store.updates == before + 1


def test_sizes_that_differ_are_refused() -> None:
    store = WeightStore(64)
    with pytest.raises(ValueError, match="64"):
        store.publish(np.zeros(63, np.uint8), 1)
    with pytest.raises(ValueError, match="64"):
        store.read(np.zeros(65, np.uint8))


def publish(store: WeightStore, version: int) -> None:
    while True:
        version += 1
        store.publish(weights(version), version)


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_instant_leaves_the_last_whole_update(kills: int) -> None:
    rng, store = random.Random(1), WeightStore(NBYTES)
    out: Any = np.zeros(NBYTES, np.uint8)
    newest = 0
    for _ in range(kills):
        updates = store.updates
        process = fork.Process(target=publish, args=(store, newest), daemon=True)
        process.start()
        assert store.wait(updates, timeout=60)
        end = time.monotonic() + 0.01 + rng.random() * 0.01
        while time.monotonic() < end:
            version = store.read(out)
            assert (out.view(np.int64) == version).all(), "half of an update"
            assert version >= newest
            newest = version
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        version = store.read(out)
        assert (out.view(np.int64) == version).all()
        newest = version
    assert newest >= kills
