"""RMSProp as TensorFlow computes it, against the formula in float64; Adam with less around it, against PyTorch's."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.learning.optimizers import LeanAdam, RMSprop, make_optimizer
from headrace.make_config import make_config


@pytest.mark.parametrize("tensorflow", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_steps_follow_the_formula(centered: bool, tensorflow: bool) -> None:
    rng = np.random.default_rng(0)
    w = [rng.normal(size=(3, 2)), rng.normal(size=4)]
    parameters = [torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)) for x in w]
    optimizer = RMSprop(parameters, lr=0.01, alpha=0.9, eps=0.1, centered=centered, tensorflow=tensorflow)
    m, u = [np.full_like(x, tensorflow) for x in w], [np.zeros_like(x) for x in w]
    for _ in range(20):
        for i, p in enumerate(parameters):
            g = rng.normal(size=w[i].shape)
            p.grad = torch.tensor(g)
            m[i] = 0.9 * m[i] + 0.1 * g**2
            u[i] = 0.9 * u[i] + 0.1 * g
            variance = m[i] - (u[i] ** 2 if centered else 0)
            w[i] -= 0.01 * g / (np.sqrt(variance + 0.1) if tensorflow else np.sqrt(variance) + 0.1)
        optimizer.step()
    for p, x in zip(parameters, w, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-10)


@pytest.mark.parametrize("tensorflow", [False, True])
def test_constant_gradients_stay_finite_when_centered(tensorflow: bool) -> None:
    """The variance goes to 0, and rounding would take it below."""
    p, eps = torch.nn.Parameter(torch.zeros(1000)), 1.5e-7 if tensorflow else 1e-3
    optimizer = RMSprop([p], lr=0.00025 / 4, alpha=0.95, eps=eps, centered=True, tensorflow=tensorflow)
    p.grad = torch.linspace(-3, 3, 1000)
    before = p.detach().clone()
    for _ in range(2000):
        optimizer.step()
        assert torch.isfinite(p).all()
        largest = 0.00025 / 4 * p.grad.abs().max() / (eps**0.5 if tensorflow else eps)
        assert (p.detach() - before).abs().max() <= largest * 1.001
        before = p.detach().clone()


def test_the_papers_dqn_survives_constant_gradients() -> None:
    config = make_config("gym/CartPole-v1", "dqn", **{"learning.preset": "paper", "learning.device": "cpu"})
    model = torch.nn.Linear(100, 3)
    optimizer = make_optimizer(model, config)
    for _ in range(1000):
        for parameter in model.parameters():
            parameter.grad = torch.linspace(-3, 3, parameter.numel()).view_as(parameter)
        optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_as_pytorch_computes_it() -> None:
    ours, theirs = (torch.nn.Parameter(torch.ones(50)) for _ in range(2))
    one, other = RMSprop([ours], 0.01, 0.9, 1e-5), torch.optim.RMSprop([theirs], 0.01, 0.9, 1e-5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ours.grad = theirs.grad = torch.randn(50, generator=generator)
        one.step()
        other.step()
    torch.testing.assert_close(ours, theirs)


def test_the_learning_rate_may_be_a_tensor_and_parameters_without_gradient_stay() -> None:
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    a.grad = torch.ones(2)
    RMSprop([a, b], lr=torch.tensor(0.1), alpha=0.5, eps=0.0, tensorflow=True).step()
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


def test_a_training_does_not_import_the_compiler(tmp_path: Path) -> None:
    """PyTorch's optimizers would, and every learner would take seconds longer to begin."""
    program = """
import sys, headrace
for optimizer in ("adam", "rmsprop"):
    small = {"learning.total_steps": 64, "learning.batch_size": 64, "learning.num_minibatches": 1, "sampling.rollout": 8}
    where = {"run.folder": f"run-{optimizer}", "run.video": False, "sampling.placement": "serial", "learning.device": "cpu"}
    config = headrace.make_config("gym/CartPole-v1", "a2c", **small, **where, **{"learning.optimizer": optimizer})
    headrace.train(config)
    assert headrace.train(config).global_step >= 64, "and goes on from a checkpoint"
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=200)
