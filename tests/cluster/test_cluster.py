"""Runs whose sampling nodes are other processes: they learn, end, and refuse what cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_runs import ClusterRun

pytestmark = pytest.mark.process


def test_two_nodes_train_cartpole_to_its_goal(tmp_path: Path) -> None:
    goal = {"run.goal": 195, "learning.batch_size": 512, "sampling.envs_per_worker": 16, "sampling.rollout": 16}
    with ClusterRun(tmp_path / "run", env="gym/CartPole-v1", imports=None, **goal) as run:
        assert run.end(120) == 0, run.story
        assert "2 of 2 are there" in run.output
        assert "goal" in run.output
        last = run.metrics()[-1]
        assert last["charts/episodic_return_100"] >= 195
        assert last["cluster/nodes"] == 2
        assert last["cluster/node-0/SPS"] > 0
        assert last["cluster/node-1/SPS"] > 0
        assert last["lag/max"] > 0
        run.assert_nothing_left()
