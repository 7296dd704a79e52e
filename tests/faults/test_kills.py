"""Parts of a real run are killed and stopped at random instants; the learner checks every number that reaches it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import signal
import struct
import termios
import time
from pathlib import Path

import pytest
from harness import COUNTING, Run

pytestmark = pytest.mark.process

NEVER = 10**9
WHOLE_LINE = re.compile(r"Going on from .*: step ([\d,]+)\n")


def counting_run(folder: Path, **settings: object) -> Run:
    counting = {"learning.algorithm": "counting", "learning.total_steps": NEVER}
    return Run(folder, env="counting", imports=COUNTING, **{**counting, **settings})


def goes_on(run: Run, seconds: float = 120, policy: str = "") -> None:
    """Training makes progress from here: two more lines of metrics with more steps."""
    step = run.step(policy)
    run.wait_for(f"more steps than {step}", lambda: run.step(policy) > step, seconds)


def stop(run: Run) -> None:
    """Ctrl-C, as a terminal sends it: to every process of the run."""
    assert run.process is not None
    run.interrupt()


def kill_workers(run: Run, roles: list[str], kills: int, rng: random.Random) -> None:
    done = 0
    while done < kills:
        time.sleep(rng.random() * 0.15)
        done += run.signal(rng.choice(roles), signal.SIGKILL) is not None
    goes_on(run)


def test_no_checkpoint_is_written_or_reported_while_nothing_is_learned(tmp_path: Path) -> None:
    with counting_run(tmp_path / "run", **{"sampling.num_workers": 1, "sampling.placement": "inline"}) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        worker = run.wait_for("its worker", lambda: run.signal("rollout-", signal.SIGSTOP))
        time.sleep(3)  # some intervals between two checkpoints
        assert "is the last" not in run.output
        os.kill(worker, signal.SIGCONT)
        goes_on(run)
        stop(run)


def stop_and_continue(run: Run, role: str) -> None:
    run.signal(role, signal.SIGSTOP)
    time.sleep(0.7)
    run.signal(role, signal.SIGCONT)
    goes_on(run)


def test_everything_dies_once(tmp_path):
    with counting_run(tmp_path / "run") as run:
        run.wait_for("a checkpoint", run.checkpoints)
        kill_workers(run, ["rollout-0", "rollout-1"], 4, random.Random(1))
        kill_workers(run, ["policy-0"], 1, random.Random(1))
        stop_and_continue(run, "policy-0")
        run.signal("learner", signal.SIGKILL)
        run.wait_for("the learner's return", lambda: "Going on from" in run.output)
        goes_on(run)
        assert run.output.count("killed by SIGKILL") >= 4
        experience_is_never_newer_than_the_learner(run)
        killed_and_resumed(run, 1)
        a_second_run_in_the_folder_is_refused(run)
        stop(run)


def experience_is_never_newer_than_the_learner(run: Run) -> None:
    """Also not than one that has just gone back to a checkpoint, when what the lost weights did is still in the slots."""
    assert min(row.get("lag/min", 0) for row in run.metrics()) >= 0


def a_second_run_in_the_folder_is_refused(first: Run) -> None:
    assert first.process is not None
    printed = len(first.output)
    with counting_run(first.folder) as second:
        assert second.end() == 2
        assert f"is in use by process {first.process.pid}" in second.output[printed:]
    goes_on(first)


def unread(pipe: int) -> int:
    """Bytes in a pipe."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


