"""Ape-X's failures: parts of a real run on replay are killed; every replayed transition is checked all the while."""

import contextlib
import os
import random
import signal
import statistics
import time
from pathlib import Path

import pytest
from harness import COUNTING, Run

pytestmark = pytest.mark.process

REPLAY = Path(__file__).parents[1] / "experience" / "counting_replay.py"


def replay_run(folder: Path, **settings: object) -> Run:
    base = {
        "learning.algorithm": "counting-replay", "learning.experience": "replay", "learning.total_steps": 10**9,
        "learning.batch_size": 64, "learning.gamma": 0.5, "replay.capacity": 4000, "replay.minimum": 500, "replay.slack": 2.0,
    }  # fmt: skip
    run = Run(folder, env="counting", imports=COUNTING, **{**base, **settings})
    run.command.insert(run.command.index(str(COUNTING)) + 1, str(REPLAY))
    return run


def goes_on(run: Run, seconds: float = 90) -> None:
    step = run.step()
    run.wait_for(f"more steps than {step}", lambda: run.step() > step, seconds)


def test_actors_and_learner_are_killed_and_the_replay_outlives_them(tmp_path: Path) -> None:
    with replay_run(tmp_path / "run") as run:
        run.wait_for("a checkpoint", run.checkpoints)
        run.signal("rollout-0", signal.SIGKILL)
        goes_on(run)
        run.signal("learner", signal.SIGKILL)
        run.wait_for("the learner's return", lambda: "Going on from" in run.output)
        goes_on(run)


@pytest.mark.slow
def test_a_lost_replay_is_filled_again_before_learning_goes_on(tmp_path: Path) -> None:
    """Everything is killed at once, so the replay is gone: the run goes on from its checkpoint once the minimum is there."""
    with replay_run(tmp_path / "run") as run:
        run.wait_for("a checkpoint", run.checkpoints)
        goes_on(run)
        for pid in run.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert run.process is not None
        run.process.wait()
        step = run.step()
        run.start()
        run.wait_for("more steps than before", lambda: run.step() > step + 500)


def memory(run: Run) -> float:
    """Proportional set size of all processes, megabytes: pages that are shared count once."""
    total = 0
    for pid in run.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_flat_under_random_kills(tmp_path: Path) -> None:
    rng, until, megabytes = random.Random(0), time.monotonic() + 300, []
    with replay_run(tmp_path / "run") as run:
        run.wait_for("a checkpoint", run.checkpoints)
        while time.monotonic() < until:
            goes_on(run)
            megabytes.append(memory(run))
            time.sleep(rng.random() * 4)
            run.signal(rng.choice(["rollout-0", "rollout-1", "policy-0", "learner"]), signal.SIGKILL)
        goes_on(run, 120)
    third = len(megabytes) // 3
    assert statistics.median(megabytes[2 * third :]) < 1.1 * statistics.median(megabytes[third : 2 * third])
