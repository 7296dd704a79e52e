"""Real runs whose replay is in shards on the nodes: they learn, and shards are killed. The learner checks every transition."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import COUNTING, ClusterRun

pytestmark = pytest.mark.process

REPLAY = Path(__file__).parents[1] / "experience" / "counting_replay.py"
SHARDED = {"replay.shards": "node", "learning.experience": "replay"}


def counting_run(folder: Path, algorithm: str = "counting-replay", **settings: Any) -> ClusterRun:
    base = {
        **SHARDED, "learning.algorithm": algorithm, "learning.batch_size": 64, "learning.gamma": 0.5, "replay.capacity": 4000,
        "replay.minimum": 500, "replay.slack": 2.0, "replay.evict_period": 5, "learning.total_steps": 10**9,
    }  # fmt: skip
    run = ClusterRun(folder, **{**base, **settings})
    run.command.insert(run.command.index(str(COUNTING)) + 1, str(REPLAY))
    return run


def learns_on(run: ClusterRun, updates: int = 100) -> None:
    def checked() -> float:
        lines = run.metrics()
        return lines[-1]["charts/updates"] if lines else 0

    before = checked()
    run.wait_for("progress", lambda: checked() > before + updates, 120)


def full(run: ClusterRun, shards: int = 2) -> bool:
    """Whether each of the shards holds more than the minimum."""
    last = run.metrics()[-1] if run.metrics() else {}
    return all(last.get(f"replay/shard-{k}/size", 0) > 600 for k in range(shards))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mean", "steps"), [(40, 40_000), (195, 400_000)])
def test_apex_dqn_on_two_shards_learns_cartpole(mean: int, steps: int, tmp_path: Path) -> None:
    """The sooner it learns the longer its games are, and a goal is of a hundred games, of three of the twelve environments:
    where these take too long, its steps end it."""
    settings = {"learning.algorithm": "apex-dqn", "run.goal": mean, "replay.shards": "node", "learning.total_steps": steps}
    with ClusterRun(tmp_path / "run", env="gym/CartPole-v1", imports=None, **settings) as run:
        assert run.end(800) == 0, run.story
        last = run.metrics()[-1]
        assert last["charts/episodic_return_100"] >= mean
        assert last["replay/shards"] == 2
        assert last["replay/shard-0/share"] + last["replay/shard-1/share"] == pytest.approx(1)
        print(f"{last['global_step']:.0f} steps", flush=True)
        run.assert_nothing_left()


def test_sequences_of_shards_are_right(tmp_path: Path) -> None:
    settings = {"policy.core": "lstm", "q.burn_in": 3, "q.sequence": 8}
    with counting_run(tmp_path / "run", "counting-sequences", **settings) as run:
        for share in ("replay/shard-0/share", "replay/shard-1/share"):
            run.wait_for(share, lambda share=share: any(line.get(share, 0) > 0 for line in run.metrics()), 280)
        learns_on(run)
        run.interrupt()
        assert max(line.get("losses/rows_checked", 0) for line in run.metrics()) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_shards_and_one_that_is_lost_and_comes_back(tmp_path: Path) -> None:
    with counting_run(tmp_path / "run", nodes=3) as run:
        for lost in range(2):
            run.wait_for("all shards", lambda: run.output.count("3 of 3 are there") == lost + 1 and full(run, 3), 250)  # noqa: B023
            learns_on(run)
            shares = [run.metrics()[-1][f"replay/shard-{k}/share"] for k in range(3)]
            assert sum(shares) == pytest.approx(1)
            assert min(shares) > 0
            os.kill(run.nodes()[0], signal.SIGKILL)
            run.wait_for("its loss", lambda: run.output.count("is gone") == lost + 1)  # noqa: B023
            learns_on(run)
        run.interrupt()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_shards_are_killed_in_the_middle_of_draws(tmp_path: Path) -> None:
    """An uplink is stopped, so that the learner waits for what it asked that shard for; then something is killed."""
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 2.0, "replay.samples_per_insert": 8}) as run:
        kinds = ("node", "uplink", "receiver", "node", "learner")
        for number in range(int(os.environ.get("HEADRACE_KILLS", 5))):
            run.wait_for("both shards", lambda: full(run), 120)
            both = run.wait_for("both nodes", lambda: run.nodes() if len(run.nodes()) == 2 else None, 120)
            node = random.choice(both)
            (uplink,) = run.wait_for("its uplink", lambda: run.parts(node, "learner-"), 120)  # noqa: B023
            learns_on(run)
            kind = kinds[number % len(kinds)]
            victims = {
                "node": lambda: [node],  # noqa: B023
                "uplink": lambda: [uplink],  # noqa: B023
                "receiver": lambda: run.learner_parts("rollout-"),
                "learner": lambda: run.learner_parts("learner-"),
            }
            victim = random.choice(run.wait_for(kind, victims[kind]))
            if kind in ("node", "uplink"):
                os.kill(uplink, signal.SIGSTOP)
                time.sleep(0.3)
            began = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            learns_on(run)
            print(f"{kind}: learning on after {time.monotonic() - began:.1f} s", flush=True)
        run.interrupt()
