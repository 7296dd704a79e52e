"""RMSProp as TensorFlow computes it, against the formula in float64; Adam with less around it, against PyTorch's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from headrace.learning.optimizers import LeanAdam, TensorFlowRMSprop


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


def test_lean_adam_is_adam_to_the_last_bit_through_saving_and_loading() -> None:
    def parameters() -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7, 5), (64,), (3,))]

    ours, theirs = parameters(), parameters()
    settings = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-5, "fused": True}
    lean, adam = LeanAdam(ours, **settings), torch.optim.Adam(theirs, **settings)
    generator = torch.Generator().manual_seed(1)
    for i in range(6):
        for j, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a.grad = b.grad = torch.randn(a.shape, generator=generator) if j < 2 or i >= 3 else None
        for optimizer in (lean, adam):
            optimizer.param_groups[0]["lr"] = 1e-2 / (i + 1)
            optimizer.step()
        if i == 4:
            lean.load_state_dict(copy.deepcopy(lean.state_dict()))
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    for a, b in zip(lean.state.values(), adam.state.values(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
