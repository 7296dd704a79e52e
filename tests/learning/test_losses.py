"""Losses against NumPy written from their formulas, and their gradients against closed forms."""

import math

import numpy as np
import pytest
import torch

from headrace.learning import losses

SHAPE = (7, 5)


@pytest.fixture
def data():
    """Float64 tensors whose masked-out entries are NaN."""
    rng = np.random.default_rng(0)
    mask = rng.random(SHAPE) < 0.7
    arrays = {name: rng.normal(size=SHAPE) for name in ("log_prob", "behaviour", "advantages", "values", "old", "targets")}
    for array in arrays.values():
        array[~mask] = np.nan
    return {"mask": torch.as_tensor(mask), **{k: torch.as_tensor(v) for k, v in arrays.items()}}


def kept(data, name):
    return data[name][data["mask"]].numpy()


def test_masked_mean_is_normalised_by_the_count(data):
    assert losses.masked_mean(data["values"], data["mask"]).item() == pytest.approx(kept(data, "values").mean())


@pytest.mark.parametrize("clip", [0.1, 0.5])
def test_clipped_policy_loss(data, clip):
    log_prob = data["log_prob"].clone().requires_grad_()
    loss = losses.policy_loss(log_prob, data["behaviour"], data["advantages"], data["mask"], clip)
    result = losses.ratio_statistics(log_prob, data["behaviour"], data["mask"], clip)
    log_w = kept(data, "log_prob") - kept(data, "behaviour")
    assert (np.abs(log_w) > math.log(20)).any()
    bounded = np.abs(log_w) < math.log(20)
    log_w = np.clip(log_w, -math.log(20), math.log(20))
    w, A = np.exp(log_w), kept(data, "advantages")
    low, high = 1 / (1 + clip), 1 + clip
    assert loss.item() == pytest.approx(-np.minimum(w * A, np.clip(w, low, high) * A).mean())
    assert result.approx_kl.item() == pytest.approx((w - 1 - log_w).mean())
    assert result.clip_fraction.item() == pytest.approx(((w < low) | (w > high)).mean())
    assert result.mean_ratio.item() == pytest.approx(w.mean())
    assert result.max_ratio.item() == pytest.approx(w.max())
    assert result.entropy.item() == pytest.approx(-(w * kept(data, "log_prob")).mean())
    loss.backward()
    # d(w A)/d log pi = w A, unless clipping to the far side, or the bound of 20, made it constant.
    active = bounded & ~(((w > high) & (A > 0)) | ((w < low) & (A < 0)))
    assert active.any()
    assert not active.all()
    expected = np.zeros(SHAPE)
    expected[data["mask"].numpy()] = -w * A * active / len(w)
    np.testing.assert_allclose(log_prob.grad, expected, atol=1e-12)


def test_plain_policy_gradient(data):
    log_prob = data["log_prob"].clone().requires_grad_()
    loss = losses.policy_loss(log_prob, data["behaviour"], data["advantages"], data["mask"], None)
    assert loss.item() == pytest.approx(-(kept(data, "log_prob") * kept(data, "advantages")).mean())
    loss.backward()
    expected = np.zeros(SHAPE)
    expected[data["mask"].numpy()] = -kept(data, "advantages") / int(data["mask"].sum())
    np.testing.assert_allclose(log_prob.grad, expected, atol=1e-12)
    assert losses.ratio_statistics(log_prob, data["behaviour"], data["mask"], None).clip_fraction == 0


def test_huge_ratios_are_bounded():
    log_prob = torch.tensor([200.0, -200.0], requires_grad=True)
    mask = torch.ones(2, dtype=torch.bool)
    loss = losses.policy_loss(log_prob, torch.zeros(2), torch.tensor([-1.0, -1.0]), mask, 0.1)
    assert loss.item() == pytest.approx((20 + 1 / 1.1) / 2, rel=1e-5)
    loss.backward()
    assert torch.isfinite(log_prob.grad).all()


