"""Kills where policy workers leave observations on the device for the learner (in shared memory here)."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from harness import COUNTING, Run

pytestmark = pytest.mark.process


@pytest.mark.slow
def test_killed_learners_and_policy_workers_find_each_other_again(tmp_path: Path) -> None:
    rng = random.Random(3)
    settings = {"learning.algorithm": "counting", "learning.total_steps": 10**9, "sampling.one_transfer": "on"}
    with Run(tmp_path / "run", env="counting", imports=COUNTING, **settings, **{"sampling.num_policy_workers": 2}) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        for role in ("learner", "policy-0", "rollout-0", "policy-1", "learner", "policy-0", "rollout-1"):
            run.signal(role, signal.SIGKILL)
            step, lines = run.step(), len(run.metrics()) + rng.randrange(1, 3)
            run.wait_for("more steps", lambda step=step, lines=lines: len(run.metrics()) > lines and run.step() > step)
        assert "AssertionError" not in run.output, run.story  # the learner checks every number
        assert run.process is not None
        run.interrupt()
