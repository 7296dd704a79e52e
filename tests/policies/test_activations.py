"""ELU against PyTorch's, value by value and slope by slope."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.policies import activations
from headrace.policies.activations import ELU

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY_BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
"""All 65,536 of them: zeros, infinities, NaNs, subnormal numbers."""
HARD = [0.0, -0.0, 1e-40, -1e-40, -1e-8, -1e-3, -0.34, -0.35, -0.3466, -1.0, -17.0, -86.9, -87.5, -1e4, 3.0, 1e30]


def values_and_slopes(function, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    (slope,) = torch.autograd.grad(y, x, torch.full_like(y, 0.75))
    return y.detach(), slope


def test_every_number_of_bf16_is_the_rounded_exact_one():
    exact = F.elu(EVERY_BF16.double())
    slopes = torch.where(EVERY_BF16.double() > 0, 1.0, EVERY_BF16.double().clamp(max=0).exp()) * 0.75
    y, slope = values_and_slopes(ELU(), EVERY_BF16)
    nan = EVERY_BF16.isnan()
    assert y[nan].isnan().all()
    assert not y[~nan].isnan().any()
    # One unit in the last place of bf16, whose numbers have 8 bits: a float32 between two of them may be rounded either way.
    torch.testing.assert_close(y[~nan].double(), exact[~nan], rtol=2**-8, atol=1e-38)
    torch.testing.assert_close(slope[~nan].double(), slopes[~nan], rtol=2**-8, atol=1e-37)


def test_float32_to_a_few_units_in_the_last_place():
    x = torch.cat([torch.linspace(-100, 10, 100_001), -torch.logspace(-30, 2, 10_001), torch.tensor(HARD)])
    y, slope = values_and_slopes(ELU(), x)
    torch.testing.assert_close(y.double(), F.elu(x.double()), rtol=5e-7, atol=1e-37)
    exact = torch.where(x > 0, 1.0, x.double().clamp(max=0).exp()) * 0.75
    torch.testing.assert_close(slope.double(), exact, rtol=5e-7, atol=1e-37)
    odd = ELU()(torch.tensor([float("inf"), float("-inf"), float("nan")]))
    assert odd[0] == float("inf")
    assert odd[1] == -1
    assert odd[2].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "with gaps", "empty"])
def test_layouts_and_types(dtype, layout):
    x = torch.randn(0 if layout == "empty" else 3, 4, 6, 5).to(dtype)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "with gaps":
        x = x[..., ::2]
    y, slope = values_and_slopes(ELU(), x)
    expected, expected_slope = values_and_slopes(nn.ELU(), x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(slope, expected_slope)
    assert y.stride() == expected.stride()


def test_a_gradient_of_another_layout_finds_its_numbers():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    dy = torch.randn(2, 3, 4, 5)
    (ours,) = torch.autograd.grad(ELU()(x), x, dy)
    (theirs,) = torch.autograd.grad(F.elu(x), x, dy)
    torch.testing.assert_close(ours, theirs)
    (summed,) = torch.autograd.grad(ELU()(x).sum(), x)  # an expanded gradient: all strides are 0
    torch.testing.assert_close(summed, torch.autograd.grad(F.elu(x).sum(), x)[0])


def test_many_threads_are_pytorchs(monkeypatch):
    monkeypatch.setattr(activations, "_AS_FAST_AS", 0)
    monkeypatch.setattr(activations.native, "forward", None)
    torch.testing.assert_close(ELU()(torch.tensor([-1.0, 2.0])), torch.tensor([-0.6321206, 2.0]))


def test_second_derivatives():
    x = torch.tensor([-1.0, -0.2, 0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(ELU()(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), x)
    torch.testing.assert_close(second, torch.where(x > 0, 0.0, 2 * (2 * x).exp()).detach())