def test_no_gradient_flows_into_advantages_or_targets():
    one, mask = torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bool)
    x = torch.zeros(2, requires_grad=True)
    (losses.policy_loss(x, torch.zeros(2), one, mask, 0.1) + losses.value_loss(x, one, mask, one, 0.2)).backward()
    assert one.grad is None


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss(data, clip):
    V, old, v = kept(data, "values"), kept(data, "old"), kept(data, "targets")
    values = data["values"].clone().requires_grad_()
    loss = losses.value_loss(values, data["targets"], data["mask"], data["old"], clip)
    error = (V - v) ** 2
    slope = 2 * (V - v)
    if clip is not None:
        clipped = old + np.clip(V - old, -clip, clip)
        other = (clipped - v) ** 2
        inside = np.abs(V - old) < clip
        assert ((other > error) & ~inside).any()
        slope = np.where(other > error, 2 * (clipped - v) * inside, slope)
        error = np.maximum(error, other)
    assert loss.item() == pytest.approx(0.5 * error.mean())
    loss.backward()
    expected = np.zeros(SHAPE)
    expected[data["mask"].numpy()] = 0.5 * slope / len(V)
    np.testing.assert_allclose(values.grad, expected, atol=1e-12)


def test_value_clipping_needs_the_old_values(data):
    with pytest.raises(ValueError, match="behaviour_values"):
        losses.value_loss(data["values"], data["targets"], data["mask"], clip=0.2)


def test_exploration_terms(data):
    assert losses.masked_mean(data["values"], data["mask"]).item() == pytest.approx(kept(data, "values").mean())
    kl = data["values"].abs() * 30
    expected = np.minimum(kl[data["mask"]].numpy(), 30)
    assert (expected == 30).any()
    assert losses.symmetric_kl_loss(kl, data["mask"]).item() == pytest.approx(expected.mean())


def test_normalized_advantages(data):
    A = losses.normalize_advantages(data["advantages"], data["mask"])
    x = kept(data, "advantages")
    np.testing.assert_allclose(A[data["mask"]], (x - x.mean()) / x.std())
    assert (A[~data["mask"]] == 0).all()
    constant = losses.normalize_advantages(torch.full(SHAPE, 3.0), data["mask"])
    assert (constant == 0).all()


def test_explained_variance(data):
    v, V = kept(data, "targets"), kept(data, "values")
    result = losses.explained_variance(data["values"], data["targets"], data["mask"])
    assert result.item() == pytest.approx(1 - (v - V).var() / v.var())
    assert losses.explained_variance(data["targets"], data["targets"], data["mask"]) == 1
    assert losses.explained_variance(data["values"], torch.ones(SHAPE), data["mask"]) == 0


def test_without_valid_samples_everything_is_zero():
    nan, mask = torch.full(SHAPE, math.nan), torch.zeros(SHAPE, dtype=torch.bool)
    x = torch.zeros(SHAPE, requires_grad=True)
    policy = losses.policy_loss(x, nan, nan, mask, 0.1)
    terms = [policy, losses.value_loss(x, nan, mask, nan, 0.1), *losses.ratio_statistics(x, nan, mask, 0.1)]
    terms += [losses.masked_mean(nan, mask), losses.symmetric_kl_loss(nan, mask)]
    terms += [losses.explained_variance(nan, nan, mask), losses.normalize_advantages(nan, mask).abs().max()]
    assert [term.item() for term in terms] == [0.0] * len(terms)
    (policy + terms[1]).backward()
    assert (x.grad == 0).all()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_no_mask_is_a_mask_of_all_to_the_last_bit(data, clip):
    every = torch.ones_like(data["mask"])
    data = {name: torch.nan_to_num(x) for name, x in data.items() if name != "mask"}
    count = losses.valid_count(every)
    found = []
    for mask in (every, None):
        x = data["values"].clone().requires_grad_()
        A = losses.normalize_advantages(data["advantages"], mask, count=count)
        policy = losses.policy_loss(x, data["behaviour"], A, mask, clip, count)
        value = losses.value_loss(x, data["targets"], mask, data["old"], clip, count)
        kl = losses.symmetric_kl_loss(x.square(), mask, count)
        (policy + value + kl).backward()
        found.append([policy, value, kl, x.grad])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
