"""How many threads torch computes with on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Torch computes with so many threads meanwhile.

    One is the default here: batches are small, and threads that wait for each other at every layer lose more on busy cores
    than they gain on idle ones (Nature CNN, 16 observations, 2 cores at load 15: 17 ms with one thread, 300 ms with two).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
