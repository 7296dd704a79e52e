"""Two policies, every part of which is killed: each trajectory is learned from once, by the policy that acted (`counting.py`)."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from counting import check_ledger, read_ledger
from test_kills import counting_run, goes_on, stop

pytestmark = pytest.mark.process

T, C, SLOTS_PER_BATCH = 7, 3, 4
POLICIES = ("policy-0", "policy-1")


@pytest.mark.parametrize(
    ("placement", "kills"),
    [
        pytest.param("served", 6, marks=pytest.mark.slow),
        pytest.param("inline", 12, marks=pytest.mark.slow),
        pytest.param("served", 150, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
        pytest.param("inline", 80, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_kills(tmp_path: Path, placement: str, kills: int) -> None:
    rng, ledger = random.Random(kills), tmp_path / "ledger"
    ledger.mkdir()
    settings = {
        "population.size": 2, "sampling.placement": placement, "envs.kwargs": f'{{"ledger": "{ledger}"}}',
        "learning.batch_size": T * C * SLOTS_PER_BATCH,
    }  # fmt: skip
    roles = ["rollout-0", "rollout-1"] * 2 + ["learner-0", "learner-1"] + list(POLICIES) * (placement == "served")
    done = dict.fromkeys(roles, 0)
    with counting_run(tmp_path / "run", **settings) as run:
        for policy in POLICIES:
            run.wait_for("a checkpoint", lambda policy=policy: run.checkpoints(policy))
        while sum(done.values()) < kills:
            time.sleep(rng.random() * 0.3)
            # Of a short test each part dies at least once.
            role = min(done, key=lambda role: done[role]) if kills < 20 else rng.choice(roles)
            done[role] += run.signal(role, signal.SIGKILL) is not None
            if sum(done.values()) % 25 == 0:
                goes_on(run, policy=rng.choice(POLICIES))
        for policy in POLICIES:
            goes_on(run, policy=policy)
        stop(run)
        assert "hangs" not in run.output
        for p, policy in enumerate(POLICIES):
            of_policy = read_ledger(ledger)[p]
            assert of_policy.learners <= 1 + done[f"learner-{p}"]
            # Lost with a learner: the batch that it had copied, and one slot whose ticket it had just taken from the queue, if
            # the rollout worker died before that was found out.
            assert check_ledger(of_policy, T) <= done[f"learner-{p}"] * (SLOTS_PER_BATCH + 1) * C
            assert {row["losses/policy"] for row in run.metrics(policy) if "losses/policy" in row} == {float(p)}


def test_a_learner_that_is_away_holds_up_its_own_lanes_only(tmp_path: Path) -> None:
    with counting_run(tmp_path / "run", **{"population.size": 2}) as run:
        for policy in POLICIES:
            run.wait_for("the first steps", lambda policy=policy: run.step(policy))
        run.signal("learner-0", signal.SIGSTOP)
        lines = len(run.metrics("policy-1"))  # when there are new ones, all that the stopped learner had reported is written too
        run.wait_for("lines of the other", lambda: len(run.metrics("policy-1")) > lines + 5)
        before = run.step("policy-0")
        step = run.step("policy-1")
        run.wait_for("a thousand steps of the other", lambda: run.step("policy-1") > step + 1000)
        assert run.step("policy-0") == before
        run.signal("learner-0", signal.SIGCONT)
        goes_on(run, policy="policy-0")
        stop(run)
