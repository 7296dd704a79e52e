"""Q-learning's mathematics against loops written from the papers, and the algorithms' losses and gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.experience.batch import Arrivals, Batch
from headrace.learning import q_learning
from headrace.learning.algorithm import make_algorithm
from headrace.learning.apex_dpg import ApexDPG
from headrace.learning.apex_dqn import ApexDQN
from headrace.learning.dqn import DQN
from headrace.learning.learner import Learner
from headrace.learning.r2d2 import R2D2
from headrace.policies.q_network import NoisyLinear, QNetwork

VECTOR = ArraySpec((5,), np.dtype(np.float32))
DISCRETE = EnvSpec({"obs": VECTOR}, ActionSpec((Categorical(3),)), name="test")
CONTINUOUS = EnvSpec({"obs": VECTOR}, ActionSpec((Continuous((-2.0, 0.0), (2.0, 1.0)),)), name="test")


def config(algorithm: str = "apex-dqn", **settings: object) -> Config:
    base = Config()
    base.learning.device, base.policy.mlp, base.policy.hidden = "cpu", (16,), 16
    return configs.override(base, **{"learning.algorithm": algorithm, "learning.num_threads": 1, **settings})


def transitions(B: int, action: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs/obs": torch.randn(B, 5, generator=g), "next/obs": torch.randn(B, 5, generator=g), "action": action,
        "reward": torch.randn(B, generator=g), "discount": torch.tensor([0.9, 0.0] * (B // 2)),
        "weights": torch.rand(B, generator=g),
    }  # fmt: skip


# -- mathematics ------------------------------------------------------------------------------------------------------


def test_bootstrap_takes_the_target_value_of_the_online_choice_among_allowed_actions() -> None:
    online = torch.tensor([[1.0, 5.0, 3.0], [9.0, 2.0, 4.0]])
    target = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
    assert q_learning.bootstrap_values(online, target).tolist() == [20.0, 40.0]
    allowed = torch.tensor([[True, False, True], [False, True, True]])
    assert q_learning.bootstrap_values(online, target, allowed).tolist() == [30.0, 60.0]


def test_projection_equals_the_paper_s_loop() -> None:
    rng = np.random.default_rng(0)
    support = np.linspace(-2.0, 3.0, 6)
    p = rng.dirichlet(np.ones(6), 40)
    # beyond both ends, exactly on atoms, and in between
    reward = np.concatenate([rng.normal(0, 3, 37), [0.0, 1.0, 10.0]])
    discount = np.concatenate([rng.uniform(0, 1, 36), [0.0, 1.0, 1.0, 0.5]])
    expected = np.zeros_like(p)
    for i in range(40):
        for j in range(6):
            position = (np.clip(reward[i] + discount[i] * support[j], -2, 3) + 2) / 1.0
            low, high = math.floor(position), math.ceil(position)
            if low == high:
                expected[i, low] += p[i, j]
            else:
                expected[i, low] += p[i, j] * (high - position)
                expected[i, high] += p[i, j] * (position - low)
    got = q_learning.project(*(torch.tensor(x, dtype=torch.float64) for x in (support, p, reward, discount)))
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(got.sum(1).numpy(), 1.0, atol=1e-12)


def test_rescaling_and_its_inverse() -> None:
    x = torch.tensor([-1000.0, -1.5, 0.0, 0.3, 99.0], dtype=torch.float64)
    expected = [math.copysign(math.sqrt(abs(v) + 1) - 1, v) + 1e-3 * v for v in x.tolist()]
    np.testing.assert_allclose(q_learning.rescale(x).numpy(), expected)
    np.testing.assert_allclose(q_learning.unscale(q_learning.rescale(x)).numpy(), x.numpy(), rtol=1e-9, atol=1e-9)


def test_mixed_priorities() -> None:
    errors = torch.tensor([[1.0, -4.0, 9.0], [-3.0, 2.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    np.testing.assert_allclose(q_learning.mixed_priorities(errors, mask).numpy(), [0.9 * 3 + 0.1 * 2, 4.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_sequence_targets_equal_a_loop(n: int) -> None:
    rng = np.random.default_rng(n)
    rows, B = 12 + n, 40
    reward, values = rng.normal(size=(2, rows, B))
    last = rng.random((rows, B)) < 0.25
    last &= ~np.roll(last, 1, 0)  # the row after an episode's last action has none
    discount = np.where(last & (rng.random((rows, B)) < 0.5), 0.0, 0.9)
    expected = np.empty((12, B))
    for b in range(B):
        for t in range(12):
            total, product, u = 0.0, 1.0, t
            while u < t + n:
                total += product * reward[u, b]
                product *= discount[u, b]
                u += 1
                if last[u - 1, b]:
                    break
            expected[t, b] = total + product * (values[u, b] if product else 0.0)
    got = q_learning.sequence_targets(*map(torch.tensor, (reward, discount, last, values)), n_step=n)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


def test_recurrent_learning_sees_what_acting_saw() -> None:
    """Burn-in from the stored state gives the values that acting row by row gave, so that the loss is that of a loop."""
    c = config(**{"policy.core": "gru", "policy.core_size": 6, "q.burn_in": 3, "q.sequence": 4, "replay.n_step": 2,
                  "q.rescale": True, "sampling.rollout": 5})  # fmt: skip
    algorithm = make_algorithm(c)
    assert isinstance(algorithm, R2D2)
    torch.manual_seed(0)
    net, (T, B) = algorithm.make_model(DISCRETE, c), (9, 3)
    first, last = torch.zeros(T, B, dtype=torch.bool), torch.zeros(T, B, dtype=torch.bool)
    first[5, 1] = last[3, 1] = True  # row 4 is the episode's last observation
    final = torch.zeros(T, B, dtype=torch.bool)
    final[4, 1] = True
    batch = {"obs/obs": torch.randn(T, B, 5), "action": torch.randint(0, 3, (T, B, 1)), "reward": torch.randn(T, B),
             "discount": torch.full((T, B), 0.9), "first": first, "last": last, "final": final, "core": torch.randn(B, 10),
             "weights": torch.tensor([1.0, 0.5, 0.0])}  # fmt: skip
    with torch.no_grad():
        core, q = batch["core"][:, :6], []
        for t in range(T):
            out = net.act({"obs": batch["obs/obs"][t]}, core, first[t])
            core = out.core
            q.append(out.q)
        algorithm.prepare(net, batch, c.learning)
    errors = torch.zeros(4, B)
    for i in range(4):
        for b in range(B):
            t, total, product, k = 3 + i, 0.0, 1.0, 0
            while k < 2:
                total, product, k = total + product * batch["reward"][t + k, b], product * 0.9, k + 1
                if last[t + k - 1, b]:
                    break
            target = q_learning.rescale(total + product * q_learning.unscale(q[t + k][b].max()))
            errors[i, b] = 0.0 if final[t, b] else target - q[t][b, int(batch["action"][t, b])]
    loss, _ = algorithm.loss(net, batch, c.learning)
    count = torch.tensor([4.0, 3.0, 4.0])
    assert loss.item() == pytest.approx((batch["weights"] * (0.5 * errors**2).sum(0) / count).mean().item(), rel=1e-4)
    expected = 0.9 * errors.abs().max(0).values + 0.1 * errors.abs().sum(0) / count
    np.testing.assert_allclose(batch["priority"].numpy(), expected.numpy(), rtol=1e-3)


def test_epsilon_ladder_has_the_paper_s_ends() -> None:
    ladder = q_learning.epsilon_ladder(torch.arange(360), 360, 0.4, 7.0)
    assert ladder[0] == pytest.approx(0.4)
    assert ladder[-1] == pytest.approx(0.00065536)
    assert ladder[100] == pytest.approx(0.4 ** (1 + 700 / 359))
    assert q_learning.epsilon_ladder(torch.tensor([0]), 1, 0.4, 7.0).item() == pytest.approx(0.4)
    few = q_learning.epsilon_ladder(torch.arange(16), 16, 0.4, 7.0, levels=6)
    np.testing.assert_allclose(few.unique().flip(0), [0.4 ** (1 + 7 * i / 5) for i in range(6)], rtol=1e-5)
    assert (few.diff() <= 0).all()


# -- networks ---------------------------------------------------------------------------------------------------------


def test_the_dueling_network_has_the_paper_s_size() -> None:
    spec = EnvSpec({"obs": ArraySpec((4, 84, 84), np.dtype(np.uint8))}, ActionSpec((Categorical(18),)), name="atari")
    c = config(**{"policy.encoder": "nature-conv", "policy.hidden": 512})
    assert sum(p.numel() for p in QNetwork(spec, c.policy, c.q).parameters()) == 3_300_019


def test_advantages_do_not_move_the_mean_value() -> None:
    c = config()
    net = QNetwork(DISCRETE, c.policy, c.q)
    x = {"obs": torch.randn(4, 5)}
    before = net(x).q
    with torch.no_grad():
        net.head.advantage[2].bias += torch.tensor([1.0, 2.0, 6.0])
    np.testing.assert_allclose((net(x).q - before).detach().numpy(), np.tile([-2.0, -1.0, 3.0], (4, 1)), atol=1e-5)


def test_noisy_layers_have_the_mean_and_spread_that_their_parameters_say() -> None:
    torch.manual_seed(0)
    layer, x = NoisyLinear(3, 2), torch.ones(1, 3)
    with torch.no_grad():
        outputs = torch.stack([layer(x)[0] for _ in range(8_000)])
        layer.quiet = True
        mean = layer(x)[0]
    np.testing.assert_allclose(outputs.mean(0).numpy(), mean.numpy(), atol=0.03)
    # f(a) = sign(a) sqrt|a| has variance E|a| = sqrt(2/pi): that of the bias noise; f(a) f(b) has 2/pi; uncorrelated as E f = 0
    size = 0.5 / math.sqrt(3)
    expected = size * math.sqrt(3 * (2 / math.pi) + math.sqrt(2 / math.pi))
    np.testing.assert_allclose(outputs.std(0).numpy(), expected, rtol=0.05)


def test_wrong_action_spaces_are_refused() -> None:
    c = config()
    with pytest.raises(ConfigError, match="one discrete action"):
        QNetwork(CONTINUOUS, c.policy, c.q)
    with pytest.raises(ConfigError, match="bounded continuous"):
        ApexDPG(c).make_model(DISCRETE, c)


# -- acting -----------------------------------------------------------------------------------------------------------


def test_environments_explore_by_their_own_epsilon_and_report_both_values() -> None:
    c = config(**{"sampling.num_workers": 1, "sampling.envs_per_worker": 8})
    spec = EnvSpec({"obs": VECTOR, MASK_KEY: ArraySpec((3,), np.dtype(np.uint8))}, DISCRETE.action, name="masked")
    algorithm = ApexDQN(c)
    net = algorithm.make_model(spec, c)
    with torch.no_grad():
        net.head.advantage[2].bias.copy_(torch.tensor([0.0, 1.0, 5.0]))  # 2 would be the best, but is not allowed
    rows = 40_000
    envs = torch.arange(rows) % 8
    obs = {"obs": torch.randn(rows, 5), MASK_KEY: torch.tensor([[1, 1, 0]], dtype=torch.uint8).expand(rows, 3)}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        fields, _ = algorithm.act(net, obs, torch.zeros(rows, 0), torch.zeros(rows, dtype=torch.bool), envs, generator)
    action = fields["action"][:, 0].long()
    assert (action < 2).all()
    q = net(obs).q
    np.testing.assert_allclose(fields["q"].numpy(), q.gather(1, action[:, None])[:, 0].detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(fields["value"].numpy(), q[:, :2].max(1).values.detach().numpy(), rtol=1e-5)
    for i in range(8):
        wrong = (action[envs == i] == 0).float().mean().item()
        assert wrong == pytest.approx(0.4 ** (1 + i) / 2, abs=0.015)


@pytest.mark.parametrize("atoms", [1, 11])
def test_dqn_and_rainbow_store_no_value_to_compute_a_priority_from(atoms: int) -> None:
    """An error of values and a divergence in one sum tree would be of two units."""
    c = config("dqn", **{"q.atoms": atoms})
    algorithm = DQN(c)
    net, first, obs = algorithm.make_model(DISCRETE, c), torch.zeros(4, dtype=torch.bool), {"obs": torch.randn(4, 5)}
    with torch.no_grad():
        fields, _ = algorithm.act(net, obs, torch.zeros(4, 0), first, torch.arange(4), torch.Generator())
    assert set(algorithm.extra_fields(DISCRETE)) == {"env_index"}
    assert set(fields) == {"action", "value", "env_index"}


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [True, False])
def test_the_loss_is_the_paper_s(double: bool) -> None:
    c = config(**{"q.double": double})
    algorithm = ApexDQN(c)
    torch.manual_seed(3)
    net, batch = algorithm.make_model(DISCRETE, c), transitions(6, torch.tensor([[0], [1], [2], [2], [1], [0]]))
    target = algorithm.target_of(net)
    with torch.no_grad():
        for p in target.parameters():
            p += 0.1 * torch.randn_like(p)
    online, there = net({"obs": batch["next/obs"]}).q, target({"obs": batch["next/obs"]}).q
    now = net({"obs": batch["obs/obs"]}).q
    total, errors = 0.0, []
    for i in range(6):
        best = int((online if double else there)[i].argmax())
        error = (batch["reward"][i] + batch["discount"][i] * there[i, best] - now[i, int(batch["action"][i])]).item()
        errors.append(abs(error))
        total += float(batch["weights"][i]) * 0.5 * error**2 / 6
    with torch.no_grad():
        algorithm.prepare(net, batch, c.learning)
    loss, _ = algorithm.loss(net, batch, c.learning)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    np.testing.assert_allclose(batch["priority"].numpy(), errors, rtol=1e-4)
    loss.backward()
    assert all(p.grad is None for p in target.parameters())


def test_distributional_loss_is_the_cross_entropy_with_the_projected_target() -> None:
    c = config(**{"q.atoms": 11, "q.support": [-3.0, 3.0]})
    algorithm, batch = ApexDQN(c), transitions(4, torch.tensor([[0], [1], [2], [1]]))
    net = algorithm.make_model(DISCRETE, c)
    after, now = net({"obs": batch["next/obs"]}), net({"obs": batch["obs/obs"]})
    best = after.q.argmax(1)
    p = after.logits[torch.arange(4), best].softmax(-1)
    target = q_learning.project(net.support, p, batch["reward"], batch["discount"])
    log_p = now.logits[torch.arange(4), batch["action"][:, 0]].log_softmax(-1)
    expected = (batch["weights"] * -(target * log_p).sum(1)).mean()
    with torch.no_grad():
        algorithm.prepare(net, batch, c.learning)
    assert algorithm.loss(net, batch, c.learning)[0].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_share_of_random_actions_of_dqn_is_one_of_its_statistics() -> None:
    c = config("dqn", **{"q.epsilon_first": 1.0, "q.epsilon_last": 0.1, "q.epsilon_decay": 0.5})
    algorithm, batch = DQN(c), transitions(6, torch.tensor([[0], [1], [2], [2], [1], [0]]))
    net = algorithm.make_model(DISCRETE, c)
    with torch.no_grad():
        algorithm.prepare(net, batch, c.learning)
    for step, epsilon in ((0, 1.0), (c.learning.total_steps // 4, 0.55), (10**12, 0.1)):
        algorithm.schedule(net, step)
        assert algorithm.loss(net, batch, c.learning)[1]["losses/epsilon"].item() == pytest.approx(epsilon)


def test_dpg_gradients_stay_apart_and_the_action_gradient_is_clipped() -> None:
    c = config("apex-dpg")
    torch.manual_seed(0)
    algorithm, batch = ApexDPG(c), transitions(8, torch.rand(8, 2))
    net = algorithm.make_model(CONTINUOUS, c)
    with torch.no_grad():
        net.critic[-1].weight *= 300  # steep: dq/da leaves [-1, 1]
    x = net.observation({"obs": batch["obs/obs"]})
    action = net.policy(x)
    assert (action >= net.low).all()
    assert (action <= net.high).all()
    probe = action.detach().requires_grad_()
    slope = torch.autograd.grad(net.q(x, probe).sum(), probe)[0]
    assert (slope.abs() > 1).any()
    parameter = net.actor[0].weight
    expected = torch.autograd.grad((-(slope.clamp(-1, 1)) * action).sum(-1).mean(), parameter)[0]
    with torch.no_grad():
        algorithm.prepare(net, batch, c.learning)
    loss, _ = algorithm.loss(net, batch, c.learning)
    loss.backward()
    np.testing.assert_allclose(parameter.grad.numpy(), expected.numpy(), rtol=1e-5, atol=1e-8)
    critic = (batch["weights"] * 0.5 * (batch["target"] - net.q(x, batch["action"])) ** 2).mean()
    weight = net.critic_observation[0].weight
    np.testing.assert_allclose(weight.grad.numpy(), torch.autograd.grad(critic, weight)[0].numpy(), rtol=1e-4, atol=1e-7)


# -- the learner ------------------------------------------------------------------------------------------------------


def test_the_target_network_is_copied_every_period_and_survives_a_checkpoint() -> None:
    c = config(**{"q.target_period": 3, "learning.learning_rate": 0.01})

    def make() -> tuple[Learner, ApexDQN]:
        torch.manual_seed(0)
        algorithm = ApexDQN(c)
        return Learner(algorithm.make_model(DISCRETE, c), algorithm, c), algorithm

    def equal(a: nn.Module, b: nn.Module) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))

    learner, algorithm = make()
    copied = []
    for i in range(7):
        data, arrivals = transitions(6, torch.randint(0, 3, (6, 1)), seed=i), Arrivals(7, np.ones(1), np.ones(1, np.int32))
        learner.learn(Batch(data, torch.zeros(6, dtype=torch.int32), None, np.arange(6, dtype=np.uint64), arrivals))
        copied.append(equal(learner.model, algorithm.target_of(learner.model)))
    assert copied == [False, False, True, False, False, True, False]
    assert (learner.progress.updates, learner.progress.global_step, learner.progress.episodes) == (7, 49, 7)
    again, other = make()
    again.model.load_state_dict(learner.model.state_dict())
    other.load_state_dict(again.model, algorithm.state_dict(learner.model))
    assert equal(other.target_of(again.model), algorithm.target_of(learner.model))
