"""Torch's threads: fewer of them while other programs hold cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace.accelerator import threads as threads_of_torch
from headrace.accelerator.threads import PROBE_PERIOD, TRUST, AdaptiveThreads, LearnerThreads, ThreadTrials, probe
from headrace.config import Config, PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.policies import pieces
from headrace.policies.encoders import make_network
from headrace.policies.pieces import in_pieces
from headrace.runs.messages import Message
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
    machine, found, samples, sent = Machine(), [], [], []
    machine.free = 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(threads_of_torch, "AdaptiveThreads", partial(AdaptiveThreads, measure=machine))
    monkeypatch.setattr(pieces, "_wanted", False)

    def learn(placement: Any, p: int) -> Iterator[Message | None]:
        for _ in expected:
            found.append(torch.get_num_threads())
            in_pieces(network, {"obs": torch.zeros(1000, 1, 36, 36)})
            samples.append(list(called))
            called.clear()
            yield None

    network, called = make_network({"obs": ArraySpec((1, 36, 36), np.dtype(np.uint8))}, PolicyConfig()), list[int]()
    network.register_forward_hook(lambda _, inputs, out: called.append(len(out)))
    config = configs.override(Config(env="made-up"), **{"learning.num_threads": fixed, "learning.device": "cpu"})
    report, control = SimpleNamespace(send=sent.append), SimpleNamespace(seconds=lambda role, phase, index: 0.0)
    placement = SimpleNamespace(configs=[config], memory=SimpleNamespace(control=control), version=lambda p: 0)
    learner_main(SimpleNamespace(placement=placement, index=0, argument=learn, report=report))  # type: ignore[arg-type]
    assert found == expected
    assert [len(each) for each in samples] == expected, "each thread computes a piece of the samples"
    assert [message.content[:29] for message in sent] == ([] if fixed else ["Threads of torch: 4 instead o"])


class Training:
    """A learner that is given one second after the other: `rates` are its updates per second by number of threads, `busy` is the
    share of the time that it computes, `spare` are the cores that are idle."""

    def __init__(self, threads: ThreadTrials | LearnerThreads, rates: dict[int, float], busy: float = 1.0, spare: float = 1.0):
        self.threads, self.rates, self.busy, self.spare = threads, rates, busy, spare
        self.now, self.computed, self.updates, self.idle = 100.0, 0.0, 0.0, 0.0
        self.used: list[int] = []
        self.said: list[str] = []

    def measured(self) -> tuple[float, int]:
        return self.computed, int(self.updates)

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            number = torch.get_num_threads()
            self.used.append(number)
            self.now += 1.0
            self.computed += self.busy
            self.updates += self.rates[number]
            self.idle += self.spare
            more = () if isinstance(self.threads, LearnerThreads) else self.measured()
            said = self.threads.adapt(self.now, *more)
            self.said += [said] if said else []


def trained(rates: dict[int, float], busy: float = 1.0, seconds: int = 300, spare: float = 1.0) -> Training:
    torch.set_num_threads(1)
    training: Training
    training = Training(ThreadTrials(1, 2, lambda: training.idle), rates, busy, spare)
    training.go_on(seconds)
    return training


def test_more_threads_are_kept_where_updates_come_faster() -> None:
    training = trained({1: 4.0, 2: 5.0})
    assert training.used[:60] == [1] * 4 + [2] * 56
    assert training.said == ["Threads of torch: 2 instead of 1 (5 updates/s with 2, 4 with 1)"]
    assert training.used.count(1) <= 60, "few threads are tried again now and then, one window each"
    assert training.used[-1] == 2


def test_more_threads_are_given_back_where_they_gain_too_little() -> None:
    training = trained({1: 4.0, 2: 4.0}, seconds=1000)
    assert training.said == []
    assert training.used[-1] == 1
    assert training.used.count(2) == 4 * 3, "trials at 4, 67, 190 and 433 seconds, of one window each"


def test_a_trial_that_is_much_slower_ends_before_its_updates_are_made() -> None:
    training = trained({1: 0.2, 2: 0.01}, seconds=1500)
    assert training.used[-1] == 1
    assert training.used.count(2) <= 300, "five updates would take 500 seconds, in each trial"


def test_a_learner_that_waits_for_others_tries_nothing() -> None:
    assert set(trained({1: 4.0, 2: 9.0}, busy=0.9).used) == {1}


def test_a_learner_whose_neighbours_use_all_cores_tries_nothing() -> None:
    assert set(trained({1: 4.0, 2: 9.0}, spare=0.2).used) == {1}


def test_nothing_is_tried_while_other_programs_hold_cores() -> None:
    torch.set_num_threads(1)
    training: Training
    training = Training(ThreadTrials(4, 8, lambda: training.idle), {1: 4.0, 4: 4.0, 8: 9.0})
    training.go_on(100)
    assert set(training.used) == {1}


def test_few_threads_are_tried_at_once_when_updates_become_slower() -> None:
    training = trained({1: 4.0, 2: 5.0}, seconds=60)
    training.rates = {1: 3.0, 2: 1.0}
    training.go_on(25)
    assert training.used[-1] == 1
    assert [said.split(",")[0] for said in training.said[1:]] == ["Threads of torch: 1 instead of 2 (3 updates/s with 1"]
    training.rates = {1: 4.0, 2: 5.0}
    training.go_on(100)
    assert training.used[-1] == 2


def test_a_moment_in_which_everything_is_slow_does_not_cost_a_thread() -> None:
    training = trained({1: 4.0, 2: 5.0}, seconds=60)
    training.rates = {1: 2.0, 2: 2.5}
    training.go_on(12)
    training.rates = {1: 4.0, 2: 5.0}
    training.go_on(40)
    assert training.used[-30:] == [2] * 30
    assert len(training.said) == 1


def test_few_threads_are_taken_again_when_they_have_become_as_fast() -> None:
    training = trained({1: 4.0, 2: 5.0}, seconds=60)
    training.rates = {1: 5.0, 2: 5.0}
    training.go_on(120)
    assert training.used[-1] == 1
    assert training.said[1:] == ["Threads of torch: 1 instead of 2 (5 updates/s with 1, 5 with 2)"]


def test_slow_updates_make_long_windows() -> None:
    """A window has at least five updates."""
    training = trained({1: 0.1, 2: 0.2}, seconds=120)
    assert training.used[:50] == [1] * 50
    assert training.used[-1] == 2


@pytest.mark.parametrize(("settings", "cores", "expected"), [
    ({}, 2, {1, 2}), ({}, 1, {1}), ({"learning.num_threads": 1}, 2, {1}), ({"population.size": 2}, 2, {1}),
    ({"population.size": 2}, 8, {2, 4}), ({"learning.experience": "replay"}, 2, {1}),
    ({"learning.experience": "replay", "replay.samples_per_insert": 8.0}, 2, {1, 2}),
])  # fmt: skip
def test_a_learner_tries_its_share_of_all_cores_unless_the_user_has_fixed_the_number(
    settings: dict[str, Any], cores: int, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(threads_of_torch, "AdaptiveThreads", partial(AdaptiveThreads, measure=lambda number: 1.0 / number))
    monkeypatch.setattr(threads_of_torch, "ThreadTrials", partial(ThreadTrials, idle=lambda: training.idle))
    config = configs.override(Config(env="made-up"), **{"learning.device": "cpu"}, **settings)
    torch.set_num_threads(config.learner_threads)
    training: Training
    threads = LearnerThreads(config, lambda: training.measured())
    training = Training(threads, dict.fromkeys((1, 2, 3, 4), 0.5) | {max(expected): 1.0})
    training.go_on(60)
    assert set(training.used) == expected
    assert training.used[-1] == max(expected)


def test_a_policy_that_became_a_copy_has_not_made_the_updates_that_its_versions_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions then go on 1001 higher, which would make the threads that are being tried look many times as fast."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(threads_of_torch, "AdaptiveThreads", partial(AdaptiveThreads, measure=lambda number: 1.0 / number))
    monkeypatch.setattr(threads_of_torch, "ThreadTrials", partial(ThreadTrials, idle=lambda: training.idle))
    config = configs.override(Config(env="made-up"), **{"learning.device": "cpu"})
    torch.set_num_threads(1)
    training: Training
    threads = LearnerThreads(config, lambda: training.measured())
    training = Training(threads, {1: 1.0, 2: 0.5})
    training.go_on(15)
    assert training.used[-1] == 2, "they are being tried"
    training.updates += 1001
    training.go_on(35)
    assert training.used[-1] == 1
    assert training.said == []


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
