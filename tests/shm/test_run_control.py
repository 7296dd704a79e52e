"""Run control: stop, ready with several policies, heartbeats, phase clocks."""

from __future__ import annotations

import multiprocessing
import threading
import time
from time import perf_counter

import numpy as np
import pytest

from headrace.config import hardware
from headrace.shm.phases import PHASES
from headrace.shm.run_control import POLL_INTERVAL, PhaseClock, RunControl


def make(num_policies: int = 1) -> RunControl:
    return RunControl({"rollout": 2, "policy": 3, "learner": num_policies}, num_policies)


def test_stop_ends_every_wait() -> None:
    control = make()
    assert not control.stopped
    assert not control.wait_for_stop(0.01)
    threading.Timer(0.1, control.stop).start()
    started = time.monotonic()
    assert control.wait_for_stop(30)
    assert time.monotonic() - started < 10
    assert control.stopped
    control.wait_until_ready()  # nobody is, and nobody ever will be


def test_ready_when_every_learner_is() -> None:
    control = make(num_policies=3)
    for policy in (1, 0, 2):
        assert not control.ready
        control.set_ready(policy)
    assert control.ready
    control.wait_until_ready()


def test_waiting_for_the_learners_ends_with_the_last_of_them() -> None:
    control = make(num_policies=2)
    control.set_ready(1)
    thread = threading.Thread(target=control.wait_until_ready)
    thread.start()
    thread.join(2 * POLL_INTERVAL)
    assert thread.is_alive()
    control.set_ready(0)
    thread.join(60)
    assert not thread.is_alive()


def test_every_worker_has_its_own_heartbeat() -> None:
    control = make()
    before = perf_counter()
    control.clock("policy", 1).spent("wait", perf_counter())
    assert control.heartbeat("policy", 1) >= before
    others = [("rollout", 0), ("rollout", 1), ("policy", 0), ("policy", 2), ("learner", 0)]
    assert [control.heartbeat(*other) for other in others] == [0] * 5
    control.clear_heartbeat("policy", 1)
    assert control.heartbeat("policy", 1) == 0


def test_the_supervisor_has_one_too() -> None:
    control = make()
    assert control.supervisor_heartbeat == 0
    before = perf_counter()
    control.supervisor_lives()
    assert before <= control.supervisor_heartbeat <= perf_counter()
    assert all((clocks == 0).all() for clocks in control.snapshot().values())


def test_a_clock_adds_up_phases_and_steps() -> None:
    control = make()
    clock = control.clock("rollout", 1)
    start = clock._last
    clock.spent("step", start + 1)
    clock.spent("wait_slots", start + 3)
    clock.spent("step", start + 3.5)
    clock.count(12)
    clock.count(3)
    row = control.clocks["rollout"][1]
    spent = dict(zip(PHASES["rollout"], row, strict=False))
    assert spent["wait_slots"] == pytest.approx(2)
    assert spent["step"] == pytest.approx(1.5)
    assert row[-1] == 15
    assert control.heartbeat("rollout", 1) == start + 3.5
    assert (control.clocks["rollout"][0] == 0).all()


def test_a_snapshot_stays_as_it_is() -> None:
    control = make()
    snapshot = control.snapshot()
    control.clock("learner", 0).count(5)
    assert snapshot["learner"][0, -1] == 0
    assert {role: len(clocks) for role, clocks in snapshot.items()} == {"rollout": 2, "policy": 3, "learner": 1}


def test_nobody_has_to_look_at_a_clock() -> None:
    clock = PhaseClock("policy")
    clock.spent("wait", perf_counter())
    clock.count(1)


def beat(control: RunControl) -> None:
    control.clock("rollout", 0).spent("step", 123.0)
    control.supervisor_lives()
    control.set_ready(0)


def test_another_process_shares_all_of_it() -> None:
    control = make()
    process = multiprocessing.get_context("spawn").Process(target=beat, args=(control,))
    process.start()
    control.wait_until_ready()
    assert control.heartbeat("rollout", 0) == 123.0
    assert control.supervisor_heartbeat > 0
    assert np.isfinite(control.clocks["rollout"]).all()
    process.join()


def test_learning_begins_once_in_a_run_whichever_learner_asks() -> None:
    control = make()
    began = control.learning_began()
    process = multiprocessing.get_context("fork").Process(target=control.learning_began)
    process.start()
    process.join()
    assert 0 < began == control.learning_began() <= perf_counter()


def test_of_ranks_that_start_again_learning_began_when_they_first_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hardware.RUN_BEGAN, "12.5")
    assert make().learning_began() == 12.5
