"""Several learner ranks in a cluster: the same mathematics, real runs, and what happens when a rank dies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster_runs import ClusterRun, assert_ends_with_the_command, free_ports, machine_of, start_node

from headrace.cluster.protocol import Link
from headrace.cluster.rank import free_port, keep_rank, place_of
from headrace.config import Config, override
from headrace.sampling import supervisor
from headrace.shm.run_control import RunControl
from headrace.transport.credentials import Credentials

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

WORK = Path(__file__).with_name("rank_work.py")
TWO = {"cluster.learners": 2}
ENDLESS = {**TWO, "learning.total_steps": 10**9, "run.checkpoint_interval": 2.0, "learning.update_timeout": 60}


def work(size: int) -> list[dict[str, Any]]:
    """What each of `size` learners, placed as a cluster places them, has learned from its share of the same batches."""
    store = f"127.0.0.1:{free_port('127.0.0.1')}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORK)],
            env=os.environ | place_of(rank, size, store, True),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    return [json.loads(output.splitlines()[0]) for output in outputs]


def test_two_ranks_with_half_the_batch_each_learn_as_one() -> None:
    (alone,), ranks = work(1), work(2)
    assert ranks[0] == ranks[1], "the same bits"
    for mine, whole in zip(ranks[0]["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-5)
    assert ranks[0]["global_step"] == alone["global_step"]


def test_a_learner_that_waits_for_other_ranks_does_not_count_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_TIMEOUT", 0.1)
    memory: Any = SimpleNamespace(control=RunControl({"rollout": 1, "policy": 1, "learner": 1}), policies=[])
    config = override(Config(), **{"learning.update_timeout": 0.1})
    placement: Any = SimpleNamespace(config=config, memory=memory, waited=0.0)
    asked: list[bool] = []
    child: Any = SimpleNamespace(role="learner", index=0, name="learner", started=time.perf_counter())
    child.asked = child.killed = child.ended = None
    child.ask_for_stacks = lambda: asked.append(True)
    supervised = supervisor.Supervisor(placement)
    supervised.children.append(child)
    time.sleep(0.2)
    placement.waited = time.perf_counter()
    supervised._look_for_hung()
    assert not asked
    time.sleep(0.2)
    supervised._look_for_hung()
    assert asked


def test_a_machine_that_is_to_be_a_rank_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    link = Link(f"127.0.0.1:{free_ports()}", Credentials("the-token-of-tests"), wait=0.1)
    assert keep_rank(link, 1, ()) == 2
    shown = capfd.readouterr()
    assert f"This machine is to be learner rank 1 of the run at {link.address}" in shown.out
    assert "cannot be reached" in shown.err


def learns_on(run: ClusterRun, steps: int = 2000) -> None:
    before = run.step()
    run.wait_for("progress", lambda: run.step() > before + steps, 200)


def test_two_ranks_and_two_nodes_train_cartpole_to_its_goal_though_a_rank_is_killed(tmp_path: Path) -> None:
    goal = {**TWO, "run.goal": 50, "learning.batch_size": 256, "sampling.envs_per_worker": 16, "sampling.rollout": 16}
    with ClusterRun(tmp_path / "run", env="gym/CartPole-v1", imports=None, **goal) as run:
        run.wait_for("a checkpoint", run.checkpoints, 250)
        os.kill(run.ranks()[0], signal.SIGKILL)
        run.wait_for("its loss", run.ranks_gone)
        run.wait_for("the checkpoint taken up", lambda: "Going on from" in run.output, 250)
        assert run.end(250) == 0, run.story
        last = run.metrics()[-1]
        assert last["charts/episodic_return_100"] >= 50
        assert last["cluster/nodes"] == 2
        for node in range(2):  # of both ranks
            assert max(line.get(f"cluster/node-{node}/SPS", 0) for line in run.metrics()) > 0
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_parts_of_a_run_with_two_ranks_are_killed(tmp_path: Path) -> None:
    """The learners check every number."""
    with ClusterRun(tmp_path / "run", nodes=2, **ENDLESS) as run:
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and run.step() > 2000 and run.checkpoints(), 280)

        def rank() -> int:
            return run.wait_for("the rank", run.ranks)[0]

        kinds = {
            "rank": run.ranks,
            "learner of a rank": lambda: run.parts(rank(), "learner-"),
            "first learner": lambda: run.learner_parts("learner-"),
            "node": run.nodes,
            "receiver of a rank": lambda: run.parts(rank(), "rollout-"),
        }
        for number in range(int(os.environ.get("HEADRACE_KILLS", 5))):
            name, find = list(kinds.items())[number % len(kinds)]
            nodes, taken_up = run.nodes(), run.output.count("\nGoing on from")
            pid = random.choice(run.wait_for(name, find))
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            if name in ("rank", "learner of a rank", "first learner"):
                run.wait_for("the checkpoint taken up", lambda: run.output.count("\nGoing on from") > taken_up, 280)  # noqa: B023
            learns_on(run)
            print(f"{name}: learning on after {time.monotonic() - began:.1f} s", flush=True)
            assert name == "node" or run.nodes() == nodes, "nodes go on"
            run.wait_for("both nodes", lambda: len(run.nodes()) == 2)
        run.interrupt()


@pytest.mark.slow
def test_the_first_machines_of_a_launcher_are_learner_ranks(tmp_path: Path) -> None:
    settings = {**ENDLESS, "cluster.listen": f"127.0.0.1:{free_ports()}"}
    run = ClusterRun(tmp_path / "run", nodes=2, **settings)  # one beside the first rank, one elsewhere
    run.environ, plain = machine_of(run, 0, machines=3), run.environ
    with run:
        rank, node = start_node(run, 1, machines=3), start_node(run, 2, machines=3)
        run.wait_for("a checkpoint", lambda: "2 of 2 are there" in run.output and run.step() > 2000 and run.checkpoints(), 200)
        os.kill(run.ranks()[0], signal.SIGKILL)
        run.wait_for("the checkpoint taken up", lambda: "Going on from" in run.output, 250)
        learns_on(run)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        assert (rank.wait(60), node.wait(60)) == (0, 0)
        run.environ = plain
        run.assert_nothing_left()


@pytest.mark.slow
def test_learner_ranks_elsewhere_end_when_the_command_is_killed(tmp_path: Path) -> None:
    settings = {**ENDLESS, "cluster.listen": f"127.0.0.1:{free_ports()}"}
    run = ClusterRun(tmp_path / "run", nodes=2, **settings)
    run.environ, plain = machine_of(run, 0), run.environ
    with run:
        rank = start_node(run)
        run.wait_for("first steps", lambda: run.step() > 2000, 200)
        assert_ends_with_the_command(run, rank, 2)
        run.environ = plain
        run.assert_nothing_left()
