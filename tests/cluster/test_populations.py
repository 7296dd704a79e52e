"""Real runs of populations and matches whose sampling is on two nodes."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_runs import ClusterRun

from headrace.population import records

sys.path.append(str(Path(__file__).parents[1] / "sampling"))
import counting
import counting_match

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

TESTS = Path(__file__).parents[1]
KILLS = int(os.environ.get("HEADRACE_KILLS", 5))
T, SLOTS_PER_BATCH = 7, 12
ENDLESS = {"learning.total_steps": 10**9, "run.checkpoint_interval": 2.0}
SMALL = {"learning.algorithm": "ppo", "learning.num_minibatches": 1, "learning.num_epochs": 1, "policy.mlp": 8}


def standings(run: ClusterRun) -> dict[str, Any]:
    """What standings.json has; no games before there is one."""
    path = run.folder / "standings.json"
    return json.loads(path.read_text()) if path.exists() else {"members": [], "games": [[0]], "score": [[0]]}


def games(run: ClusterRun) -> int:
    """Games of policy 0 against everybody else, as the run counts them."""
    return int(sum(standings(run)["games"][0]))


def duels(folder: Path, **settings: Any) -> tuple[ClusterRun, Path]:
    """A run of duels, and the file with a byte for each that has ended."""
    ended = folder / "ended"
    kwargs = {"envs.num_agents": 2, "envs.kwargs": json.dumps({"ledger": str(ended), "step_seconds": 0.002})}
    small = {**SMALL, **kwargs, "matches.save_steps": 300, "matches.window": 2, "matches.swap_steps": 0}
    return ClusterRun(folder / "run", env="duel", imports=TESTS / "faults" / "duel.py", **{**small, **settings}), ended


def learns_on(run: ClusterRun, policies: int, steps: int = 500) -> None:
    """Wait until every policy has learned from so many more steps."""
    names = [f"policy-{p}" if policies > 1 else "" for p in range(policies)]
    before = [run.step(name) for name in names]
    for name, step in zip(names, before, strict=True):
        run.wait_for(f"progress of {name}", lambda name=name, step=step: run.step(name) > step + steps, 200)


def kill_parts(run: ClusterRun, learners: int, went_on: Callable[[str], None]) -> None:
    """Kill a part of each kind in turn, `KILLS` times; `went_on` is called with its kind after each."""

    def node() -> int:
        return random.choice(run.wait_for("both nodes", lambda: run.nodes() if len(run.nodes()) == 2 else None, 200))

    kinds: dict[str, Callable[[], list[int]]] = {
        "node": lambda: [node()],
        "uplink": lambda: run.parts(node(), "learner-"),
        "receiver": lambda: run.learner_parts("rollout-"),
        "learner": lambda: run.learner_parts(f"learner-{random.randrange(learners)}"),
        "worker": lambda: run.parts(node(), "rollout-"),
    }
    for number in range(KILLS):
        kind, find = list(kinds.items())[number % len(kinds)]
        pid = random.choice(run.wait_for(kind, find, 200))
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        went_on(kind)
        print(f"{kind}: all policies learn on after {time.monotonic() - began:.1f} s", flush=True)
        run.wait_for("both nodes", lambda: len(run.nodes()) == 2, 200)


def test_matches_of_a_population_on_two_nodes(tmp_path: Path) -> None:
    """Results reach the standings, past versions are played, and policies are replaced by how they play."""
    settings = {
        "population.size": 2, "matches.matchmaker": "league", "pbt.rule": "paper", "pbt.period": 600, "pbt.objective": "elo",
        "learning.total_steps": 4000, "run.checkpoint_interval": 10.0, "matches.save_steps": 900,
    }  # fmt: skip
    run, ended = duels(tmp_path, **settings)
    with run:
        assert run.end(240) == 0, run.story
        assert "2 of 2 are there" in run.output
        for node in range(2):
            assert max(line.get(f"cluster/node-{node}/SPS", 0) for line in run.metrics("policy-0")) > 0
        table = standings(run)
        played, score = np.array(table["games"]), np.array(table["score"])
        assert (played == played.T).all()
        np.testing.assert_allclose(score + score.T, played)
        versions = [i for i, step in enumerate(table["step"]) if step is not None]
        assert played[:2, versions].sum() > 0
        assert 0 < np.triu(played).sum() <= ended.stat().st_size
        assert len(records.read_decisions(run.folder)) >= 2
        run.assert_nothing_left()


@pytest.mark.slow
def test_reward_weights_reach_both_nodes(tmp_path: Path) -> None:
    """The return of an episode is five times the weight, which is doubled or halved again and again."""
    settings = {
        **SMALL, "population.size": 2, "pbt.rule": "paper", "pbt.period": 1000, "pbt.mutation_rate": 1.0,
        "pbt.objective": "true_objective", "envs.reward_weights": '{"part": 1.0}', "learning.total_steps": 8000,
        "pbt.mutable": '{"reward.part": {"rule": "scale", "factor": [2, 2]}}',
    }  # fmt: skip
    world = TESTS / "population" / "weighed.py"
    with ClusterRun(tmp_path / "run", env="weighed", imports=world, **settings) as run:
        assert run.end(240) == 0, run.story
        lines = records.read_decisions(run.folder)
        followed = 0
        for p in range(2):
            changes = [0, *(line.get("taken_at", line["global_step"]) for line in lines if line["policy"] == p)]
            rows = [row for row in run.metrics(f"policy-{p}") if "charts/episodic_return" in row]
            for row in rows:
                if row["global_step"] - max(step for step in changes if step <= row["global_step"]) > 700:
                    assert row["charts/episodic_return"] == pytest.approx(5 * row["population/reward.part"])
                    followed += row["population/reward.part"] != 1
        assert followed, "no weight was changed: the test shows nothing"
        run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_sample_of_a_population_is_learned_from_once(tmp_path: Path) -> None:
    """Each policy learns from both nodes, only from what it has acted, and whatever is killed, from nothing twice."""
    (ledger := tmp_path / "ledger").mkdir()
    settings = {"population.size": 2, "envs.kwargs": json.dumps({"ledger": str(ledger)}), **ENDLESS}
    with ClusterRun(tmp_path / "run", **settings) as run:

        def worlds(p: int) -> int:
            return len(counting.read_ledger(ledger)[p].starts)

        for p in range(2):  # one group of three environments on each node
            run.wait_for(
                f"both nodes' samples for policy {p}", lambda p=p: worlds(p) == 6 and run.checkpoints(f"policy-{p}"), 250
            )
        kill_parts(run, 2, lambda kind: learns_on(run, 2))
        run.interrupt()
    for of_policy in counting.read_ledger(ledger).values():
        counting.check_ledger(of_policy, T)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("placement", ["inline", "served"])
def test_each_sample_of_matches_is_learned_from_once_by_the_policy_that_acted(placement: str, tmp_path: Path) -> None:
    """In matches of three agents that come and go, of which each match has other policies (`counting_match.py`)."""
    (ledger := tmp_path / "ledger").mkdir()
    settings = {
        "population.size": 3, "envs.num_agents": 3, "envs.kwargs": json.dumps({"ledger": str(ledger), "step_seconds": 0.002}),
        "matches.matchmaker": "by-formula", "learning.algorithm": "counting-matches", **ENDLESS,
        "learning.batch_size": T * SLOTS_PER_BATCH, "sampling.placement": placement,
    }  # fmt: skip
    with ClusterRun(tmp_path / "run", env="counting-match", imports=Path(counting_match.__file__), **settings) as run:
        for p in range(3):
            run.wait_for("both nodes", lambda p=p: run.step(f"policy-{p}") > 300 and run.checkpoints(f"policy-{p}"), 250)
        kill_parts(run, 3, lambda kind: learns_on(run, 3))
        run.interrupt()
    # With an uplink, a receiver or a learner what it held is lost.
    assert counting_match.check_ledger(ledger, 3, may_miss=KILLS * 200 * T) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_game_counts_once(tmp_path: Path) -> None:
    """Whatever is killed; only with a node some are lost, those of about the last second. Past versions go on being made."""
    matches = {"matches.matchmaker": "self-play", "matches.opponents": "random", "matches.opponent_share": 1.0}
    run, ended = duels(tmp_path, **matches, **ENDLESS)
    with run:
        run.wait_for("the first games", lambda: games(run) > 100 and run.checkpoints(), 250)
        lost = 0

        def check(kind: str) -> None:
            nonlocal lost
            learns_on(run, 1)
            lost += {"node": last_seconds + 6, "worker": 6}.get(kind, 0)
            before = ended.stat().st_size
            time.sleep(5)
            counted = games(run)
            print(f"{kind}: {counted} games of {before} to {ended.stat().st_size} count; {lost} may be lost", flush=True)
            assert before - lost - 2 * 6 <= counted <= ended.stat().st_size

        for _ in range(KILLS):
            before = ended.stat().st_size
            time.sleep(3)
            last_seconds = ended.stat().st_size - before
        kill_parts(run, 1, check)
        run.interrupt()
    assert [name for name in standings(run)["members"] if "at step" in name]
