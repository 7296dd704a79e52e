"""The native gradient of small networks against PyTorch's of the same loss."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace import config as configs
from headrace.config import Config
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.experience.batch import Arrivals, Batch
from headrace.learning import small_network
from headrace.learning.algorithm import Algorithm
from headrace.learning.learner import Learner
from headrace.learning.policy_gradient import PolicyGradient
from headrace.learning.small_network import SmallNetwork
from headrace.policies.distributions import unsquashed
from headrace.policies.encoders import TwoNetworks, VectorEncoder
from headrace.policies.policy import Policy, ValueHead

N = 37  # samples: no multiple of the widths of vectors or tiles
VECTOR = {"obs": ArraySpec((5,), np.dtype(np.float32))}
ACTIONS = {
    "one choice": ActionSpec((Categorical(3),)),
    "several choices": ActionSpec((Categorical(3), Categorical(2), Categorical(5))),
    "bounded": ActionSpec((Continuous((-1.0, 0.0), (1.0, 4.0)),)),
    "one bound": ActionSpec((Continuous((0.0, -math.inf), (math.inf, 0.1)),)),
    "unbounded": ActionSpec((Continuous((-math.inf,) * 3, (math.inf,) * 3),)),
}
CONFIG = Config(env="made-up")
SETTINGS = {
    "learning.returns": "gae", "learning.num_epochs": 2, "learning.ppo_clip": 0.2, "learning.entropy_coef": 0.0,
    "policy.mlp": (20, 7), "policy.activation": "tanh",
}  # fmt: skip


def made(action: str, **settings: Any) -> tuple[PolicyGradient, Policy, Config]:
    config = configs.override(CONFIG, **(SETTINGS | settings))
    algorithm = PolicyGradient()
    torch.manual_seed(1)
    model = algorithm.make_model(EnvSpec(VECTOR, ACTIONS[action], 1, name="made up"), config)
    with torch.no_grad():  # heads begin close to 0, where gradients hide
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm, model, config


def minibatch(model: Policy) -> dict[str, Tensor]:
    """Off-policy on purpose, with rows that are masked out and NaN."""
    make = torch.Generator().manual_seed(3)
    random = {name: torch.randn(1, N, generator=make) for name in ("reward", "value", "target", "advantage", "shift")}
    obs, first, core = torch.randn(1, N, 5, generator=make), torch.zeros(1, N, dtype=torch.bool), torch.zeros(N, 0)
    with torch.no_grad():
        distribution = model.unroll({"obs": obs}, core, first).distribution
        action = distribution.sample(make)
        log_prob = distribution.log_prob(action) + random.pop("shift")
    log_prob[0, :2] += torch.tensor([5.0, -5.0])  # beyond the largest ratio that counts
    mask = torch.rand(1, N, generator=make) < 0.8
    mask[0, :2] = True
    log_prob[~mask], random["advantage"][~mask], random["target"][~mask] = math.nan, math.nan, math.nan
    batch = random | {"obs/obs": obs, "first": first, "core": core, "action": action, "log_prob": log_prob, "mask": mask}
    if action.dtype == torch.float32:
        batch["raw_action"], batch["log_slope"] = unsquashed(model.spec.action, action)
    return batch


def both(algorithm: PolicyGradient, model: Policy, config: Config) -> list[tuple[dict[str, Tensor], dict[str, Tensor], dict]]:
    """Gradients by parameter, statistics and batch afterwards: of the native function, then of PyTorch."""
    found = []
    small = SmallNetwork(model)
    for backward in (small.backward, lambda batch, c: Algorithm.backward(algorithm, model, batch, c)):
        for parameter in model.parameters():
            parameter.grad = None
        batch = minibatch(model)
        assert small.takes(batch, config.learning)
        statistics = backward(batch, config.learning)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((gradients, {name: x.detach() for name, x in statistics.items()}, batch))
    return found


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learning.ppo_clip": None},
        {"learning.value_clip": 0.1, "learning.normalize_advantages": True},
        {"learning.reduction": "sum", "policy.activation": "relu", "policy.separate_critic": True},
        {"policy.activation": "elu", "policy.mlp": (33,), "policy.normalize_returns": True},
        {"learning.value_clip": 0.5, "policy.mlp": (70, 64, 16), "policy.separate_critic": True},
    ],
    ids=lambda settings: ", ".join(name.partition(".")[2] for name in settings) or "plain",
)
def test_it_is_the_gradient_of_the_loss(action: str, settings: dict[str, Any]) -> None:
    algorithm, model, config = made(action, **settings)
    if model.returns is not None:
        model.update_returns(torch.randn(1, 50) * 3 + 7, torch.ones(1, 50, dtype=torch.bool))
    for entropy in (0.0, 0.05) if "choice" in action else (0.0,):
        config = configs.override(config, **{"learning.entropy_coef": entropy})
        (mine, said, batch), (theirs, expected, other) = both(algorithm, model, config)
        assert mine.keys() == theirs.keys() == dict(model.named_parameters()).keys()
        for name, gradient in theirs.items():
            torch.testing.assert_close(mine[name], gradient, rtol=2e-5, atol=2e-6 * float(gradient.abs().max()), msg=name)
        assert said.keys() == expected.keys()
        for name, number in expected.items():
            torch.testing.assert_close(said[name], number, rtol=1e-5, atol=1e-6, msg=name)
        valid = batch["mask"]
        for name in ("sample/log_prob", "sample/value", "sample/target"):
            torch.testing.assert_close(batch[name][valid], other[name][valid], rtol=1e-5, atol=1e-5, msg=name)
        ratio = (other["sample/log_prob"] - batch["log_prob"])[valid]
        assert (ratio > math.log(20)).any()
        assert (ratio < -math.log(20)).any()
        clip = config.learning.value_clip
        assert clip is None or ((batch["sample/value"] - batch["value"]).abs()[valid] > clip).any(), "the clip binds"


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "settings",
    [
        {"learning.returns": "vtrace", "learning.vtrace_rho": 1.0, "learning.vtrace_c": 0.9},
        {"learning.returns": "vtrace", "learning.ppo_clip": None, "policy.normalize_returns": True, "learning.reduction": "sum"},
        {"learning.returns": "gae", "learning.num_epochs": 1, "policy.normalize_observations": True},
    ],
    ids=["appo", "impala", "a2c"],
)
@pytest.mark.parametrize("same_step", [False, True])
def test_targets_under_the_present_weights(action: str, settings: dict[str, Any], same_step: bool) -> None:
    """Of whole trajectories, with row T behind them."""
    T, B = 6, 5
    algorithm, model, config = made(action, **settings)
    make = torch.Generator().manual_seed(2)
    model.update_normalizers({"obs": torch.randn(9, 8, 5, generator=make) * 4 + 1})
    model.update_returns(torch.randn(1, 50, generator=make) * 3 + 7, torch.ones(1, 50, dtype=torch.bool))
    obs, first, core = torch.randn(T + 1, B, 5, generator=make), torch.zeros(T + 1, B, dtype=torch.bool), torch.zeros(B, 0)
    with torch.no_grad():
        distribution = model.unroll({"obs": obs[:T]}, core, first[:T]).distribution
        chosen = distribution.sample(make)
    ends = {name: torch.rand(T, B, generator=make) < 0.15 for name in ("terminated", "truncated")}
    batch = ends | {
        "obs/obs": obs, "first": first, "core": core, "action": chosen, "mask": torch.rand(T, B, generator=make) < 0.85,
        "log_prob": distribution.log_prob(chosen) + 0.5 * torch.randn(T, B, generator=make),
        "reward": torch.randn(T, B, generator=make), "value": torch.randn(T, B, generator=make),
    }  # fmt: skip
    if same_step:
        batch["final_obs/obs"] = torch.randn(T, B, 5, generator=make)
    with torch.no_grad():
        algorithm.prepare(model, batch, config.learning)
    found = []
    for backward in (algorithm.backward, lambda *args: Algorithm.backward(algorithm, *args)):
        for parameter in model.parameters():
            parameter.grad = None
        own = dict(batch)
        statistics = backward(model, own, config.learning)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((gradients, statistics, {name: x for name, x in own.items() if name.startswith("sample/")}))
    (mine, said, samples), (theirs, expected, others) = found
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()), msg=name)
    for name, number in expected.items():
        torch.testing.assert_close(said[name], number.detach(), rtol=1e-4, atol=1e-5, msg=name)
    for name, x in others.items():
        valid = batch["mask"]
        torch.testing.assert_close(samples[name][valid], x[valid], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("settings", [{"policy.separate_critic": True}, {"policy.core": "gru", "policy.core_size": 9}], ids=str)
@pytest.mark.parametrize("action", ACTIONS)
def test_acting_is_pytorchs(action: str, settings: dict[str, Any]) -> None:
    """With the same random numbers the same actions, and for any actions the log-probabilities and values of `Policy`: of a whole
    policy and, behind a core, of the heads."""
    algorithm, model, _ = made(action, **{"policy.normalize_observations": True, "policy.normalize_returns": True} | settings)
    model.update_normalizers({"obs": torch.randn(9, 8, 5) * 4 + 1})
    model.update_returns(torch.randn(1, 50) * 3 + 7, torch.ones(1, 50, dtype=torch.bool))
    obs, core, first = {"obs": torch.randn(N, 5) * 12}, torch.randn(N, model.core_width), torch.rand(N) < 0.5
    with torch.no_grad():
        assert SmallNetwork(model).acts(obs)
        fields, after = algorithm.act(model, obs, core, first, torch.arange(N), torch.Generator().manual_seed(5))
        out = model.act(obs, core, first)
        expected = out.distribution.sample(torch.Generator().manual_seed(5))
    assert obs["obs"].abs().max() > 6 * model.trunk.normalizers[0].std.max(), "some observations are clipped"
    if action != "several choices":  # of parts with few choices PyTorch draws more random numbers than it uses
        torch.testing.assert_close(fields["action"], expected, rtol=1e-5, atol=1e-5)
    assert fields["action"].dtype == expected.dtype
    torch.testing.assert_close(fields["log_prob"], out.distribution.log_prob(fields["action"]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fields["value"], out.value, rtol=1e-5, atol=1e-5)
    assert torch.equal(after, out.core)
    for row in (slice(0, 1), slice(N - 1, N)) if model.core_width == 0 else ():  # the size of a batch does not change its rows
        one = torch.Generator().manual_seed(5)
        with torch.no_grad():
            alone, _ = algorithm.act(model, {"obs": obs["obs"][row]}, core[row], first[row], torch.arange(1), one)
        assert torch.equal(alone["value"], fields["value"][row])


def test_actions_have_their_probabilities() -> None:
    algorithm, model, _ = made("several choices")
    obs = {"obs": torch.randn(1, 5).expand(20_000, -1)}
    with torch.no_grad():
        fields, _ = algorithm.act(model, obs, torch.zeros(20_000, 0), torch.zeros(20_000, dtype=torch.bool), torch.arange(1),
                                  torch.Generator().manual_seed(0))  # fmt: skip
        logits = model.act({"obs": obs["obs"][:1]}, torch.zeros(1, 0), torch.zeros(1, dtype=torch.bool)).distribution.logits
    for part, own in enumerate(logits[0].split([3, 2, 5])):
        shares = torch.bincount(fields["action"][:, part], minlength=len(own)) / 20_000
        torch.testing.assert_close(shares, own.softmax(0), rtol=0, atol=0.015)


def test_bounded_actions_at_their_bounds() -> None:
    """Means far beyond the bounds: the actions are the bounds, and their densities those of the policy."""
    algorithm, model, _ = made("bounded")
    with torch.no_grad():
        model.action_head.linear.bias.copy_(torch.tensor([30.0, -30.0]))
        rows = {"obs": torch.randn(N, 5)}, torch.zeros(N, 0), torch.zeros(N, dtype=torch.bool)
        fields, _ = algorithm.act(model, *rows, torch.arange(N), torch.Generator().manual_seed(0))
        expected = model.act(*rows).distribution.log_prob(fields["action"])
    torch.testing.assert_close(fields["action"], torch.tensor([1.0, 0.0]).expand(N, -1))
    torch.testing.assert_close(fields["log_prob"], expected, rtol=1e-4, atol=1e-3)


def test_it_does_not_act_where_gradients_or_the_most_probable_actions_are_wanted() -> None:
    algorithm, model, _ = made("one choice")
    rows = {"obs": torch.randn(N, 5)}, torch.zeros(N, 0), torch.zeros(N, dtype=torch.bool), torch.arange(N)
    assert algorithm.act(model, *rows, torch.Generator())[0]["value"].requires_grad
    with torch.no_grad():
        greedy, _ = algorithm.act(model, *rows, torch.Generator(), "deterministic")
        assert torch.equal(greedy["action"], model.act(*rows[:3]).distribution.mode())


def test_standard_deviations_outside_their_range_have_no_gradient() -> None:
    algorithm, model, config = made("unbounded")
    with torch.no_grad():
        model.action_head.log_std.copy_(torch.tensor([-6.0, 0.3, 2.5]))
    (mine, _, _), (theirs, _, _) = both(algorithm, model, config)
    torch.testing.assert_close(mine["action_head.log_std"], theirs["action_head.log_std"], rtol=2e-5, atol=1e-7)
    assert (mine["action_head.log_std"] == 0).tolist() == [True, False, True]


def test_without_a_valid_sample_everything_is_zero() -> None:
    _, model, config = made("one choice", **{"learning.normalize_advantages": True})
    batch = minibatch(model) | {"mask": torch.zeros(1, N, dtype=torch.bool)}
    statistics = SmallNetwork(model).backward(batch, config.learning)
    assert all(float(x) == 0 for x in statistics.values())
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_masked_rows_may_be_anything() -> None:
    found = []
    for garbage in (0.0, math.nan):
        _, model, config = made("several choices")
        batch = minibatch(model)
        batch["obs/obs"][~batch["mask"]] = garbage
        batch["action"][~batch["mask"]] = -7
        SmallNetwork(model).backward(batch, config.learning)
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_an_action_that_does_not_exist_is_an_error() -> None:
    _, model, config = made("one choice")
    batch = minibatch(model)
    batch["action"][0, 0] = 3  # of a row that counts
    with pytest.raises(IndexError, match="an action that does not exist"):
        SmallNetwork(model).backward(batch, config.learning)


def test_what_it_does_not_take() -> None:
    algorithm, model, config = made("one choice")
    batch, c = minibatch(model), config.learning
    assert SmallNetwork(model).takes(batch, c)
    symmetric = configs.override(config, **{"learning.exploration": "symmetric-kl", "learning.entropy_coef": 0.1})
    assert not SmallNetwork(model).takes(batch, symmetric.learning)
    assert not SmallNetwork(model).takes(batch | {"mask": torch.ones(1, 10**5, dtype=torch.bool)}, c), "too much for one thread"
    continuous = made("bounded", **{"learning.entropy_coef": 0.1})
    assert not SmallNetwork(continuous[1]).takes(minibatch(continuous[1]), continuous[2].learning)
    mixed = ActionSpec((Categorical(2), Continuous((-1.0,), (1.0,))))
    image = {"obs": ArraySpec((3, 40, 40), np.dtype(np.uint8))}
    others = [
        (EnvSpec(VECTOR, mixed, 1, name="mixed"), {}),
        (EnvSpec(VECTOR | {MASK_KEY: ArraySpec((3,), np.dtype(np.uint8))}, ACTIONS["one choice"], 1, name="masks"), {}),
        (EnvSpec(VECTOR | {"more": VECTOR["obs"]}, ACTIONS["one choice"], 1, name="two"), {}),
        (EnvSpec(image, ACTIONS["one choice"], 1, name="images"), {}),
        (EnvSpec(VECTOR, ACTIONS["one choice"], 1, name="recurrent"), {"policy.core": "gru", "policy.core_size": 8}),
    ]
    for spec, settings in others:
        other = algorithm.make_model(spec, configs.override(config, **settings))
        assert not SmallNetwork(other).takes(batch, c), spec.name
    fixed = ActionSpec((Continuous((1.0, 0.0), (1.0, 4.0)),))
    with torch.no_grad():
        assert SmallNetwork(made("bounded")[1]).acts({"obs": torch.zeros(1, 5)})
        other = algorithm.make_model(EnvSpec(VECTOR, fixed, 1, name="fixed"), config)
        assert not SmallNetwork(other).acts({"obs": torch.zeros(1, 5)})


class Doubled(ValueHead):
    def forward(self, features: Tensor) -> Tensor:
        return 2 * super().forward(features)


class Shifted(VectorEncoder):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 1)


def mlp_of(model: Policy) -> nn.Sequential:
    return model.trunk.network.encoders[0].mlp


def shared(model: Policy) -> None:
    model.trunk.network = TwoNetworks(model.trunk.network, model.trunk.network)
    model.parts = 2


CHANGES: dict[str, Callable[[Policy], Any]] = {
    "a head": lambda model: setattr(model.value_head, "__class__", Doubled),
    "an encoder": lambda model: setattr(model.trunk.network.encoders[0], "__class__", Shifted),
    "spectral norm": lambda model: nn.utils.parametrizations.spectral_norm(model.value_head.linear),
    "weight norm": lambda model: nn.utils.parametrizations.weight_norm(mlp_of(model)[0]),
    "a norm": lambda model: mlp_of(model).append(nn.LayerNorm(7)),
    "a norm instead of an activation": lambda model: mlp_of(model).__setitem__(3, nn.LayerNorm(7)),
    "another activation": lambda model: mlp_of(model).__setitem__(1, nn.ReLU()),
    "an unknown activation": lambda model: [mlp_of(model).__setitem__(i, nn.SiLU()) for i in (1, 3)],
    "no last activation": lambda model: mlp_of(model).pop(3),
    "no bias": lambda model: mlp_of(model)[2].register_parameter("bias", None),
    "a head of several layers": lambda model: setattr(
        model.action_head, "linear", nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 3))
    ),
    "a hook": lambda model: model.value_head.linear.register_forward_hook(lambda module, inputs, output: output * 3),
    "one network for both": shared,
    "another parameter": lambda model: model.register_parameter("more", nn.Parameter(torch.zeros(3))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_policy_that_somebody_has_changed_is_pytorchs(change: str) -> None:
    algorithm, model, config = made("one choice")
    CHANGES[change](model)
    small, batch = SmallNetwork(model), minibatch(model)
    rows = {"obs": torch.randn(N, 5)}, torch.zeros(N, 0), torch.zeros(N, dtype=torch.bool)
    with torch.no_grad():
        fields, _ = algorithm.act(model, *rows, torch.arange(N), torch.Generator().manual_seed(0))
        if change != "spectral norm":  # which is different in every forward pass
            out = model.act(*rows)
            torch.testing.assert_close(fields["value"], out.value)
            torch.testing.assert_close(fields["log_prob"], out.distribution.log_prob(fields["action"]))
    assert not small.takes(batch, config.learning)
    algorithm.backward(model, batch, config.learning)
    assert all(p.grad is not None for name, p in model.named_parameters() if name != "more")


class Decayed(PolicyGradient):
    def loss(self, model: Any, batch: Any, config: Any) -> Any:
        loss, statistics = super().loss(model, batch, config)
        penalty = 100 * model.value_head.linear.weight.square().sum()
        return loss + penalty, statistics | {"losses/penalty": penalty}


class Mirrored(PolicyGradient):
    def loss(self, model: Any, batch: Any, config: Any) -> Any:
        return super().loss(model, batch | {"obs/obs": -batch["obs/obs"], "action": -batch["action"]}, config)


class Alone(PolicyGradient):
    def loss(self, model: Any, batch: Any, config: Any) -> Any:
        out = model.unroll(
            {"obs": batch["obs/obs"][: len(batch["reward"])]}, batch["core"], batch["first"][: len(batch["reward"])]
        )
        return out.value.square().mean() + out.distribution.log_prob(batch["action"]).mean(), {"losses/mine": out.value.mean()}


def test_a_loss_of_ones_own_is_used() -> None:
    gradients = []
    for algorithm in (PolicyGradient(), Decayed()):
        _, model, config = made("one choice")
        statistics = algorithm.backward(model, minibatch(model), config.learning)
        assert ("losses/penalty" in statistics) == isinstance(algorithm, Decayed)
        gradients.append(model.value_head.linear.weight.grad)
    assert (gradients[1] - gradients[0]).abs().max() > 1
    set_on_the_object = PolicyGradient()
    set_on_the_object.loss = Decayed().loss  # type: ignore[method-assign]
    assert "losses/penalty" in set_on_the_object.backward(model, minibatch(model), config.learning)


def trajectories(action: str, seed: int, T: int = 8, B: int = 6) -> Batch:
    make = torch.Generator().manual_seed(seed)
    obs = torch.randn(T + 1, B, 5, generator=make)
    first, core = torch.zeros(T + 1, B, dtype=torch.bool), torch.zeros(B, 0)
    distribution = made(action)[1].unroll({"obs": obs[:T]}, core, first[:T]).distribution
    chosen = distribution.sample(make)
    data = {
        "obs/obs": obs, "first": first, "core": core, "action": chosen, "log_prob": distribution.log_prob(chosen).detach(),
        "reward": torch.randn(T, B, generator=make), "value": torch.randn(T, B, generator=make),
        "terminated": torch.rand(T, B, generator=make) < 0.1, "truncated": torch.zeros(T, B, dtype=torch.bool),
    }  # fmt: skip
    valid = torch.rand(T + 1, B, generator=make) < 0.9
    return Batch(data, torch.zeros(T, B, dtype=torch.int64), valid, None, Arrivals(T * B))


def test_what_a_loss_of_ones_own_is_given_may_be_changed() -> None:
    """What is known of observations and actions beforehand is not used in place of what it passes on."""
    _, model, config = made("bounded", **{"policy.normalize_observations": True, "policy.normalize_returns": True})
    data = trajectories("bounded", 0).data | {"mask": torch.ones(8, 6, dtype=torch.bool)}
    with torch.no_grad():
        Mirrored().prepare(model, data, config.learning)
        mirrored = data | {"obs/obs": -data["obs/obs"], "action": -data["action"]}
        assert (
            Mirrored().loss(model, dict(data), config.learning)[0] == PolicyGradient().loss(model, mirrored, config.learning)[0]
        )
        assert (
            PolicyGradient().loss(model, dict(data), config.learning)[0]
            != PolicyGradient().loss(model, mirrored, config.learning)[0]
        )


def test_a_loss_that_leaves_no_samples_is_learned_from() -> None:
    _, model, config = made("one choice")
    update = Learner(model, Alone(), config).learn(trajectories("one choice", 0))
    assert "losses/mine" in update.statistics
    assert "losses/approx_kl" not in update.statistics
    assert "off_policy/kl" not in update.statistics


def test_copies_of_what_has_acted() -> None:
    algorithm, model, _ = made("one choice")
    rows = {"obs": torch.randn(N, 5)}, torch.zeros(N, 0), torch.zeros(N, dtype=torch.bool), torch.arange(N)
    with torch.no_grad():
        before, _ = algorithm.act(model, *rows, torch.Generator().manual_seed(0))
        other, twin = copy.deepcopy((algorithm, model))
        for parameter in model.parameters():
            parameter.zero_()
        after, _ = other.act(twin, *rows, torch.Generator().manual_seed(0))
    assert torch.equal(before["value"], after["value"])


def test_numbers_of_other_types_and_shapes() -> None:
    _, model, config = made("one choice")
    small, gradients = SmallNetwork(model), []
    for kind in (torch.float32, torch.float64):
        batch = minibatch(model)
        batch |= {name: batch[name].to(kind) for name in ("advantage", "target", "log_prob")}
        small.backward(batch, config.learning)
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="advantage"):
        small.backward(minibatch(model) | {"advantage": torch.zeros(1, N + 1)}, config.learning)
    with pytest.raises(ValueError, match="1 rows of observations where 2 are needed"):
        small.evaluate(minibatch(model))


@pytest.mark.parametrize("action", ["several choices", "bounded"])
def test_updates_of_a_learner_are_the_same(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: minibatches, clipping, Adam, statistics; and where other learners' gradients are added to it."""
    weights, statistics = [], []
    for most, ranks in itertools.product((small_network.MOST_WORK, 0), (False, True)):
        monkeypatch.setattr(small_network, "MOST_WORK", most)
        algorithm, model, config = made(action, **{"learning.num_minibatches": 3, "policy.normalize_observations": True})
        learner = Learner(model, algorithm, config)
        if ranks:
            learner.reduce_gradients_by(lambda samples: None)
        for seed in range(3):
            update = learner.learn(trajectories(action, seed))
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
        statistics.append(update.statistics)
    for other in range(1, 4):
        torch.testing.assert_close(weights[0], weights[other], rtol=1e-4, atol=1e-6)
        assert statistics[0].keys() == statistics[other].keys()
        for name, number in statistics[0].items():
            torch.testing.assert_close(number, statistics[other][name], rtol=1e-3, atol=1e-4, msg=name)
