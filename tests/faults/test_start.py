"""What goes wrong before and while a run starts and where it writes."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
from test_kills import counting_run, goes_on, stop


@pytest.mark.parametrize("seconds", [0.3, 2.5, *(pytest.param(i / 4, marks=pytest.mark.slow) for i in range(30))])
def test_ctrl_c_at_every_stage_of_the_start_ends_cleanly(tmp_path, seconds):
    run = counting_run(tmp_path / "run")
    with run:
        assert run.process is not None
        time.sleep(seconds)
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
        code = run.end(40)
        # While Python itself still starts, its own handler ends it by the signal.
        assert code in (130, -signal.SIGINT), run.story
        run.assert_nothing_left()


def test_too_little_memory_is_said_before_anything_starts(tmp_path):
    huge = {"sampling.num_slots": 30_000, "sampling.rollout": 70_000, "learning.batch_size": 70_000 * 3}
    with counting_run(tmp_path / "run", **huge) as run:
        assert run.end() == 2
        last = run.output.strip().splitlines()[-1]
        assert "needs" in last
        assert "MiB are available" in last
        run.assert_nothing_left()


@pytest.mark.slow
def test_a_full_disk_stops_checkpoints_but_not_training(tmp_path):
    run = counting_run(tmp_path / "run")
    with run:
        run.wait_for("two checkpoints", lambda: len(run.checkpoints()) >= 2)
        learner = run.pids("learner")[0]
        # No file may grow beyond this any more: writing fails as it does on a full disk.
        resource.prlimit(learner, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        run.wait_for("the warning", lambda: "Training goes on" in run.output)
        before = run.checkpoints()
        goes_on(run)
        resource.prlimit(learner, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.wait_for("a new checkpoint", lambda: run.checkpoints()[-1] not in before)
        stop(run)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    rng = random.Random(0)
    run = counting_run(tmp_path / "run")
    with run:
        for damage in ("truncate", "flip", "remove"):
            run.wait_for("three checkpoints", lambda: len(run.checkpoints()) >= 3)
            stop(run)
            newest = run.checkpoints()[-1]
            file = rng.choice(sorted(newest.iterdir()))
            if damage == "truncate":
                os.truncate(file, file.stat().st_size // 2)
            elif damage == "flip":
                flip_a_bit(file, rng)
            else:
                file.unlink()
            printed = len(run.output)
            run.start()
            run.wait_for("the return", lambda printed=printed: "Going on from" in run.output[printed:])
            assert newest.name in run.output[printed:], "the damage is told"
            assert f"Going on from {newest.name}" not in run.output[printed:]
            goes_on(run)
        stop(run)


def flip_a_bit(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)

