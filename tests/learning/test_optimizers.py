"""RMSProp as TensorFlow computes it, against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.learning.optimizers import TensorFlowRMSprop


@pytest.mark.parametrize("centered", [False, True])
def test_steps_follow_the_formula(centered: bool) -> None:
    rng = np.random.default_rng(0)
    w = [rng.normal(size=(3, 2)), rng.normal(size=4)]
    parameters = [torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)) for x in w]
    optimizer = TensorFlowRMSprop(parameters, lr=0.01, alpha=0.9, eps=0.1, centered=centered)
    m, u = [np.ones_like(x) for x in w], [np.zeros_like(x) for x in w]
    for _ in range(20):
        for i, p in enumerate(parameters):
            g = rng.normal(size=w[i].shape)
            p.grad = torch.tensor(g)
            m[i] = 0.9 * m[i] + 0.1 * g**2
            u[i] = 0.9 * u[i] + 0.1 * g
            w[i] -= 0.01 * g / np.sqrt(m[i] - (u[i] ** 2 if centered else 0) + 0.1)
        optimizer.step()
    for p, x in zip(parameters, w, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-10)


def test_constant_gradients_stay_finite_when_centered() -> None:
    """The variance goes to 0, and rounding would take it below."""
    p = torch.nn.Parameter(torch.zeros(1000))
    optimizer = TensorFlowRMSprop([p], lr=0.00025 / 4, alpha=0.95, eps=1.5e-7, centered=True)
    p.grad = torch.linspace(-3, 3, 1000)
    before = p.detach().clone()
    for _ in range(2000):
        optimizer.step()
        assert torch.isfinite(p).all()
        largest = 0.00025 / 4 * p.grad.abs().max() / 1.5e-7**0.5
        assert (p.detach() - before).abs().max() <= largest * 1.001
        before = p.detach().clone()


def test_the_learning_rate_may_be_a_tensor_and_parameters_without_gradient_stay() -> None:
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    a.grad = torch.ones(2)
    TensorFlowRMSprop([a, b], lr=torch.tensor(0.1), alpha=0.5, eps=0.0).step()
    assert torch.equal(b, torch.ones(2))
    torch.testing.assert_close(a.detach(), torch.full((2,), 0.9))
