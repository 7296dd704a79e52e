"""What was wrong once: normalisers, priorities of distributions, noisy layers, batches without a valid row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.experience.batch import Arrivals, Batch
from headrace.learning import q_learning
from headrace.learning.algorithm import make_algorithm
from headrace.learning.apex_dqn import ApexDQN
from headrace.learning.learner import Learner
from headrace.learning.policy_gradient import PolicyGradient
from headrace.learning.training_log import TrainingLog
from headrace.make_config import check_config, make_config
from headrace.policies.distributions import ActionDistribution

T, B = 6, 8
SPEC = EnvSpec({"obs": ArraySpec((3,), np.dtype(np.float32))}, ActionSpec((Categorical(4),)), 1, name="made up")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def config(**settings: Any) -> Config:
    small = {"learning.device": "cpu", "learning.num_threads": 1, "policy.mlp": (16,), "policy.hidden": 16}
    return configs.override(Config(env="made-up"), **{**small, **settings})


def trajectories(learner: Learner, seed: int = 0, valid: bool = True) -> Batch:
    """Acted by the learner's present weights; rewards around 20."""
    make = torch.Generator().manual_seed(seed)
    data = {
        "obs/obs": torch.randn(T + 1, B, 3, generator=make),
        "first": torch.rand(T + 1, B, generator=make) < 0.1,
        "core": torch.zeros(B, 0),
        "reward": 20 + 5 * torch.randn(T, B, generator=make),
        "terminated": torch.rand(T, B, generator=make) < 0.1,
        "truncated": torch.zeros(T, B, dtype=torch.bool),
        "action": torch.randint(4, (T, B, 1), generator=make).int(),
    }
    with torch.no_grad():
        out = learner.model.unroll({"obs": data["obs/obs"]}, data["core"], data["first"])
        data["value"] = out.value[:T].clone()
        data["log_prob"] = torch.full((T, B), -1.4)
    rows = torch.full((T + 1, B), valid)
    version = torch.full((T, B), learner.progress.version, dtype=torch.int32)
    return Batch(data, version, rows, None, Arrivals(int(rows[:T].sum()), np.zeros(0), np.zeros(0, np.int32)))


def make_learner(**settings: Any) -> Learner:
    c = config(**settings)
    torch.manual_seed(0)
    algorithm = PolicyGradient()
    return Learner(algorithm.make_model(SPEC, c), algorithm, c)


# -- the return normaliser (PopArt) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", ["vtrace", "gae"])
@pytest.mark.parametrize("passes", [(1, 1), (2, 4)])
def test_new_statistics_of_returns_change_no_prediction_and_count_every_sample_once(
    returns: str, passes: tuple[int, int]
) -> None:
    """With a learning rate of 0 nothing else may change what the value head says."""
    learner = make_learner(**{
        "policy.normalize_returns": True, "learning.returns": returns, "learning.learning_rate": 0.0,
        "learning.num_epochs": passes[0], "learning.num_minibatches": passes[1],
    })  # fmt: skip
    model: Any = learner.model
    batch = trajectories(learner)
    obs = {"obs": batch.data["obs/obs"]}
    for round_ in (1, 2):
        before = model.unroll(obs, batch.data["core"], batch.data["first"]).value.detach()
        learner.learn(batch)
        after = model.unroll(obs, batch.data["core"], batch.data["first"]).value.detach()
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
        assert model.returns.count.item() == round_ * T * B
    assert 20 < model.returns.mean.item() < 120
    assert model.returns.std.item() > 3


def test_the_statistics_are_those_of_the_v_trace_targets() -> None:
    """Rewards of 20, one step to the end: the targets are min(1, w) (20 - V) + V."""
    learner = make_learner(**{"policy.normalize_returns": True, "learning.learning_rate": 0.0, "learning.returns": "vtrace"})
    batch = trajectories(learner)
    batch.data["reward"][:] = 20
    batch.data["terminated"][:] = True
    batch.data["log_prob"][:] = 1.0  # ratios below 1
    model: Any = learner.model
    out = model.unroll({"obs": batch.data["obs/obs"][:T]}, batch.data["core"], batch.data["first"][:T])
    ratio = (out.distribution.log_prob(batch.data["action"]) - 1.0).exp()
    target = (out.value + ratio * (20 - out.value)).detach()
    learner.learn(batch)
    assert model.returns.mean.item() == pytest.approx(target.mean().item(), rel=1e-5)
    assert model.returns.var.item() == pytest.approx(target.var(correction=0).item(), rel=1e-3)


