"""Shapes that do not fit would often broadcast and be learned from in silence: the mathematics refuses them on entry."""

from __future__ import annotations

from torch import Tensor


def require(function: str, shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Raise `ValueError`, naming the function and the argument, unless every tensor that is not None has this shape."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{function}: {name} has the shape {list(tensor.shape)}; it must be {list(shape)}")


def require_rank(function: str, rank: int, **tensors: Tensor) -> None:
    """Raise `ValueError`, naming the function and the argument, unless every tensor has so many dimensions."""
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise ValueError(f"{function}: {name} has the shape {list(tensor.shape)}; it must have {rank} dimensions")
