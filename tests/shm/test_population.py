"""What the policies of a population tell each other through shared memory."""

from __future__ import annotations

import copy
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.shm.population import PopulationMemory


def test_nothing_is_known_at_first() -> None:
    memory = PopulationMemory([100, 100], {"a": 1.0, "b": 2.0})
    assert np.isnan(memory.objectives).all()
    assert memory.reward_updates.tolist() == [0, 0]
    memory.set_reward_weights(1, [3.0, 4.0])
    assert memory.reward_weights.tolist() == [[1, 2], [3, 4]]
    assert memory.weights_of(1) == {"a": 3.0, "b": 4.0}
    assert memory.reward_updates.tolist() == [0, 1]


def learner(memory: PopulationMemory, policy: int, make: Callable[[], bytes]) -> PopulationMemory:
    """The memory as the process of a policy's learner has it."""
    there = copy.copy(memory)
    there.offer(policy, make)
    return there


def test_a_copy_is_one_that_was_made_after_it_was_asked_for() -> None:
    memory = PopulationMemory([100, 100])
    memory.write(1, b"old")
    made = iter([b"new", b"newer"])
    other, donor = learner(memory, 0, lambda: b"another's"), learner(memory, 1, lambda: next(made))
    donor.serve(1)  # nobody has asked
    seen = other.want(1, 0)
    assert other.read(1, seen) is None
    other.serve(0)
    assert other.read(1, seen) is None
    donor.serve(1)
    assert other.read(1, seen) == b"new"
    donor.serve(1)
    assert other.read(1, seen) == b"new", "asked for once, it is given once"


def test_where_all_learners_are_in_one_process_copies_are_made_at_once_and_never_written() -> None:
    memory, number = PopulationMemory([100, 100]), iter(range(9))
    for policy in (0, 1):
        memory.offer(policy, lambda: bytes([next(number)]))
    assert memory.read(1, memory.want(1, 0)) == bytes([0])
    assert memory.read(1, memory.want(1, 0)) == bytes([1])
    memory.serve(1, last=True)
    assert not memory.copies[1].updates


def test_a_donor_that_dies_while_it_makes_a_copy_still_owes_one() -> None:
    memory = PopulationMemory([100, 100])
    seen = memory.want(0, 1)

    def dies() -> bytes:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        learner(memory, 0, dies).serve(0)
    learner(memory, 0, lambda: b"of its successor").serve(0)
    assert memory.read(0, seen) == b"of its successor"


def test_who_asks_in_the_middle_of_anothers_question_is_heard() -> None:
    """One learner is stopped between reading the number of questions and writing it; meanwhile others ask and are answered."""
    memory = PopulationMemory([100] * 4)

    class Stopped(np.ndarray):
        others: Any = None

        def __getitem__(self, index: Any) -> Any:
            value = super().__getitem__(index)
            others, self.others = self.others, None
            if others is not None:
                others()
            return value

    numbers = memory._wanted
    stopped = numbers.view(Stopped)
    seen = []

    def meanwhile() -> None:
        memory._wanted = numbers
        memory.want(0, 1)
        learner(memory, 0, lambda: b"first").serve(0)
        seen.append(memory.want(0, 2))

    stopped.others, memory._wanted = meanwhile, stopped
    memory.want(0, 3)
    memory._wanted = numbers
    learner(memory, 0, lambda: b"second").serve(0)
    assert memory.read(0, seen[0]) == b"second"


def test_the_last_copy_of_a_policy_stays() -> None:
    memory = PopulationMemory([100])
    memory.write(0, b"end", last=True)
    assert memory.read(0, memory.want(0, 0)) == b"end"


def test_a_copy_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="a copy of policy 0 takes 101 bytes; there is memory for 100"):
        PopulationMemory([100]).write(0, bytes(101))


def _donor(memory: PopulationMemory) -> None:
    memory.objectives[1] = 5
    memory.offer(1, lambda: os.getpid().to_bytes(8, "little"))
    deadline = time.monotonic() + 60
    while not memory.copies[1].updates and time.monotonic() < deadline:
        memory.serve(1)
        time.sleep(0.005)


def test_between_processes() -> None:
    memory: Any = PopulationMemory([100, 100], {"a": 1.0})
    child = multiprocessing.get_context("spawn").Process(target=_donor, args=(memory,), daemon=True)
    child.start()
    seen = memory.want(1, 0)
    while (copy := memory.read(1, seen)) is None:
        assert child.is_alive() or memory.read(1, seen)
        time.sleep(0.005)
    assert int.from_bytes(copy, "little") == child.pid
    assert memory.objectives[1] == 5
    child.join()
