"""Runs of several policies, every part of which is killed: matches of three policies, self-play. The others go on, what died is
replaced, and what is counted stays right."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Run
from test_kills import NEVER, goes_on, stop

sys.path.append(str(Path(__file__).parents[1] / "sampling"))
from counting_match import check_ledger

pytestmark = pytest.mark.process

MATCHES = Path(__file__).parents[1] / "sampling" / "counting_match.py"
DUEL = Path(__file__).with_name("duel.py")
T, SLOTS_PER_BATCH = 7, 12


def kill(run: Run, role: str, policies: int) -> None:
    """Kill a part: another takes its place, and all policies go on."""
    before = run.output.count("a new one starts")
    # What was sampled before the last kill may be learned from before the one who was killed is back.
    run.wait_for(role, lambda: run.signal(role, signal.SIGKILL))
    run.wait_for(f"the replacement of {role}", lambda: run.output.count("a new one starts") > before)
    for p in range(policies):
        goes_on(run, policy="" if policies == 1 else f"policy-{p}")


@pytest.mark.parametrize(
    "roles",
    [
        ["learner-1", "rollout-0", "policy-2"],
        pytest.param(
            ["learner-0", "policy-1", "rollout-1", "learner-2", "learner-2", "policy-0", "rollout-0"] * 5,
            marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
        ),
    ],
    ids=["3-kills", "35-kills"],
)
def test_each_sample_is_learned_from_once_by_the_policy_that_acted(tmp_path: Path, roles: list[str]) -> None:
    """In matches of three agents that come and go, of which each match has other policies (`counting_match.py`)."""
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    settings = {
        "population.size": 3, "envs.num_agents": 3, "envs.kwargs": json.dumps({"ledger": str(ledger), "step_seconds": 0.002}),
        "matches.matchmaker": "by-formula", "learning.algorithm": "counting-matches", "learning.total_steps": NEVER,
        "learning.batch_size": T * SLOTS_PER_BATCH,
    }  # fmt: skip
    with Run(tmp_path / "run", env="counting-match", imports=MATCHES, **settings) as run:
        for p in range(3):
            run.wait_for("a checkpoint", lambda p=p: run.checkpoints(f"policy-{p}"))
        for role in roles:
            kill(run, role, 3)
        stop(run)
    # Lost with a learner: the batch that it had copied, and one slot whose ticket it had just taken from the queue.
    learners = sum(role.startswith("learner") for role in roles)
    assert check_ledger(ledger, 3, may_miss=learners * (SLOTS_PER_BATCH + 1) * T) > 0


def self_play(folder: Path, **settings: Any) -> tuple[Run, Path]:
    ended = folder / "ended"
    matches = {
        "matches.matchmaker": "self-play", "matches.opponents": "random", "matches.opponent_share": 1.0,
        "envs.num_agents": 2, "envs.kwargs": json.dumps({"ledger": str(ended)}), "learning.algorithm": "ppo",
        "policy.mlp": "8", "learning.total_steps": NEVER, "matches.save_steps": 300, "matches.window": 2,
        "matches.swap_steps": 0,
    }  # fmt: skip
    return Run(folder / "run", env="duel", imports=DUEL, **{**matches, **settings}), ended


def games(run: Run) -> int:
    """Games of policy 0 against everybody else, as the run counts them."""
    return int(sum(json.loads((run.folder / "standings.json").read_text())["games"][0]))


@pytest.mark.slow
def test_self_play_counts_each_game_once(tmp_path: Path) -> None:
    run, ended = self_play(tmp_path)
    with run:
        run.wait_for("a checkpoint", run.checkpoints)
        roles = ["rollout-0", "learner", "policy-0", "learner", "rollout-1"]
        for role in roles:
            kill(run, role, 1)
        matches = ended.stat().st_size
        goes_on(run)
        stop(run)
        # Not counted are those that had ended when their worker was killed, and no other had begun.
        assert matches - 6 * len(roles) - 2 * 6 <= games(run) <= ended.stat().st_size
        counted = games(run)
        run.start()
        run.wait_for("the return", lambda: "Going on from" in run.output)
        goes_on(run)
        run.kill_and_start_again()
        goes_on(run)
        stop(run)
        assert counted < games(run) <= ended.stat().st_size


@pytest.mark.slow
def test_self_play_against_past_versions_goes_on(tmp_path: Path) -> None:
    """Whoever dies: copies are made and matched, and nobody waits for a place that a dead worker held."""
    run, _ = self_play(tmp_path, **{"matches.opponent_share": 0.1, "matches.play_against_latest_model_ratio": 0.0})
    with run:
        for role in ["rollout-0", "learner", "rollout-1", "learner", "policy-0", "rollout-0"]:
            run.wait_for("a checkpoint", run.checkpoints)
            kill(run, role, 1)
            step = run.step()
            run.wait_for("newer copies", lambda step=step: newest_copy(run) > step)
        stop(run)


def newest_copy(run: Run) -> int:
    """The step of the newest past version."""
    names = json.loads((run.folder / "standings.json").read_text())["members"]
    return max((int(name.rpartition(" ")[2]) for name in names if "at step" in name), default=0)
