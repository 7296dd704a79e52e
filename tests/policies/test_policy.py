import numpy as np
import pytest
import torch

from headrace.config import PolicyConfig
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.policies import Policy

T, B = 6, 3
UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
SPEC = EnvSpec(
    observation={
        "image": ArraySpec((1, 44, 44), UINT8),
        "game.vector": ArraySpec((5,), FLOAT32),
        MASK_KEY: ArraySpec((5,), UINT8),
    },
    action=ActionSpec((Categorical(3), Continuous((-1.0,), (2.0,)), Categorical(2))),
)
SMALL = {"hidden": 32, "mlp": (16,), "core_size": 24}


def batch(seed=0):
    rng = np.random.default_rng(seed)
    obs = {
        "image": rng.integers(0, 256, (T, B, 1, 44, 44), dtype=np.uint8),
        "game.vector": rng.normal(size=(T, B, 5)).astype(np.float32),
        MASK_KEY: np.concatenate([rng.integers(0, 2, (T, B, 4)), np.ones((T, B, 1))], -1).astype(np.uint8),
    }
    return {name: torch.as_tensor(x) for name, x in obs.items()}, torch.as_tensor(rng.random((T, B)) < 0.3)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_what_the_learner_computes_is_what_the_actor_computed(core, normalize, precision):
    policy = Policy(
        SPEC, PolicyConfig(core=core, normalize_observations=normalize, normalize_returns=normalize, **SMALL), precision
    )
    obs, first = batch()
    policy.update_normalizers(obs, torch.ones(T, B, dtype=torch.bool))
    policy.update_returns(torch.randn(T, B) * 9 + 4, torch.ones(T, B, dtype=torch.bool))
    state = torch.randn(B, policy.core_width)
    whole = policy.unroll(obs, state, first)
    actions = whole.distribution.sample()
    log_prob = whole.distribution.log_prob(actions)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if precision == "float32" else {"rtol": 0.05, "atol": 0.05}
    for t in range(T):
        with torch.inference_mode():
            out = policy.act({name: x[t] for name, x in obs.items()}, state, first[t])
        torch.testing.assert_close(out.value, whole.value[t], **tolerance)
        torch.testing.assert_close(out.distribution.log_prob(actions[t]), log_prob[t], **tolerance)
        state = out.core
        assert out.value.dtype == out.core.dtype == torch.float32
    torch.testing.assert_close(state, whole.core, **tolerance)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_every_parameter_learns(core):
    policy = Policy(SPEC, PolicyConfig(core=core, **SMALL))
    obs, first = batch()
    out = policy.unroll(obs, torch.zeros(B, policy.core_width), first)
    (out.distribution.log_prob(out.distribution.sample()) + out.value).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any(), name


def test_the_action_mask_is_applied_and_not_encoded():
    policy = Policy(SPEC, PolicyConfig(**SMALL))
    obs, first = batch()
    core = torch.zeros(B, policy.core_width)
    with torch.inference_mode():
        masked, free = (policy.unroll(o, core, first) for o in (obs, {**obs, MASK_KEY: torch.ones_like(obs[MASK_KEY])}))
    assert torch.equal(masked.value, free.value)
    assert torch.equal(masked.distribution.params, free.distribution.params)
    actions, mask = masked.distribution.sample(), obs[MASK_KEY].bool()
    chosen = mask[..., :3].gather(-1, actions[..., :1].long()).squeeze(-1)
    assert chosen[mask[..., :3].any(-1)].all()
    assert ((actions[..., 2] == 1) | mask[..., 3]).all()


def test_the_first_policy_is_close_to_uniform():
    policy = Policy(SPEC, PolicyConfig(**SMALL))
    obs, first = batch()
    out = policy.unroll({**obs, MASK_KEY: torch.ones_like(obs[MASK_KEY])}, torch.zeros(B, policy.core_width), first)
    # The part with two bounded numbers is no more uniform than that: their squashed Gaussian begins with a width of 1.
    assert out.distribution.symmetric_kl_to_uniform().max() < 0.03


def test_values_stay_when_the_statistics_of_returns_change():
    policy = Policy(SPEC, PolicyConfig(normalize_returns=True, **SMALL))
    obs, first = batch()
    before = policy.unroll(obs, torch.zeros(B, policy.core_width), first).value
    policy.update_returns(torch.tensor([[90.0, 110.0]]), torch.ones(1, 2, dtype=torch.bool))
    after = policy.unroll(obs, torch.zeros(B, policy.core_width), first).value
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(policy.normalize_value(after), (before - 100) / 10, rtol=1e-3, atol=1e-3)
    policy.update_returns(torch.full((1, 2), 500.0), torch.zeros(1, 2, dtype=torch.bool))
    assert torch.equal(policy.unroll(obs, torch.zeros(B, policy.core_width), first).value, after)


def test_normalisation_is_part_of_the_saved_model():
    config = PolicyConfig(normalize_observations=True, normalize_returns=True, core="gru", **SMALL)
    one, two = Policy(SPEC, config), Policy(SPEC, config)
    obs, first = batch()
    one.update_normalizers(obs, torch.ones(T, B, dtype=torch.bool))
    one.update_returns(torch.randn(T, B), torch.ones(T, B, dtype=torch.bool))
    two.load_state_dict(one.state_dict())
    a, b = (policy.unroll(obs, torch.zeros(B, policy.core_width), first) for policy in (one, two))
    assert torch.equal(a.value, b.value)
    assert torch.equal(a.distribution.params, b.distribution.params)


def test_only_vectors_are_normalised_and_invalid_rows_do_not_count():
    policy = Policy(SPEC, PolicyConfig(normalize_observations=True, **SMALL))
    obs, _ = batch()
    mask = torch.zeros(T, B, dtype=torch.bool)
    mask[0] = True
    policy.update_normalizers(obs, mask)
    assert policy.trunk.normalized == ("game.vector",)
    torch.testing.assert_close(policy.trunk.normalizers[0].mean.float(), obs["game.vector"][0].mean(0), rtol=1e-4, atol=1e-5)


def test_the_same_seed_makes_the_same_policy():
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(torch.cat([p.flatten() for p in Policy(SPEC, PolicyConfig(**SMALL)).parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize("head", ["value", "action"])
def test_a_separate_critic_shares_no_weight_with_the_actor(head):
    policy = Policy(SPEC, PolicyConfig(separate_critic=True, **SMALL))
    obs, first = batch()
    out = policy.unroll(obs, torch.zeros(B, 0), first)
    loss = out.value.sum() if head == "value" else out.distribution.entropy().sum()
    loss.backward()
    reached = {name for name, p in policy.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    mine, others = ("critic.", "actor.") if head == "value" else ("actor.", "critic.")
    assert any(mine in name for name in reached)
    assert not any(others in name for name in reached)
    for t in (0, T - 1):
        one = policy.act({name: x[t] for name, x in obs.items()}, torch.zeros(B, 0), first[t])
        torch.testing.assert_close(one.value, out.value[t], rtol=1e-4, atol=1e-4)


def test_initial_std_is_that_of_the_first_actions():
    spec = EnvSpec({"obs": ArraySpec((2,), FLOAT32)}, ActionSpec((Continuous((-np.inf,), (np.inf,)),)))
    policy = Policy(spec, PolicyConfig(initial_std=0.25, **SMALL))
    out = policy.act(
        {"obs": torch.zeros(20_000, 2)}, torch.zeros(20_000, policy.core_width), torch.zeros(20_000, dtype=torch.bool)
    )
    assert out.distribution.sample(torch.Generator().manual_seed(0)).std().item() == pytest.approx(0.25, rel=0.05)
