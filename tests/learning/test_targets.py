"""V-trace and GAE against the papers' sums, written out term by term in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.learning.gae import gae, reverse_scan
from headrace.learning.vtrace import vtrace

RHO, C = 3.7, 2.2


def follows(batch, t, b):
    """Whether row t+1 belongs to the same run of transitions as row t."""
    T = len(batch["rewards"])
    return t + 1 < T and not batch["done"][t, b] and batch["valid"][t + 1, b]


def bootstrap(batch, t, b, value):
    return 0.0 if batch["terminated"][t, b] else value


def naive_vtrace(batch, gamma, lambda_, rho, c, pg_rho, next_values):
    """IMPALA, equation 1 and the policy gradient of section 4.2: every sum and product literally."""
    T, B = batch["rewards"].shape
    V, r, w = batch["values"], batch["rewards"], np.exp(batch["log_ratio"])

    def delta(t, b):
        return min(rho, w[t, b]) * (r[t, b] + gamma * bootstrap(batch, t, b, next_values[t, b]) - V[t, b])

    def v(s, b):
        total, t = V[s, b], s
        while True:
            trace = math.prod(lambda_ * min(c, w[i, b]) for i in range(s, t))
            total += gamma ** (t - s) * trace * delta(t, b)
            if not follows(batch, t, b):
                return total
            t += 1

    values, advantages = V[:T].copy(), np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            if batch["valid"][s, b]:
                values[s, b] = v(s, b)
                after = v(s + 1, b) if follows(batch, s, b) else next_values[s, b]
                weight = 1.0 if pg_rho is None else min(pg_rho, w[s, b])
                advantages[s, b] = weight * (r[s, b] + gamma * bootstrap(batch, s, b, after) - V[s, b])
    return values, advantages


def naive_gae(batch, gamma, lambda_, next_values):
    """Schulman et al., 2016, equation 16."""
    T, B = batch["rewards"].shape
    V, r = batch["values"], batch["rewards"]
    advantages = np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            t = s
            while batch["valid"][s, b]:
                delta = r[t, b] + gamma * bootstrap(batch, t, b, next_values[t, b]) - V[t, b]
                advantages[s, b] += (gamma * lambda_) ** (t - s) * delta
                if not follows(batch, t, b):
                    break
                t += 1
    return V[:T] + advantages, advantages


def random_batch(seed, T, B, p_done=0.2, next_step=True):
    """A batch as the trajectory store holds it; invalid rows hold NaN. `next_step`: the row after a done one is invalid."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((T, B)) < p_done
    truncated = rng.random((T, B)) < p_done
    valid = rng.random((T + 1, B)) < 0.9  # rows masked for other reasons
    if next_step:
        valid[1:] &= ~(terminated | truncated)
    batch = {
        "rewards": rng.normal(size=(T, B)).astype(np.float32),
        "values": rng.normal(size=(T + 1, B)).astype(np.float32),
        "log_ratio": rng.uniform(-2.5, 2.5, size=(T, B)).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }
    for name in ("rewards", "log_ratio"):
        batch[name][~valid[:T]] = np.nan
    batch["done"] = terminated | truncated
    return batch


def following_values(batch, seed):
    """What a same-step environment leads to: values of their own where episodes ended, those of the next row elsewhere."""
    final = np.random.default_rng(seed + 1).normal(size=batch["rewards"].shape).astype(np.float32)
    return np.where(batch["done"], final, batch["values"][1:])


def tensors(batch, *names):
    return [torch.as_tensor(batch[name]) for name in names]


COMMON = ("rewards", "values", "terminated", "truncated", "valid")


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.6]),
    st.booleans(), st.booleans(), st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([None, 1.0, RHO]),
)  # fmt: skip
def test_vtrace_is_the_sum_of_the_paper(seed, T, B, p_done, next_step, own_next, lambda_, pg_rho):
    batch = random_batch(seed, T, B, p_done, next_step)
    next_values = following_values(batch, seed) if own_next else batch["values"][1:]
    result = vtrace(
        *tensors(batch, "log_ratio", *COMMON), gamma=0.97, lambda_=lambda_, rho=RHO, c=C, pg_rho=pg_rho,
        next_values=torch.as_tensor(next_values) if own_next else None,
    )  # fmt: skip
    values, advantages = naive_vtrace(batch, 0.97, lambda_, RHO, C, pg_rho, next_values.astype(np.float64))
    np.testing.assert_allclose(result.values, values, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.6]),
    st.booleans(), st.booleans(), st.sampled_from([1.0, 0.95, 0.0]),
)  # fmt: skip
def test_gae_is_the_sum_of_the_paper(seed, T, B, p_done, next_step, own_next, lambda_):
    batch = random_batch(seed, T, B, p_done, next_step)
    next_values = following_values(batch, seed) if own_next else batch["values"][1:]
    result = gae(
        *tensors(batch, *COMMON), gamma=0.97, lambda_=lambda_, next_values=torch.as_tensor(next_values) if own_next else None
    )
    values, advantages = naive_gae(batch, 0.97, lambda_, next_values.astype(np.float64))
    np.testing.assert_allclose(result.values, values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-4, atol=1e-5)