# -- normalised observations on replay -----------------------------------------------------------------------------------


def transitions(actions: int = 4) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return {
        "obs/obs": 100 + 7 * torch.randn(B, 3, generator=g), "next/obs": 100 + 7 * torch.randn(B, 3, generator=g),
        "action": torch.randint(actions, (B, 1), generator=g), "reward": torch.randn(B, generator=g),
        "discount": torch.full((B,), 0.9), "weights": torch.ones(B),
    }  # fmt: skip


def test_observations_are_normalised_on_replay() -> None:
    c = config(**{"learning.algorithm": "apex-dqn", "policy.normalize_observations": True, "q.target_period": 1})
    algorithm = make_algorithm(c)
    learner, data = Learner(algorithm.make_model(SPEC, c), algorithm, c), transitions()
    batch = Batch(data, torch.zeros(B, dtype=torch.int32), None, np.zeros(B, np.uint64), Arrivals(0, np.zeros(0), np.zeros(0)))
    learner.learn(batch)
    normalizer = learner.model.trunk.normalizers[0]
    torch.testing.assert_close(normalizer.mean.float(), data["obs/obs"].mean(0))
    assert normalizer.count == B
    assert isinstance(algorithm, ApexDQN)
    target: Any = algorithm.target_of(learner.model)
    torch.testing.assert_close(target.trunk.normalizers[0].mean, normalizer.mean)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("apex-dqn", "normalize_returns"),
        ("apex-dpg", "normalize_returns"),
        ("apex-dpg", "normalize_observations"),
        ("pqn", "normalize_returns"),
        ("apex-dqn", "separate_critic"),
        ("apex-dpg", "separate_critic"),
        ("pqn", "separate_critic"),
    ],
)
def test_settings_of_a_policy_that_an_algorithm_would_ignore_are_refused(name: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.{setting}"):
        check_config(make_config("gym/Pendulum-v1", name, **{f"policy.{setting}": True}))
    check_config(make_config("gym/Pendulum-v1", name))


def test_a_separate_critic_is_refused_beside_a_core() -> None:
    with pytest.raises(ConfigError, match=r"policy\.separate_critic is for networks without a recurrent core"):
        check_config(make_config("gym/Pendulum-v1", **{"policy.separate_critic": True, "policy.core": "gru"}))


# -- distributions of returns --------------------------------------------------------------------------------------------


def test_priorities_of_distributions_are_errors_of_expected_values_as_when_acting() -> None:
    c = config(**{"learning.algorithm": "apex-dqn", "q.atoms": 51, "q.support": (-20.0, 20.0)})
    algorithm = make_algorithm(c)
    model, data = algorithm.make_model(SPEC, c), transitions()
    with torch.no_grad():
        algorithm.prepare(model, data, c.learning)
        q, after = model({"obs": data["obs/obs"]}).q, model({"obs": data["next/obs"]}).q
    algorithm.loss(model, data, c.learning)
    expected = data["reward"] + 0.9 * after.max(-1).values - q.gather(-1, data["action"]).squeeze(-1)
    torch.testing.assert_close(data["priority"], expected.abs(), rtol=1e-4, atol=1e-4)


# -- noisy layers --------------------------------------------------------------------------------------------------------


def test_noise_comes_from_the_generator_given_and_deterministic_acting_has_none() -> None:
    c = config(**{"learning.algorithm": "apex-dqn", "q.noisy": True, "q.epsilon": 0.0})
    algorithm = make_algorithm(c)
    model = algorithm.make_model(SPEC, c)
    n = 16
    obs, first = {"obs": torch.randn(n, 3)}, torch.ones(n, dtype=torch.bool)

    def value(mode: Any, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            return algorithm.act(model, obs, torch.zeros(n, 0), first, torch.zeros(n).long(), generator, mode)[0]["value"]

    for mode in ("train", "evaluate"):
        assert torch.equal(value(mode, 1), value(mode, 1)), "equal seeds, equal noise"
        assert not torch.equal(value(mode, 1), value(mode, 2))
    assert torch.equal(value("deterministic", 1), value("deterministic", 2))
    assert not torch.equal(model(obs).q, model(obs).q), "learning is noisy still"


# -- numbers -------------------------------------------------------------------------------------------------------------


def test_rescaling_keeps_float32_near_zero() -> None:
    x = torch.cat([torch.logspace(-7, 4, 200), -torch.logspace(-7, 4, 200)])
    for function in (q_learning.rescale, q_learning.unscale):
        torch.testing.assert_close(function(x).double(), function(x.double()), rtol=1e-6, atol=0)
    torch.testing.assert_close(q_learning.unscale(q_learning.rescale(x)), x, rtol=2e-6, atol=0)


@pytest.mark.parametrize("log_std", [-5.0, -1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, 5.0])
def test_entropy_of_a_squashed_gaussian(mean: float, log_std: float) -> None:
    """Against 40,000 points of the integral, for actions in [-1, 1]."""
    z = np.linspace(-9, 9, 40_001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    u = mean + np.exp(log_std) * z
    slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    expected = 0.5 * np.log(2 * np.pi * np.e) + log_std + np.sum(density * slope) * (z[1] - z[0])
    spec = ActionSpec((Continuous((-1.0,), (1.0,)),))
    params = torch.tensor([[mean, log_std]], requires_grad=True)
    entropy = ActionDistribution(spec, params).entropy()
    assert entropy.item() == pytest.approx(expected, abs=2e-3)
    (gradient,) = torch.autograd.grad(entropy.sum(), params)
    assert torch.isfinite(gradient).all()


# -- batches without a valid row, and rows that are masked ---------------------------------------------------------------


@pytest.mark.parametrize("returns", ["vtrace", "gae"])
def test_a_batch_without_a_valid_row_is_learned_from_without_a_trace(returns: str) -> None:
    learner = make_learner(**{"policy.normalize_returns": True, "learning.returns": returns})
    log = TrainingLog()
    for valid in (False, True, False):
        before = [p.clone() for p in learner.model.parameters()]
        batch = trajectories(learner, valid=valid)
        log.add(batch.arrivals, learner.learn(batch))
        same = all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
        assert same != valid
    metrics = log.metrics(learner)
    assert metrics["lag/mean"] == 0.0
    assert all(np.isfinite(x) for x in metrics.values()), metrics
    assert learner.progress.global_step == T * B


def test_steps_too_old_to_learn_from_are_not_counted_as_learned_from() -> None:
    learner = make_learner(**{"learning.max_policy_lag": 0})
    for _ in range(2):
        batch = trajectories(learner)
        batch.version[:2] -= 1
        learner.learn(batch)
    assert learner.progress.global_step == 2 * (T - 2) * B
    assert learner.progress.stale_steps == 2 * 2 * B


# -- exploration of continuous actions -----------------------------------------------------------------------------------


def test_symmetric_kl_is_refused_for_unbounded_actions_and_learned_from_for_bounded_ones() -> None:
    c = config(**{"learning.exploration": "symmetric-kl"})
    unbounded = EnvSpec(SPEC.observation, ActionSpec((Continuous((-1.0,), (np.inf,)),)), 1, name="made up")
    with pytest.raises(ConfigError, match="symmetric-kl needs discrete or bounded actions"):
        PolicyGradient().make_model(unbounded, c)
    bounded = EnvSpec(SPEC.observation, ActionSpec((Continuous((-1.0,), (1.0,)),)), 1, name="made up")
    policy = PolicyGradient().make_model(bounded, c)
    out = policy.act({"obs": torch.randn(B, 3)}, torch.zeros(B, 0), torch.zeros(B, dtype=torch.bool))
    out.distribution.symmetric_kl_to_uniform().mean().backward()
    assert policy.action_head.log_std is not None
    assert policy.action_head.log_std.grad is not None
    assert policy.action_head.log_std.grad.abs().item() > 1e-3
