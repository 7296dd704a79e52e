"""How far off-policy a batch is: against NumPy loops, against runs whose lags are known, and against gradients by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.config import LearningConfig
from headrace.learning.off_policy import ConsecutiveGradients, lag_distribution, off_policyness
from headrace.make_config import make_config
from headrace.runs import lag_bins
from headrace.train import train


def oracle(log_prob: np.ndarray, behaviour: np.ndarray, mask: np.ndarray, c: LearningConfig) -> dict[str, float]:
    """One sample after the other."""
    total = squares = distance = kl = rho = cut = outside = 0.0
    n = 0
    for pi, mu, valid in zip(log_prob.flat, behaviour.flat, mask.flat, strict=True):
        if valid:
            n += 1
            w = min(20.0, max(1 / 20, math.exp(pi - mu)))
            total, squares = total + w, squares + w * w
            distance += abs(w - 1) / 2
            kl += w - 1 - math.log(w)
            rho, cut = rho + (w > c.vtrace_rho), cut + (w > c.vtrace_c)
            outside += not 1 / (1 + c.ppo_clip) <= w <= 1 + c.ppo_clip
    names = ("effective_sample_size", "total_variation", "kl", "rho_clipped", "c_clipped", "ppo_clipped")
    values = (total**2 / (n * squares), *(x / n for x in (distance, kl, rho, cut, outside)))
    return {f"off_policy/{name}": value for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("seed", range(3))
def test_off_policyness_is_that_of_the_formulas(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_prob, behaviour = (rng.normal(-1.5, 1.5, (7, 5)).astype(np.float32) for _ in range(2))
    log_prob[0, 0] = 30.0  # beyond what losses clamp to
    mask = rng.random((7, 5)) < 0.8
    log_prob[~mask] = np.nan
    c = LearningConfig(vtrace_rho=1.3, vtrace_c=0.9, ppo_clip=0.2)
    found = off_policyness(torch.from_numpy(log_prob), torch.from_numpy(behaviour), torch.from_numpy(mask), c)
    expected = oracle(log_prob, behaviour, mask, c)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5), name
        assert value > 0, name


def test_equal_policies_are_on_policy() -> None:
    same = torch.randn(4, 3)
    found = off_policyness(same, same, torch.ones(4, 3, dtype=torch.bool), LearningConfig(ppo_clip=None))
    assert "off_policy/ppo_clipped" not in found
    assert {name: float(x) for name, x in found.items() if float(x)} == {"off_policy/effective_sample_size": 1.0}


def test_the_distribution_of_lag_and_its_two_sources() -> None:
    rng = np.random.default_rng(0)
    lag, behind = rng.integers(0, 90, 400), rng.integers(0, 3, 400)
    found = {name: float(x) for name, x in lag_distribution(torch.from_numpy(lag), torch.from_numpy(behind)).items()}
    for name, low, high in zip(lag_bins.NAMES, lag_bins.LAGS, (*lag_bins.LAGS[1:], 1_000_000), strict=True):
        assert found[f"lag/share/{name}"] == pytest.approx(np.mean([low <= x < high for x in lag])), name
    assert found["lag/when_chosen"] == pytest.approx(np.mean(behind))
    assert found["lag/since_chosen"] == pytest.approx(np.mean(lag - behind), rel=1e-5)
    assert found["lag/p50"] == pytest.approx(np.median(lag), abs=1)
    assert found["lag/p95"] in lag
    assert np.mean(lag <= found["lag/p95"]) == pytest.approx(0.95, abs=0.02)


def test_the_cosine_is_of_the_first_two_steps_after_it_was_asked_for() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(3))]
    gradients = ConsecutiveGradients(weights)  # the third gets none

    def step(*values: float) -> dict[str, torch.Tensor]:
        weights[0].grad, weights[1].grad = torch.tensor(values[:2]).float(), torch.tensor(values[2:]).float()
        return gradients.after_step()

    assert step(1, 0, 0) == {}
    gradients.begin()
    assert step(1, 2, 2) == {}
    assert float(step(2, 0, 1)["losses/grad_cosine"]) == pytest.approx((2 + 0 + 2) / (3 * math.sqrt(5)))
    assert step(1, 2, 2) == {}


def logged(folder: Path, **settings: Any) -> list[dict[str, float]]:
    """The metrics of a short serial run in which each batch is one trajectory of one group, so that its lag is known."""
    base = {"run.folder": str(folder), "run.video": False, "run.dashboard": False, "run.log_interval": 0.0,
            "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 2,
            "sampling.rollout": 8, "learning.batch_size": 16, "learning.num_minibatches": 1, "learning.total_steps": 320,
            "learning.num_threads": 1, "policy.mlp": (8,),
            "policy.normalize_observations": False}  # fmt: skip
    train(make_config("gym/CartPole-v1", "impala", **{**base, **settings}))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "lag/when_chosen" in line]


@pytest.mark.parametrize(
    ("settings", "when_chosen", "since_chosen"),
    [
        ({}, 0, 0),
        ({"sampling.policy_lag": 3}, 3, 0),
        # Weights are taken every 16 steps, and a trajectory has 8: every second batch is of weights that are one update old.
        ({"sampling.weights_period": 16}, 0.5, 0),
        # Two groups in turn: while one's trajectory is learned from, half of the other's is there already.
        ({"sampling.num_groups": 2, "sampling.envs_per_worker": 4}, 0, 0.5),
    ],
)
def test_lag_is_split_by_its_source(tmp_path: Path, settings: dict[str, Any], when_chosen: float, since_chosen: float) -> None:
    rows = logged(tmp_path, **settings)[6:]
    assert len(rows) >= 8
    pairs = [(row["lag/when_chosen"], row["lag/since_chosen"]) for row in rows]
    assert np.mean([w for w, _ in pairs]) == pytest.approx(when_chosen, abs=0.1), pairs
    assert np.mean([s for _, s in pairs]) == pytest.approx(since_chosen, abs=0.1), pairs
    assert all(w + s == pytest.approx(row["lag/mean"]) for (w, s), row in zip(pairs, rows, strict=True))
    assert all(0 < row["off_policy/effective_sample_size"] <= 1 + 1e-6 for row in rows)
    assert [row["off_policy/kl"] > 1e-9 for row in rows].count(True) >= (0 if when_chosen + since_chosen == 0 else 6)


def test_old_experience_is_farther_from_the_policy(tmp_path: Path) -> None:
    settings = {"learning.learning_rate": 0.01}
    fresh, old = (logged(tmp_path / str(lag), **settings, **{"sampling.policy_lag": lag})[10:] for lag in (0, 8))

    def mean(rows: list[dict[str, float]], key: str) -> float:
        return float(np.mean([row[key] for row in rows]))

    assert mean(fresh, "off_policy/effective_sample_size") == pytest.approx(1)
    assert mean(old, "off_policy/effective_sample_size") < 0.999
    assert mean(old, "off_policy/total_variation") > 10 * mean(fresh, "off_policy/total_variation")
    assert all(-1 <= row["losses/grad_cosine"] <= 1 for row in [*fresh, *old] if "losses/grad_cosine" in row)
