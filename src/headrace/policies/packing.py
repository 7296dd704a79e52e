"""oneDNN's kernels for weights that were brought into its own order before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

KERNELS = torch.ops.mkldnn  # those that torch.compile uses for models whose weights do not change
_NAMES = ("_reorder_linear_weight", "_linear_pointwise", "_reorder_convolution_weight", "_convolution_pointwise")
Product = Callable[[Tensor], Tensor]


@cache
def has_kernels(bf16: bool) -> bool:
    """Whether this PyTorch has them, and the processor runs them (in bf16)."""
    here = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return here and all(hasattr(KERNELS, name) for name in _NAMES) and (not bf16 or KERNELS._is_mkldnn_bf16_supported())


def linear(weight: Tensor, bias: Tensor | None, rows: int) -> Product:
    """x [rows, F] -> x weight^T + bias [rows, G], for many x. `weight`: [G, F]. It is packed where that changes no bit of the
    result: in bf16 on the CPU. (In float32 the packed kernel adds in another order than PyTorch's.)"""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or not has_kernels(True):
        return lambda x: functional.linear(x, weight, bias)
    packed = KERNELS._reorder_linear_weight(weight.contiguous(), rows)
    return lambda x: KERNELS._linear_pointwise(x, packed, bias, "none", [], "")