def test_the_random_batches_make_every_clip_and_branch_bind():
    batch = random_batch(0, 12, 4)
    w = np.exp(batch["log_ratio"][batch["valid"][:-1]])
    assert (w > RHO).any()
    assert ((w > C) & (w < RHO)).any()
    assert (w < C).any()
    for done in ("terminated", "truncated"):
        assert (batch[done] & batch["valid"][:-1]).any()
    assert (~batch["valid"][:-1]).any()


def test_on_policy_vtrace_is_the_n_step_return():
    """IMPALA, equation 2: without off-policy correction and with c >= 1, v is the n-step Bellman target."""
    T, gamma = 6, 0.9
    rewards, values = torch.randn(T, 1), torch.randn(T + 1, 1)
    no = torch.zeros(T, 1, dtype=torch.bool)
    result = vtrace(torch.zeros(T, 1), rewards, values, no, no, ~no, gamma)
    for s in range(T):
        expected = sum(gamma ** (t - s) * rewards[t, 0] for t in range(s, T)) + gamma ** (T - s) * values[T, 0]
        assert result.values[s, 0].item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    on_policy_gae = gae(rewards, values, no, no, ~no, gamma, 1.0)
    torch.testing.assert_close(result.advantages, on_policy_gae.advantages)


def test_truncation_bootstraps_from_the_true_last_observation_and_termination_does_not():
    """Rows: step, last step of an episode, its last observation (invalid), first step of the next episode."""
    rewards = torch.tensor([[1.0], [2.0], [1e6], [4.0]])
    values = torch.tensor([[0.1], [0.2], [50.0], [0.4], [0.5]])
    no = torch.zeros(4, 1, dtype=torch.bool)
    end = torch.tensor([[False], [True], [False], [False]])
    valid = torch.tensor([[True], [True], [False], [True], [True]])
    for truncated, terminated, last in ((end, no, 2 + 0.5 * 50), (no, end, 2.0), (end, end, 2.0)):
        for result in (
            gae(rewards, values, terminated, truncated, valid, 0.5, 1.0),
            vtrace(torch.zeros(4, 1), rewards, values, terminated, truncated, valid, 0.5),
        ):
            torch.testing.assert_close(result.values[:, 0], torch.tensor([1 + 0.5 * last, last, 50.0, 4 + 0.5 * 0.5]))
            assert result.advantages[2] == 0


def test_huge_ratios_do_not_overflow():
    no = torch.zeros(2, 1, dtype=torch.bool)
    for log_ratio in (1e4, -1e4):
        result = vtrace(torch.full((2, 1), log_ratio), torch.ones(2, 1), torch.ones(3, 1), no, no, ~no, 0.9)
        assert all(torch.isfinite(x).all() for x in result)


def test_no_gradient_flows_through_targets():
    values = torch.randn(3, 1, requires_grad=True)
    no = torch.zeros(2, 1, dtype=torch.bool)
    for result in (
        vtrace(torch.zeros(2, 1, requires_grad=True), torch.ones(2, 1), values, no, no, ~no, 0.9),
        gae(torch.ones(2, 1), values, no, no, ~no, 0.9, 0.9),
    ):
        assert not any(x.requires_grad for x in result)


def test_a_trace_clip_of_zero_leaves_one_step_targets():
    no = torch.zeros(3, 1, dtype=torch.bool)
    rewards, values = torch.randn(3, 1), torch.randn(4, 1)
    result = vtrace(torch.zeros(3, 1), rewards, values, no, no, ~no, 0.9, c=0.0)
    torch.testing.assert_close(result.values, rewards + 0.9 * values[1:])


def test_c_above_rho_is_refused():
    no = torch.zeros(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="rho"):
        vtrace(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(2, 1), no, no, ~no, 0.9, rho=1.0, c=2.0)


def test_reverse_scan():
    x, a = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0.5], [0.25], [9.0]])
    assert reverse_scan(x, a).flatten().tolist() == [1 + 0.5 * (2 + 0.25 * 3), 2 + 0.25 * 3, 3]


ARGUMENTS = ("rewards", "values", "terminated", "truncated", "valid", "next_values")


@pytest.mark.parametrize(
    ("function", "wrong"), [(gae, name) for name in ARGUMENTS] + [(vtrace, name) for name in (*ARGUMENTS, "log_ratio")]
)
def test_shapes_that_would_broadcast_are_refused(function, wrong):
    T, B = 5, 3
    good = {name: torch.zeros(T, B) for name in ("rewards", "next_values")} | {"values": torch.zeros(T + 1, B)}
    good |= {name: torch.zeros(T, B, dtype=torch.bool) for name in ("terminated", "truncated", "valid")}
    if function is vtrace:
        good["log_ratio"] = torch.zeros(T, B)
    function(**good, gamma=0.9, lambda_=1.0)
    with pytest.raises(ValueError, match=f"{function.__name__}: .* has the shape"):
        function(**{**good, wrong: good[wrong][:, :1]}, gamma=0.9, lambda_=1.0)
