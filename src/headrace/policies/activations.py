"""Activation functions, by their names in `policy.activation`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headrace._native.elu as native

_KINDS = (torch.float32, torch.bfloat16)
_AS_FAST_AS = 4  # with more threads than this PyTorch's is faster than one thread here


class ELU(nn.Module):
    """x where x > 0, else e^x - 1. On the CPU in a third to half of the time of `torch.nn.ELU` (docs/performance-results.md)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, float32 or bf16 (others, and other devices, by PyTorch)."""
        if x.device.type != "cpu" or torch.get_num_threads() > _AS_FAST_AS or torch.compiler.is_compiling() or not _plain(x):
            return F.elu(x)
        return _NativeELU.apply(x) if torch.is_grad_enabled() and x.requires_grad else _forward(x)


class _NativeELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _forward(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            return torch.ops.aten.elu_backward(dy, 1.0, 1.0, 1.0, False, x)
        dx = torch.empty_like(x)
        dy = torch.empty_like(x).copy_(dy) if dy.stride() != x.stride() or dy.dtype != x.dtype else dy
        native.backward(dy.data_ptr(), x.data_ptr(), dx.data_ptr(), x.numel(), x.dtype == torch.bfloat16)
        return dx


def _forward(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    native.forward(x.data_ptr(), y.data_ptr(), x.numel(), x.dtype == torch.bfloat16)
    return y


def _plain(x: Tensor) -> bool:
    """Whether its numbers lie in one block without gaps, of a type that the native part has."""
    return x.dtype in _KINDS and (x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)))


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": ELU, "tanh": nn.Tanh}
