"""Images of bytes as the numbers that convolutions take."""

from __future__ import annotations

import torch
from torch import Tensor

import headrace._native.pixels as native

_KINDS = (torch.float32, torch.bfloat16)
_AS_FAST_AS = 4  # with more threads than this PyTorch's is faster than one thread here
_LAST = torch.channels_last


def channels_last(image: Tensor, dtype: torch.dtype) -> Tensor:
    """`image` [N, C, H, W] as `dtype`, with the channels of a pixel side by side in memory.

    For uint8 on the CPU in one pass instead of PyTorch's two, with the same bits (docs/performance.md).
    """
    plain = image.dtype == torch.uint8 and image.device.type == "cpu" and image.is_contiguous() and dtype in _KINDS
    if plain and not (torch.compiler.is_compiling() or torch.jit.is_tracing()) and torch.get_num_threads() <= _AS_FAST_AS:
        images, channels, *size = image.shape
        y = torch.empty(image.shape, dtype=dtype, memory_format=_LAST)
        if native.channels_last(image.data_ptr(), y.data_ptr(), images, channels, size[0] * size[1], dtype == torch.bfloat16):
            return y
    return image.to(dtype).contiguous(memory_format=_LAST)
