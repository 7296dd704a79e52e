"""Checks of tensor shapes: PyTorch would broadcast many wrong shapes without an error."""

from __future__ import annotations

from torch import Tensor


def require(function: str, shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Raise `ValueError`, naming the function and the argument, unless every tensor that is not None has this shape."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{function}: {name} has the shape {list(tensor.shape)}; it must be {list(shape)}")


def require_rank(function: str, rank: int, **tensors: Tensor) -> None:
    """Raise `ValueError`, naming the function and the argument, unless every tensor has `rank` dimensions."""
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise ValueError(f"{function}: {name} has the shape {list(tensor.shape)}; it must have {rank} dimensions")
