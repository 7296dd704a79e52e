"""What dies in a cluster, and what the run does. The learner checks every number (`tests/sampling/counting.py`)."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from cluster_runs import ClusterRun

pytestmark = pytest.mark.slow

ENDLESS = {"learning.total_steps": 10**9, "run.checkpoint_interval": 2.0, "learning.update_timeout": 60}


def learns_on(run: ClusterRun, steps: int = 2000) -> None:
    """Wait until so many more steps are learned from."""
    before = run.step()
    run.wait_for("progress", lambda: run.step() > before + steps)


def test_every_part_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with ClusterRun(tmp_path / "run", **ENDLESS) as run:
        run.wait_for("first steps", lambda: run.step() > 2000)

        def node() -> int:
            return random.choice(run.wait_for("both nodes", lambda: run.nodes() if len(run.nodes()) == 2 else None))

        kinds = {
            "worker of a node": lambda: run.parts(node(), "rollout-"),
            "uplink of a node": lambda: run.parts(node(), "learner-"),
            "whole node": lambda: [node()],
            "receiver": lambda: run.learner_parts("rollout-"),
            "learner": lambda: run.learner_parts("learner-"),
        }
        for number in range(int(os.environ.get("HEADRACE_KILLS", 10))):
            name, find = list(kinds.items())[number % len(kinds)]
            pid = random.choice(run.wait_for(name, find))
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            learns_on(run)
            print(f"{name}: learning on after {time.monotonic() - began:.1f} s", flush=True)
            time.sleep(random.random())
        run.wait_for("both nodes", lambda: len(run.nodes()) == 2)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        run.assert_nothing_left()


def test_a_hung_node_is_dropped_and_writes_no_more_when_it_goes_on(tmp_path: Path) -> None:
    with ClusterRun(tmp_path / "run", **ENDLESS) as run:
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and run.step() > 2000)
        old = run.nodes()[0]
        for pid in [old, *run.parts(old, "")]:
            os.kill(pid, signal.SIGSTOP)
        run.wait_for("its loss", lambda: "is gone" in run.output, 60)
        learns_on(run)  # from the other node
        for pid in [old, *run.parts(old, "")]:
            os.kill(pid, signal.SIGCONT)
        run.wait_for("its return", lambda: run.output.count("2 of 2 are there") == 2, 90)
        learns_on(run)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        run.assert_nothing_left()


def test_kill_9_of_the_command_leaves_nothing_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with ClusterRun(tmp_path / "run", **ENDLESS) as run:
        for starts in range(1, 4):
            run.wait_for("a checkpoint", run.checkpoints)
            learns_on(run)
            run.kill_and_start_again()
            run.wait_for("its return", lambda: run.output.count("Going on from") == starts)  # noqa: B023
        learns_on(run)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        run.assert_nothing_left()
