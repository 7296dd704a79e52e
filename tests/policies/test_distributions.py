"""Distributions against enumeration and numerical integration."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from headrace.envs.core.contract import ActionSpec, Categorical, Continuous
from headrace.policies.distributions import ActionDistribution, param_width

VIZDOOM = ActionSpec(tuple(Categorical(n) for n in (3, 3, 2, 2, 2, 8, 21)))
MIXED = ActionSpec((Continuous((-2.0, -math.inf), (1.0, math.inf)), Categorical(3), Continuous((0.0,), (10.0,)), Categorical(2)))
SPECS = {
    "one": ActionSpec((Categorical(6),)),
    "equal": ActionSpec((Categorical(3), Categorical(3))),
    "vizdoom": VIZDOOM,
    "box": ActionSpec((Continuous((-1.0, -2.0), (1.0, 3.0)),)),
    "mixed": MIXED,
}


def params_for(spec, *shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, param_width(spec), generator=torch.Generator().manual_seed(seed))


def discrete_logits(spec, params, mask=None):
    """Per discrete part, the log-probabilities [n] of one row; forbidden choices -inf."""
    result, start = [], 0
    for part in spec.parts:
        if isinstance(part, Categorical):
            logits = params[start : start + part.n].double().numpy().copy()
            if mask is not None and mask[start : start + part.n].any():
                logits[~mask[start : start + part.n].numpy().astype(bool)] = -np.inf
            result.append(log_softmax(logits))
            start += part.n
    return result


def plogp(log_p):
    p = np.exp(log_p)
    return float(np.sum(p[p > 0] * log_p[p > 0]))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_shapes_dtypes_and_ranges(spec):
    distribution = ActionDistribution(spec, params_for(spec, 4, 5, scale=3.0))
    for actions in (distribution.sample(), distribution.mode()):
        assert actions.shape == (4, 5, spec.width)
        assert actions.numpy().dtype == spec.dtype
        column = 0
        for part in spec.parts:
            values = actions[..., column : column + part.width].numpy()
            if isinstance(part, Categorical):
                assert ((values >= 0) & (values < part.n) & (values == values.astype(int))).all()
            else:
                assert ((values >= np.float32(part.low)) & (values <= np.float32(part.high))).all()
            column += part.width
    log_prob = distribution.log_prob(distribution.sample())
    for quantity in (log_prob, distribution.entropy(), distribution.symmetric_kl_to_uniform()):
        assert quantity.shape == (4, 5)
        assert quantity.dtype == torch.float32
        assert torch.isfinite(quantity).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["one", "equal", "vizdoom"])
def test_discrete_quantities_are_those_of_the_allowed_choices(name, masked):
    spec, N = SPECS[name], 20
    params = params_for(spec, N)
    mask = torch.rand(N, spec.mask_width, generator=torch.Generator().manual_seed(2)) < 0.6 if masked else None
    distribution = ActionDistribution(spec, params, mask.to(torch.uint8) if masked else None)
    actions = distribution.sample()
    log_prob, entropy, symmetric = distribution.log_prob(actions), distribution.entropy(), distribution.symmetric_kl_to_uniform()
    for i in range(N):
        p = discrete_logits(spec, params[i], None if mask is None else mask[i])
        assert log_prob[i].item() == pytest.approx(sum(part[a] for part, a in zip(p, actions[i], strict=True)), rel=1e-4)
        assert entropy[i].item() == pytest.approx(-sum(map(plogp, p)), rel=1e-4, abs=1e-5)
        expected_symmetric = 0.0
        for log_p in p:
            there = np.isfinite(log_p)
            log_u = -math.log(there.sum())
            expected_symmetric += 0.5 * np.sum(np.exp(log_p[there]) * (log_p[there] - log_u))
            expected_symmetric += 0.5 * np.mean(log_u - log_p[there])
        assert symmetric[i].item() == pytest.approx(expected_symmetric, rel=1e-3, abs=1e-5)
        assert all(np.argmax(part) == a for part, a in zip(p, distribution.mode()[i], strict=True))


@pytest.mark.parametrize("masked", [False, True])
def test_samples_have_the_right_frequencies(masked):
    spec, N = ActionSpec((Categorical(4), Categorical(2))), 100_000
    params = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.0, 0.5])
    mask = torch.tensor([1, 0, 1, 1, 1, 1], dtype=torch.uint8) if masked else None
    distribution = ActionDistribution(spec, params.expand(N, -1), None if mask is None else mask.expand(N, -1))
    actions = distribution.sample(torch.Generator().manual_seed(0))
    for column, log_p in enumerate(discrete_logits(spec, params, mask)):
        counts = np.bincount(actions[:, column], minlength=len(log_p))
        p = np.exp(log_p)
        assert (counts[p == 0] == 0).all()
        # Five standard deviations of a binomial count.
        assert (np.abs(counts - N * p) <= 5 * np.sqrt(N * p * (1 - p))).all()


def test_a_row_without_any_allowed_choice_is_unmasked():
    spec = ActionSpec((Categorical(3), Categorical(2)))
    mask = torch.tensor([[0, 0, 0, 1, 0]], dtype=torch.uint8)
    params = params_for(spec, 1)
    distribution = ActionDistribution(spec, params, mask)
    free = ActionDistribution(ActionSpec((Categorical(3),)), params[:, :3])
    torch.testing.assert_close(distribution.entropy(), free.entropy())
    assert distribution.sample()[0, 1] == 0


def test_the_same_generator_state_gives_the_same_actions():
    distribution = ActionDistribution(MIXED, params_for(MIXED, 50))
    one, two, other = (distribution.sample(torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-0.7, 0.7)])
def test_squashed_gaussian_is_a_density_and_its_entropy_is_its_integral(mean, log_std):
    low, high = -2.0, 3.0
    spec = ActionSpec((Continuous((low,), (high,)),))
    one = ActionDistribution(spec, torch.tensor([[mean, log_std]]))

    a = torch.linspace(low + 1e-5, high - 1e-5, 200_001)
    log_p = one.log_prob(a.unsqueeze(-1)).double().numpy()

    def expectation(x):
        return np.trapezoid(np.exp(log_p) * x, a.double().numpy())

    assert expectation(1.0) == pytest.approx(1, abs=2e-3)
    assert one.entropy().item() == pytest.approx(expectation(-log_p), abs=1e-2)


def test_unbounded_numbers_are_plain_gaussians():
    spec = ActionSpec((Continuous((-math.inf,) * 3, (math.inf,) * 3),))
    params, actions = params_for(spec, 10), torch.randn(10, 3) * 5
    normal = torch.distributions.Normal(params[:, :3], params[:, 3:].exp())
    distribution = ActionDistribution(spec, params)
    torch.testing.assert_close(distribution.log_prob(actions), normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(distribution.entropy(), normal.entropy().sum(-1))


def test_parts_of_a_mixed_action_are_independent():
    """Log-probability and entropy are sums over the parts, wherever their columns are."""
    params, actions = params_for(MIXED, 8), ActionDistribution(MIXED, params_for(MIXED, 8)).sample()
    whole = ActionDistribution(MIXED, params)
    logits, means, log_stds = params.split([5, 3, 3], dim=-1)
    parts = [
        (MIXED.parts[0], torch.cat((means[:, :2], log_stds[:, :2]), -1), actions[:, :2]),
        (MIXED.parts[1], logits[:, :3], actions[:, 2:3]),
        (MIXED.parts[2], torch.cat((means[:, 2:], log_stds[:, 2:]), -1), actions[:, 3:4]),
        (MIXED.parts[3], logits[:, 3:], actions[:, 4:]),
    ]
    alone = [(ActionDistribution(ActionSpec((part,)), p), a) for part, p, a in parts]
    torch.testing.assert_close(whole.log_prob(actions), torch.stack([d.log_prob(a) for d, a in alone]).sum(0))
    torch.testing.assert_close(whole.entropy(), torch.stack([d.entropy() for d, _ in alone]).sum(0))
    assert torch.equal(whole.mode(), torch.cat([d.mode().float() for d, _ in alone], -1))


@pytest.mark.parametrize("mean", [-30.0, 30.0])
def test_saturated_actions_stay_finite_and_agree_between_acting_and_learning(mean):
    spec = ActionSpec((Continuous((-1.0,), (1.0,)),))
    params = torch.tensor([[mean, 0.0]], requires_grad=True)
    distribution = ActionDistribution(spec, params)
    actions = distribution.sample()
    assert actions.abs() <= 1
    log_prob = distribution.log_prob(actions)
    again = ActionDistribution(spec, params.detach().clone()).log_prob(actions)
    assert torch.equal(log_prob, again)
    (log_prob + distribution.entropy()).sum().backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(params.grad).all()


def test_a_number_with_no_room_stays_where_it_is():
    spec = ActionSpec((Continuous((2.0, 0.0), (2.0, 1.0)),))
    distribution = ActionDistribution(spec, params_for(spec, 100))
    actions = distribution.sample()
    assert (actions[:, 0] == 2).all()
    assert torch.isfinite(distribution.log_prob(actions)).all()


@pytest.mark.parametrize(("low", "high"), [(-math.inf, math.inf), (-1.0, 1.0), (0.0, math.inf), (-math.inf, 0.5), (1.0, 1.0)])
def test_the_score_of_what_is_sampled_is_0_on_average(low, high):
    """Whatever the bounds: else the gradient has a bias, here of many standard errors."""
    spec, N = ActionSpec((Continuous((low,), (high,)),)), 200_000
    params = torch.zeros(2, requires_grad=True)
    distribution = ActionDistribution(spec, params.expand(N, 2))
    actions = distribution.sample(torch.Generator().manual_seed(1))
    (score,) = torch.autograd.grad(distribution.log_prob(actions).mean(), params)
    assert (score.abs() < 5 * torch.tensor([1.0, math.sqrt(2)]) / math.sqrt(N)).all()
    (of_entropy,) = torch.autograd.grad(ActionDistribution(spec, params).entropy(), params)
    assert low < high or not of_entropy.any()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_gradients_are_those_of_finite_differences(spec):
    params = params_for(spec, 1, scale=0.5)
    actions = ActionDistribution(spec, params).sample(torch.Generator().manual_seed(0))
    mask = torch.ones(1, spec.mask_width, dtype=torch.uint8)

    def total(p):
        d = ActionDistribution(spec, p, mask if spec.mask_width else None)
        return (d.log_prob(actions) + d.entropy() + d.symmetric_kl_to_uniform()).sum()

    params.requires_grad_()
    total(params).backward()
    with torch.no_grad():
        for i in range(params.shape[-1]):
            step = torch.zeros_like(params)
            step[0, i] = 1e-2
            slope = (total(params + step) - total(params - step)) / 2e-2
            assert params.grad[0, i].item() == pytest.approx(slope.item(), abs=5e-3)


def test_the_entropy_gradient_is_finite_with_masks():
    spec = ActionSpec((Categorical(3), Categorical(2)))
    params = params_for(spec, 5).requires_grad_()
    mask = torch.tensor([1, 0, 0, 0, 1], dtype=torch.uint8).expand(5, -1)
    distribution = ActionDistribution(spec, params, mask)
    log_prob = distribution.log_prob(distribution.sample())
    (log_prob + distribution.entropy() + distribution.symmetric_kl_to_uniform()).sum().backward()
    assert (params.grad == 0).all()  # one choice is allowed in each part: nothing to learn
    assert (distribution.entropy() == 0).all()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_acting_in_inference_mode_first_does_not_spoil_learning(spec):
    unseen = ActionSpec((*spec.parts, Categorical(5)))
    with torch.inference_mode():
        distribution = ActionDistribution(unseen, params_for(unseen, 3))
        actions = distribution.sample()
        distribution.log_prob(actions)
        distribution.entropy()
    params = params_for(unseen, 3).requires_grad_()
    distribution = ActionDistribution(unseen, params)
    (distribution.log_prob(actions.clone()) + distribution.entropy()).sum().backward()
    assert torch.isfinite(params.grad).all()


def test_wrong_width_is_refused():
    with pytest.raises(ValueError, match="6"):
        ActionDistribution(SPECS["one"], torch.zeros(2, 5))


def test_symmetric_kl_of_squashed_gaussians_is_that_of_their_density() -> None:
    """Against the integral over the action; unbounded numbers count nothing, and discrete parts are added."""
    low, high = -2.0, 3.0
    grid = torch.linspace(-1, 1, 400_001, dtype=torch.float64)[1:-1]
    u, width = torch.atanh(grid), float(grid[1] - grid[0]) / 2
    spec = ActionSpec((Continuous((low, -math.inf), (high, math.inf)), Categorical(3)))
    for mean, log_std in ((0.0, 0.0), (0.7, -0.5), (-1.5, 0.3), (0.2, -1.2)):
        numbers = torch.tensor([0.3, -0.2, 1.0, mean, 5.0, log_std, 1.0])
        density = torch.exp(-0.5 * ((u - mean) / math.exp(log_std)) ** 2 - log_std) / math.sqrt(2 * math.pi) / (1 - grid**2) * 2
        # relative to the uniform density, over a variable of total length 1
        expected = 0.5 * float((torch.where(density > 0, (density - 1) * density.clamp_min(1e-300).log(), 0.0) * width).sum())
        discrete = ActionDistribution(ActionSpec((Categorical(3),)), numbers[:3]).symmetric_kl_to_uniform()
        got = ActionDistribution(spec, numbers).symmetric_kl_to_uniform() - discrete
        assert got.item() == pytest.approx(expected, rel=2e-2, abs=3e-3), (mean, log_std)
