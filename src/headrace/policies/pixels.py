"""Images of bytes as the numbers that convolutions take."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

import headrace._native.pixels as native

_KINDS = (torch.float32, torch.bfloat16)
_AS_FAST_AS = 4  # with more threads than this PyTorch's is faster than one thread here, but for unshuffling
_LAST = torch.channels_last


def channels_last(image: Tensor, dtype: torch.dtype, factor: int = 1) -> Tensor:
    """`image` [N, C, H, W] as `dtype`, with the channels of a pixel side by side in memory. With a factor, which divides H and W:
    its `torch.nn.functional.pixel_unshuffle`, [N, C factor^2, H / factor, W / factor].

    For uint8 on the CPU, whose planes lie one behind the other, in one pass instead of PyTorch's two or three, with the same bits
    (docs/performance-results.md): bytes are best left in that order until they come here.
    """
    plain = image.dtype == torch.uint8 and image.device.type == "cpu" and image.is_contiguous() and dtype in _KINDS
    few = factor > 1 or torch.get_num_threads() <= _AS_FAST_AS
    if plain and few and not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
        N, C, H, W = image.shape
        y = torch.empty(N, C * factor**2, H // factor, W // factor, dtype=dtype, memory_format=_LAST)
        if native.channels_last(image.data_ptr(), y.data_ptr(), N, C, H, W, factor, dtype == torch.bfloat16):
            return y
    image = image if factor == 1 else F.pixel_unshuffle(image, factor)
    return image.to(dtype).contiguous(memory_format=_LAST)
