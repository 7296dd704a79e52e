"""Two policies over one environment: each sample is learned from once, by the policy that acted on it (`counting.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from counting import check_ledger, read_ledger
from test_engine import counting_config

from headrace.learning.algorithm import make_algorithm
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.sampling.actor import environment_numbers
from headrace.train import train

pytestmark = pytest.mark.process

T = 7


def two_policies(folder: Path, **settings: object) -> dict[str, object]:
    (folder / "ledger").mkdir()
    kwargs = {"ledger": str(folder / "ledger")}
    return {"population.size": 2, "run.folder": str(folder / "run"), "envs.kwargs": kwargs, **settings}


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling.placement": "serial"},
        {"sampling.placement": "inline"},
        {"sampling.placement": "served"},
        {"sampling.placement": "served", "sampling.num_policy_workers": 2, "sampling.num_groups": 3, "learning.batch_size": 56},
        pytest.param(
            {"sampling.placement": "served", "learning.num_minibatches": 2, "learning.num_epochs": 2}, marks=pytest.mark.slow
        ),
    ],
    ids=["serial", "inline", "served", "served-4-policy-workers-3-groups", "served-minibatches"],
)
def test_every_sample_is_learned_from_once_by_its_own_policy(tmp_path: Path, settings: dict[str, object]) -> None:
    config = counting_config(tmp_path, **two_policies(tmp_path, **settings))
    result, group_size = train(config), config.envs_per_group
    assert result.reason == "total_steps"
    assert result.global_step >= 2 * 3000
    ledgers = read_ledger(tmp_path / "ledger")
    assert sorted(ledgers) == [0, 1]
    for policy, ledger in ledgers.items():
        assert ledger.learners == 1
        assert check_ledger(ledger, T) == 0
        last = read_jsonl(tmp_path / "run" / f"policy-{policy}" / "metrics.jsonl")[-1]
        assert last["losses/policy"] == policy
        assert last["losses/rows_checked"] > 0
        assert last.get("sampling/faults", 0) == 0
        # In these runs life 0 is that of the first seeds, where the world's number is the environment's.
        assert {world // group_size % 2 for world, life in ledger.starts if life == 0} <= {policy}


@pytest.mark.parametrize(("groups", "C", "P"), [(4, 8, 1), (4, 8, 2), (5, 3, 2), (8, 16, 8), (3, 2, 3), (4, 1, 4)])
def test_the_environments_of_each_policy_have_the_whole_range_of_exploration(groups: int, C: int, P: int) -> None:
    """Ape-X: the first environment explores most, the last ones least, and only the episodes of these are reported."""
    E, policies = groups * C, np.arange(groups) % P
    numbers = environment_numbers(policies, C)
    assert sorted(numbers.ravel()) == list(range(E))
    config = make_config("gym/CartPole-v1", "apex-dqn", **{"population.size": P, "sampling.num_workers": P})
    reported = make_algorithm(config).reported_envs(E)
    assert len(reported) >= E // 4
    for p in range(P):
        own = numbers[policies == p].ravel()
        np.testing.assert_allclose(own, np.linspace(0, E - 1, len(own)), atol=P)
        assert set(own) & set(reported)
    if P == 1:
        assert numbers.ravel().tolist() == list(range(E))
