"""Training in matches of Doom, with a process for each player: one is killed, one hangs, and only their matches begin anew."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from harness import Run
from test_kills import NEVER, goes_on, stop

pytest.importorskip("vizdoom")

pytestmark = pytest.mark.process

MATCHES, PLAYERS = 4, 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_a_player_that_is_lost_ends_its_match_only(how: signal.Signals, tmp_path: Path) -> None:
    settings = {
        "sampling.envs_per_worker": MATCHES // 2, "sampling.num_groups": 2, "sampling.rollout": 8, "learning.algorithm": "ppo",
        "learning.batch_size": 64, "learning.num_minibatches": 1, "learning.num_epochs": 1, "learning.total_steps": NEVER,
        "envs.kwargs": json.dumps({"episode_timeout": 120}), "population.size": 2, "matches.matchmaker": "uniform",
    }  # fmt: skip
    with Run(tmp_path / "run", env="vizdoom/multi_duel", **settings) as run:
        policies = ("policy-0", "policy-1")
        for policy in policies:
            run.wait_for("the first steps", lambda policy=policy: run.step(policy))
        before = set(run.pids("vizdoom"))
        assert len(before) == MATCHES * PLAYERS
        lost = min(before)
        os.kill(lost, how)
        run.wait_for("its end", lambda: lost not in run.pids("vizdoom"))
        run.wait_for("the match that takes its place", lambda: len(set(run.pids("vizdoom")) - before) == PLAYERS)
        for policy in policies:
            goes_on(run, policy=policy)
        now = set(run.pids("vizdoom"))
        assert len(now) == MATCHES * PLAYERS
        assert len(now & before) == (MATCHES - 1) * PLAYERS, "other matches were ended, too"
        assert "a new one starts" not in run.output, "the rollout worker was replaced"
        stop(run)
