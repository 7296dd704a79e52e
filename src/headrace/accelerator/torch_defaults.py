"""What a program that uses Headrace may have set for all of torch, and Headrace needs otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Context, and decorator, in which torch makes float32 tensors on the CPU, and gradients, unless told otherwise: whatever the
    program has set with `torch.set_default_dtype`, `torch.set_default_device`, `torch.no_grad` or `torch.inference_mode`."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device().type
    torch.set_default_dtype(torch.float32)
    try:  # a device as a context makes every call slower
        with torch.inference_mode(False), nullcontext() if device == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