def test_training_goes_on_while_nobody_reads_what_it_prints(tmp_path):
    """As with a terminal that was stopped (Ctrl-S), or a pager that waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    size = unread(reader)
    os.read(reader, 4096)  # room for what is printed before training begins, and a little more
    run = counting_run(tmp_path / "run", **{"run.log_interval": 0.05}).start(stdout=writer)
    os.close(writer)
    try:
        run.wait_for("a full pipe", lambda: unread(reader) > size - 1000)
        worker = run.signal("rollout-0", signal.SIGKILL)
        run.wait_for("the replacement", lambda: set(run.pids("rollout-0")) - {worker})
        goes_on(run)
        run.process.send_signal(signal.SIGINT)
        run.wait_for("the end of its parts", lambda: not run.pids("rollout") + run.pids("learner"))
        text = b""
        while part := os.read(reader, 1 << 16):
            text += part
        assert run.end() == 130
        assert b"rollout worker 0 ended (killed by SIGKILL)" in text
        run.assert_nothing_left()
    finally:
        run.__exit__()
        os.close(reader)


@pytest.mark.slow
def test_stopped_processes_go_on(tmp_path):
    with counting_run(tmp_path / "run") as run:
        run.wait_for("the first steps", run.step)
        for role in ("rollout-0", "rollout-1", "policy-0", "learner"):
            stop_and_continue(run, role)
        assert "ended" not in run.output
        stop(run)


def test_a_learner_that_is_lost_before_anything_was_saved_says_so(tmp_path):
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 1000}) as run:
        run.wait_for("the first steps", lambda: run.step() > 500)
        assert "Learning begins anew" not in run.output
        run.signal("learner", signal.SIGKILL)
        run.wait_for("the new learner", lambda: "Learning begins anew: nothing was saved yet (run.checkpoint_inter" in run.output)
        goes_on(run)
        stop(run)


@pytest.mark.slow
def test_a_learner_that_went_far_back_knows_the_age_of_experience(tmp_path):
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 10}) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        for _ in range(3):
            before = run.step()
            run.wait_for("many updates after the checkpoint", lambda before=before: run.step() > before + 50 * 84)
            before = run.output.count("Going on from")
            run.signal("learner", signal.SIGKILL)
            run.wait_for("the learner's return", lambda before=before: run.output.count("Going on from") > before)
            goes_on(run)
            experience_is_never_newer_than_the_learner(run)
        stop(run)


@pytest.mark.slow
def test_a_stopped_learner_is_replaced_after_its_time(tmp_path):
    with counting_run(tmp_path / "run", **{"learning.update_timeout": 4}) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        stop_and_continue(run, "learner")
        assert "hangs" not in run.output
        run.signal("learner", signal.SIGSTOP)
        run.wait_for("the learner's return", lambda: "Going on from" in run.output)
        assert "learner hangs: no heartbeat for" in run.output
        assert "learning.update_timeout: 4 s" in run.output
        goes_on(run)
        stop(run)


@pytest.mark.slow
def test_the_last_checkpoint_of_a_slow_learner_is_waited_for(tmp_path):
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 1000}) as run:
        run.wait_for("the first steps", run.step)
        assert run.process is not None
        learner = run.signal("learner", signal.SIGSTOP)
        run.process.send_signal(signal.SIGINT)
        run.wait_for("the message", lambda: "The learner is waited for" in run.output)
        assert not run.checkpoints()
        assert learner is not None
        os.kill(learner, signal.SIGCONT)
        assert run.end() == 130
        assert len(run.checkpoints()) == 1
        run.assert_nothing_left()


@pytest.mark.slow
def test_a_run_stopped_as_a_whole_goes_on_as_it_is(tmp_path):
    """Ctrl-Z, and `fg` after longer than anybody may be silent."""
    limits = {"sampling.step_timeout": 6, "learning.update_timeout": 6}
    with counting_run(tmp_path / "run", **limits) as run:
        run.wait_for("the first steps", run.step)
        assert run.process is not None
        everybody = run.pids()
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(8)
        run.process.send_signal(signal.SIGCONT)
        time.sleep(1)  # the one that watches wakes up first
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        goes_on(run)
        assert "hangs" not in run.output
        stop(run)


@pytest.mark.slow
def test_rare_failures_are_forgotten_and_frequent_ones_end_the_run(tmp_path):
    with counting_run(tmp_path / "run", **{"sampling.max_restarts": 2, "sampling.restart_window": 3}) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        for failure in range(5):
            run.signal("rollout-0", signal.SIGKILL)
            run.wait_for("the replacement", lambda n=failure + 1: run.output.count("a new one starts") >= n)
            time.sleep(3.1)
            goes_on(run)
        for role in ("rollout-0", "rollout-1", "policy-0"):
            run.signal(role, signal.SIGKILL)
        assert run.end() == 1
        assert "failure 3 within 3 s (sampling.max_restarts: 2)" in run.output
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["served", "inline"])
def test_killed_workers_are_replaced_and_no_number_is_wrong(tmp_path, placement):
    roles = ["rollout-0", "rollout-1"] + (["policy-0"] if placement == "served" else [])
    with counting_run(tmp_path / "run", **{"sampling.placement": placement}) as run:
        run.wait_for("the first steps", run.step)
        kill_workers(run, roles, 20, random.Random(1))
        stop(run)


@pytest.mark.slow
def test_slots_are_not_given_away_while_a_policy_worker_may_write_to_them(tmp_path):
    with counting_run(tmp_path / "run") as run:
        run.wait_for("the first steps", run.step)
        for _ in range(5):
            run.signal("policy-0", signal.SIGSTOP)
            before = run.output.count("rollout worker 0 ended")
            run.signal("rollout-0", signal.SIGKILL)
            run.wait_for("the replacement", lambda before=before: run.output.count("rollout worker 0 ended") > before)
            run.signal("policy-0", signal.SIGCONT)
            goes_on(run)
        stop(run)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_killed_50_times_in_a_row_goes_on(tmp_path):
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 0.2}) as run:
        killed_and_resumed(run, 50)
        stop(run)


def killed_and_resumed(run: Run, times: int) -> None:
    """Kill the whole run and give the same command again, `times` times."""
    rng = random.Random(2)
    for _ in range(times):
        run.wait_for("a checkpoint", run.checkpoints)
        run.wait_for("steps", run.step)
        time.sleep(rng.random() * 0.5)
        before = int(run.checkpoints()[-1].name.rpartition("-")[2])
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        run.assert_nothing_left()
        printed = len(run.output)
        run.start()
        found = run.wait_for("the return", lambda printed=printed: WHOLE_LINE.search(run.output[printed:]))
        assert int(found[1].replace(",", "")) >= before
        assert "damaged" not in run.output[printed:]
        goes_on(run)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hundreds_of_kills(tmp_path):
    rng = random.Random(5)
    roles = ["rollout-0", "rollout-1"] * 6 + ["policy-0", "policy-1"] * 2 + ["learner"]
    with counting_run(tmp_path / "run", **{"sampling.num_policy_workers": 2}) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        for kill in range(300):
            time.sleep(rng.random() * 0.2)
            run.signal(rng.choice(roles), signal.SIGKILL)
            if kill % 25 == 0:
                goes_on(run, 120)
        goes_on(run, 120)
        stop(run)
