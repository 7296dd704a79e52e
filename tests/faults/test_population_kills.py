"""Population-based training whose learners, and whose whole run, are killed while policies copy each other and mutate: each
decision is in the lineage once, every policy has the hyperparameters that its lineage says, and training goes on."""

from __future__ import annotations

import json
import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness import Run
from test_kills import NEVER, goes_on, stop
from test_many_policies import DUEL

from headrace.population import records
from headrace.runs import checkpoint

pytestmark = pytest.mark.process

POLICIES = 3
PBT = {
    "population.size": POLICIES, "pbt.rule": "paper", "pbt.period": 400, "pbt.mutation_rate": 0.5, "learning.algorithm": "ppo",
    "learning.num_minibatches": 1, "learning.num_epochs": 1, "policy.mlp": 8, "learning.total_steps": NEVER,
}  # fmt: skip


def of_one_agent(folder: Path) -> Run:
    """CartPole, whose episodes end after 20 steps at most."""
    return Run(folder / "run", env="gym/CartPole-v1", **PBT, **{"envs.max_episode_steps": 20})


def of_duels(folder: Path) -> Run:
    """Matches; a policy that has become a copy has no objective before its next game has ended."""
    settings = {
        "matches.matchmaker": "uniform", "pbt.objective": "win_rate", "pbt.gap": 0.0, "envs.num_agents": 2,
        "envs.kwargs": json.dumps({"ledger": str(folder / "ended")}),
    }  # fmt: skip
    return Run(folder / "run", env="duel", imports=DUEL, **{**PBT, **settings, "pbt.period": 200})


def decisions(run: Run, policy: int) -> list[dict[str, Any]]:
    """What was decided about a policy, so far."""
    if not (run.folder / records.DECISIONS).exists():
        return []
    return [line for line in records.read_decisions(run.folder) if line["policy"] == policy]


def wait_for_decisions(run: Run, more: int = 2) -> None:
    """Every policy is decided about so often, counted from here."""
    for p in range(POLICIES):
        numbers = [line["decision"] for line in decisions(run, p)]
        target = max(numbers, default=0) + more
        run.wait_for(f"decisions about policy {p}", lambda p=p, n=target: any(d["decision"] >= n for d in decisions(run, p)))


def check(run: Run) -> None:
    """See the module; of a run that was stopped."""
    copies = 0
    for p in range(POLICIES):
        own = decisions(run, p)
        numbers = [line["decision"] for line in own]
        assert numbers == sorted(set(numbers)), f"policy {p}: a decision is there twice"
        steps = [line.get("taken_at", line["global_step"]) for line in own]
        assert steps == sorted(steps)
        assert own[0]["before"] == decisions(run, 0)[0]["before"], "the settings"
        for one, other in pairwise(own):
            assert one["values"] == other["before"], f"policy {p}: not what decision {one['decision']} says"
        found = checkpoint.load_newest(run.folder / f"policy-{p}" / "checkpoints")
        assert found is not None
        member = found.unpack()["member"]
        assert member["values"] == own[-1]["values"]
        assert member["decisions"] >= own[-1]["decision"]
        rows = [row for row in run.metrics(f"policy-{p}") if "population/replacements" in row]
        assert {name: rows[-1][f"population/{name}"] for name in own[-1]["values"]} == own[-1]["values"]
        replaced = sum(line["donor"] is not None for line in own)
        assert rows[-1]["population/replacements"] == member["replaced"] == replaced
        copies += replaced
        assert any(line["before"] != line["values"] for line in own), f"policy {p} never changed: the test shows nothing"
    assert copies, "nobody was replaced: the test shows nothing"


WORLDS = pytest.mark.parametrize("make", [of_one_agent, of_duels])


@pytest.mark.slow
@WORLDS
def test_learners_of_a_population_are_killed(tmp_path: Path, make: Any) -> None:
    rng = random.Random(3)
    with make(tmp_path) as run:
        for p in range(POLICIES):
            run.wait_for("a checkpoint", lambda p=p: run.checkpoints(f"policy-{p}"))
        wait_for_decisions(run)
        for role in ["learner-1", "learner-0", "learner-1", "learner-2", "learner-0", "learner-2"]:
            time.sleep(rng.random() * 0.7)
            before = run.output.count("a new one starts")
            run.wait_for(role, lambda role=role: run.signal(role, signal.SIGKILL))
            run.wait_for("its replacement", lambda n=before: run.output.count("a new one starts") > n)
            for p in range(POLICIES):
                goes_on(run, policy=f"policy-{p}")
            wait_for_decisions(run, more=1)
        stop(run)
        assert "hangs" not in run.output
        check(run)


@pytest.mark.slow
@WORLDS
def test_a_population_killed_as_a_whole_goes_on(tmp_path: Path, make: Any) -> None:
    rng = random.Random(4)
    with make(tmp_path) as run:
        for _ in range(4):
            for p in range(POLICIES):
                run.wait_for("a checkpoint", lambda p=p: run.checkpoints(f"policy-{p}"))
            wait_for_decisions(run, more=1)
            time.sleep(rng.random() * 0.7)
            printed = len(run.output)
            run.kill_and_start_again()
            run.wait_for("the return of all", lambda n=printed: run.output[n:].count("Going on from") == POLICIES)
            for p in range(POLICIES):
                goes_on(run, policy=f"policy-{p}")
        wait_for_decisions(run)
        stop(run)
        check(run)
