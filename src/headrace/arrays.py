"""Named arrays: shape and dtype of each (`ArraySpec`), and the places of many in one block of memory (`ArrayLayout`).

Observations, trajectories in shared memory, rows of a replay and messages are described by such tables: name -> `ArraySpec`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """Shape (without batch and time dimensions), dtype and bounds of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    """Or an argument of `numpy.dtype`."""
    low: float = -np.inf
    high: float = np.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def is_image(self) -> bool:
        """Channels-first uint8 image [C, H, W]."""
        return len(self.shape) == 3 and self.dtype == np.uint8

    @property
    def nbytes(self) -> int:
        """Bytes of one array."""
        return math.prod(self.shape) * self.dtype.itemsize


def specs(**arrays: tuple[tuple[int, ...], Any]) -> dict[str, ArraySpec]:
    """Arrays by their names, each from its shape and an argument of `numpy.dtype`."""
    return {name: ArraySpec(shape, np.dtype(kind)) for name, (shape, kind) in arrays.items()}


class ArrayLayout:
    """Arrays one after the other in a block of memory from byte `start` on, each at a multiple of `alignment` bytes.

    The first arrays of a table have the same places as in the layout of the whole table.
    """

    def __init__(self, arrays: Mapping[str, ArraySpec], alignment: int = 64, start: int = 0) -> None:
        self.arrays = dict(arrays)
        self.nbytes = start  # bytes of the whole block
        self._offsets: list[int] = []
        for array in self.arrays.values():
            self._offsets.append(-(-self.nbytes // alignment) * alignment)
            self.nbytes = self._offsets[-1] + array.nbytes

    def slices(self) -> dict[str, slice]:
        """The byte range of each array in the block, by name."""
        places = zip(self.arrays.items(), self._offsets, strict=True)
        return {name: slice(offset, offset + array.nbytes) for (name, array), offset in places}

    def views(self, buffer: Any) -> dict[str, np.ndarray]:
        """Views of the arrays in `buffer`, by name; writable if the buffer is. They keep it alive."""
        places = zip(self.arrays.items(), self._offsets, strict=True)
        return {name: np.ndarray(array.shape, array.dtype, buffer, offset) for (name, array), offset in places}
