"""What the policies of a population tell each other through shared memory."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import numpy as np
import pytest

from headrace.shm.population_memory import PopulationMemory


def test_nothing_is_known_at_first() -> None:
    memory = PopulationMemory([100, 100], ["a", "b"])
    assert np.isnan(memory.objectives).all()
    assert memory.reward_updates.tolist() == [0, 0]
    memory.set_reward_weights(1, [3.0, 4.0])
    assert memory.reward_weights.tolist() == [[0, 0], [3, 4]]
    assert memory.reward_updates.tolist() == [0, 1]


def test_a_copy_is_one_that_was_made_after_it_was_asked_for() -> None:
    memory = PopulationMemory([100, 100])
    memory.write(1, b"old")
    seen = memory.want(1)
    assert memory.read(1, seen) is None
    assert memory.wanted(1)
    assert not memory.wanted(1), "asked for once, it is given once"
    assert not memory.wanted(0)
    memory.write(1, b"new")
    assert memory.read(1, seen) == b"new"


def test_the_last_copy_of_a_policy_stays() -> None:
    memory = PopulationMemory([100])
    memory.write(0, b"end", last=True)
    assert memory.read(0, memory.want(0)) == b"end"


def test_a_copy_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="a copy of policy 0 takes 101 bytes; there is memory for 100"):
        PopulationMemory([100]).write(0, bytes(101))


def _donor(memory: PopulationMemory) -> None:
    while not memory.wanted(1):
        time.sleep(0.005)
    memory.objectives[1] = 5
    memory.write(1, os.getpid().to_bytes(8, "little"))


def test_between_processes() -> None:
    memory: Any = PopulationMemory([100, 100], ["a"])
    child = multiprocessing.get_context("spawn").Process(target=_donor, args=(memory,), daemon=True)
    child.start()
    seen = memory.want(1)
    while (copy := memory.read(1, seen)) is None:
        assert child.is_alive() or memory.read(1, seen)
        time.sleep(0.005)
    assert int.from_bytes(copy, "little") == child.pid
    assert memory.objectives[1] == 5
    child.join()
