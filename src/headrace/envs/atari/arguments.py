"""Checks of the arguments of `AtariVector`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space


class OneUser:
    """A context that one thread at a time may enter. Raises `RuntimeError` in the second thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "two threads use this AtariVector at the same time; give each thread a vector of its own, or let them take turns"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def batch_space_of(single: Box, size: int) -> Box:
    """Gymnasium's `batch_space` with broadcast bounds, which take no memory; Gymnasium's take four times that of a batch."""
    batch: Any = batch_space(single, 1)
    batch._shape = (size, *single.shape)
    for name in ("low", "high", "bounded_below", "bounded_above"):
        setattr(batch, name, np.broadcast_to(getattr(batch, name).flat[0], batch._shape))
    return batch


def seeds_of(seed: Any, count: int) -> np.ndarray:
    """One seed for each environment that is reset; negative ones keep its generators."""
    if seed is None:
        return np.full(count, -1)
    if isinstance(seed, (int, np.integer)):
        seeds = int(seed) + np.arange(count) if seed >= 0 else np.full(count, -1)
    else:
        seeds = np.asarray(seed)
        if seeds.dtype.kind not in "iu":
            raise TypeError(f"seed must be an integer or an array of integers, not {seed!r}")
        if seeds.shape != (count,):
            raise ValueError(f"seed has shape {seeds.shape}, but {count} environments are reset")
    if (seeds >= 2**31).any():
        raise ValueError("a seed must be less than 2**31")
    return seeds.astype(np.int64)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
