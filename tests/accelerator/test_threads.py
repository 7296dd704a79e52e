"""Torch's threads: fewer of them while other programs hold cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace import config as configs
from headrace.accelerator import threads as threads_of_torch
from headrace.accelerator.threads import PROBE_PERIOD, TRUST, AdaptiveThreads, probe
from headrace.config import Config
from headrace.sampling.placements.base import Message
from headrace.sampling.placements.processes import learner_main

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint('spinning', flush=True)\nwhile True: pass"


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """Eight cores, of which some are held by others: a product with more threads than are free is 20 times as slow."""

    def __init__(self) -> None:
        self.free, self.measured = 8, 0

    def __call__(self, threads: int) -> float:
        self.measured += 1
        return 1.0 / threads if threads <= self.free else 20.0


def test_the_fastest_number_is_taken_and_said_once_per_change() -> None:
    machine = Machine()
    threads = AdaptiveThreads(8, machine)
    assert threads.adapt(now=100.0) is None
    said, now = [], 100.0
    for free, expected in ((7, 7), (7, 7), (6, 4), (3, 1), (3, 1), (8, 8), (8, 8)):
        machine.free = free
        now += PROBE_PERIOD
        said.append(threads.adapt(now))
        assert threads.threads == torch.get_num_threads() == expected
    assert [text is not None for text in said] == [True, False, True, True, False, True, False]
    assert "7 instead of 8, since other programs hold cores (a small product takes 142.86 ms with 7" in str(said[0])
    assert "8 instead of 1, since cores are free again" in str(said[5])


def test_nothing_is_measured_in_between_nor_for_one_thread() -> None:
    machine = Machine()
    threads = AdaptiveThreads(8, machine)
    threads.adapt(now=100.0)
    before = machine.measured
    threads.adapt(now=100.0 + PROBE_PERIOD / 2)
    assert machine.measured == before
    AdaptiveThreads(1, machine).adapt(now=100.0)
    assert machine.measured == before


def test_a_small_gain_changes_nothing() -> None:
    threads = AdaptiveThreads(2, lambda n: 1.0 + 0.1 * (n == 2))
    assert threads.adapt(now=100.0) is None
    assert threads.threads == 2


def test_a_program_that_is_idle_for_moments_does_not_get_the_threads_back_each_time() -> None:
    """Of ten minutes in which others hold the cores half of the time, in turns of one measurement, few are lost."""
    machine = Machine()
    threads = AdaptiveThreads(8, machine)
    many = []
    for k in range(200):
        machine.free = 8 if k % 2 else 1
        threads.adapt(100.0 + k * PROBE_PERIOD)
        many.append(threads.threads > 1)
    assert sum(many) <= 2
    machine.free, now = 8, 100.0 + 200 * PROBE_PERIOD
    assert threads.adapt(now) is not None, "the second measurement in a row is enough after one mistake"
    assert threads.threads == 8


def test_patience_grows_with_mistakes_and_is_forgotten_after_a_good_minute() -> None:
    machine, now = Machine(), 100.0
    threads = AdaptiveThreads(8, machine)
    waits = []
    for hold in (1, 1, 1, 1, 1, 1, 1, int(TRUST / PROBE_PERIOD) + 1, 1):
        machine.free = 1
        while threads.threads > 1:
            threads.adapt(now := now + PROBE_PERIOD)
        machine.free, wait = 8, 0
        while threads.threads == 1:
            threads.adapt(now := now + PROBE_PERIOD)
            wait += 1
        waits.append(wait)
        for _ in range(hold):
            threads.adapt(now := now + PROBE_PERIOD)
    assert waits == [1, 2, 4, 8, 16, 16, 16, 16, 1]


@pytest.mark.parametrize(("fixed", "expected"), [(None, [8, 4, 4]), (6, [6, 6, 6])])
def test_a_learner_in_a_process_of_its_own_adapts_unless_the_user_has_fixed_the_number(
    fixed: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, found, sent = Machine(), [], []
    machine.free = 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(threads_of_torch, "AdaptiveThreads", partial(AdaptiveThreads, measure=machine))

    def learn(placement: Any, p: int) -> Iterator[Message | None]:
        for _ in expected:
            found.append(torch.get_num_threads())
            yield None

    config = configs.override(Config(env="made-up"), **{"learning.num_threads": fixed, "learning.device": "cpu"})
    report = SimpleNamespace(send=sent.append)
    learner_main(SimpleNamespace(placement=SimpleNamespace(configs=[config]), index=0, argument=learn, report=report))  # type: ignore
    assert found == expected
    assert [message.content[:29] for message in sent] == ([] if fixed else ["Threads of torch: 4 instead o"])


def test_with_a_program_that_spins_on_every_other_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is one core")
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE) for core in cores[1:] for _ in range(3)
    ]
    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()
        threads = AdaptiveThreads(len(cores), probe)
        for attempt in range(20):  # the scheduler may be kind once
            threads.adapt(now=100.0 + attempt * PROBE_PERIOD)
            if threads.threads < len(cores):
                break
        assert threads.threads < len(cores)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
