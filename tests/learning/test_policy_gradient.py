"""Where the targets of GAE come from does not change them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.learning.policy_gradient import PolicyGradient
from headrace.policies.distributions import ActionDistribution

T, B = 7, 5
SPEC = EnvSpec({"obs": ArraySpec((3,), np.dtype(np.float32))}, ActionSpec((Categorical(4),)), 1, name="made up")


def batch_of(model: torch.nn.Module, same_step: bool) -> dict[str, torch.Tensor]:
    """What acting with these weights would have stored, of random observations and ends."""
    make = torch.Generator().manual_seed(3)
    batch = {
        "obs/obs": torch.randn(T + 1, B, 3, generator=make),
        "first": torch.rand(T + 1, B, generator=make) < 0.2,
        "core": torch.randn(B, model.core_width, generator=make),
        "reward": torch.randn(T, B, generator=make),
        "terminated": torch.rand(T, B, generator=make) < 0.15,
        "truncated": torch.rand(T, B, generator=make) < 0.15,
        "action": torch.randint(4, (T, B, 1), generator=make).float(),
        "mask": torch.rand(T, B, generator=make) < 0.9,
    }
    if same_step:
        batch["final_obs/obs"] = torch.randn(T, B, 3, generator=make)
    with torch.no_grad():
        out = model.unroll({"obs": batch["obs/obs"]}, batch["core"], batch["first"])
        batch["value"] = out.value[:T].clone()
        batch["log_prob"] = torch.full((T, B), -1.4)
    return batch


def statistics_of(
    algorithm: PolicyGradient, model: torch.nn.Module, batch: dict[str, torch.Tensor], config: LearningConfig
) -> dict[str, torch.Tensor]:
    """All statistics of an update of one optimizer step."""
    _, reported = algorithm.loss(model, batch, config)
    samples = {name.removeprefix("sample/"): x.flatten() for name, x in batch.items() if name.startswith("sample/")}
    return algorithm.statistics(model, samples, config) | {name: x.detach() for name, x in reported.items()}


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_gae_in_the_loss_is_gae_before_all_passes(core: str, same_step: bool) -> None:
    """One pass takes its targets from its own forward pass, several from one before them: with the same weights the same."""
    config = configs.override(
        Config(env="made-up"), **{"policy.core": core, "policy.core_size": 8, "policy.mlp": (16,), "learning.returns": "gae"}
    )
    one, several = (
        configs.override(config, **{"learning.num_epochs": n, "learning.num_minibatches": 1}).learning for n in (1, 2)
    )
    algorithm = PolicyGradient()
    torch.manual_seed(0)
    model = algorithm.make_model(SPEC, config)
    losses, gradients = [], []
    for passes in (one, several):
        batch = batch_of(model, same_step)
        algorithm.prepare(model, batch, passes)
        assert ("advantage" in batch) == (passes is several)
        loss, _ = algorithm.loss(model, batch, passes)
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_the_shares_that_v_trace_truncates_are_counted_among_valid_samples() -> None:
    config = configs.override(
        Config(env="made-up"), **{"policy.mlp": (16,), "learning.vtrace_rho": 1.02, "learning.vtrace_c": 0.97}
    )
    algorithm = PolicyGradient()
    torch.manual_seed(0)
    model = algorithm.make_model(SPEC, config)
    batch = batch_of(model, same_step=False)
    batch["log_prob"] += 0.1 * torch.randn(T, B)
    with torch.no_grad():
        out = model.unroll({"obs": batch["obs/obs"][:T]}, batch["core"], batch["first"][:T])
        ratio = (out.distribution.log_prob(batch["action"]) - batch["log_prob"]).exp()[batch["mask"]]
    limits = {"losses/rho_clipped": 1.02, "losses/c_clipped": 0.97}
    counted = {name: float((ratio > limit).float().mean()) for name, limit in limits.items()}
    assert 0 < counted["losses/rho_clipped"] < counted["losses/c_clipped"] < 1, "both clips bind somewhere, and not everywhere"
    statistics = statistics_of(algorithm, model, batch, configs.override(config, **{"learning.returns": "vtrace"}).learning)
    for name, share in counted.items():
        assert float(statistics[name]) == pytest.approx(share)
    statistics = statistics_of(algorithm, model, batch, configs.override(config, **{"learning.returns": "gae"}).learning)
    assert not counted.keys() & statistics.keys()


@pytest.mark.parametrize("action", [Categorical(4), Continuous((-1.0, -1.0), (1.0, 1.0))], ids=["discrete", "continuous"])
def test_entropy_that_is_only_reported_is_estimated(action: Categorical | Continuous, monkeypatch: pytest.MonkeyPatch) -> None:
    """From actions of other weights, 4,000 of them; and the exact one, which costs more, is not computed."""
    config = configs.override(Config(env="made-up"), **{"policy.mlp": (16,), "learning.returns": "gae"})
    spec, algorithm, n = EnvSpec(SPEC.observation, ActionSpec((action,)), 1, name="made up"), PolicyGradient(), 4000
    torch.manual_seed(0)
    model = algorithm.make_model(spec, config)
    obs, core, first = torch.randn(2, n, 3), torch.zeros(n, 0), torch.zeros(2, n, dtype=torch.bool)
    rows = {name: torch.zeros(1, n) for name in ("reward", "value", "target", "advantage")}
    flags = {name: torch.zeros(1, n, dtype=torch.bool) for name in ("terminated", "truncated")}
    with torch.no_grad():
        behaviour = model.unroll({"obs": obs[:1]}, core, first[:1]).distribution
        actions = behaviour.sample()
        for parameter in model.action_head.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        exact = float(model.unroll({"obs": obs[:1]}, core, first[:1]).distribution.entropy().mean())
        log_prob = behaviour.log_prob(actions)
    batch = {"obs/obs": obs, "core": core, "first": first, "action": actions, "log_prob": log_prob, **rows, **flags}
    batch["mask"] = torch.ones(1, n, dtype=torch.bool)
    assert abs(exact - float(behaviour.entropy().mean())) > 0.02
    found = {}
    for coefficient in (0.01, 0.0):
        learning = configs.override(config, **{"learning.entropy_coef": coefficient}).learning
        found[coefficient] = float(statistics_of(algorithm, model, dict(batch), learning)["losses/entropy"])
        monkeypatch.setattr(ActionDistribution, "entropy", None)
    assert found[0.01] == pytest.approx(exact)
    assert found[0.0] == pytest.approx(exact, abs=0.05)
