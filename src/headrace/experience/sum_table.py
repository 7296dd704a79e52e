"""Numbers in the memory of a device from which entries are drawn in proportion: a sum tree of two levels.

The entries are divided into blocks of about sqrt(n), and the sum of each block is kept. A draw looks for its block among the
sums and then for its entry in the block, both by cumulative sums and a binary search; a write adds up the blocks that it touched
anew, so that no rounding error stays. Both are a handful of operations on tensors, the same on every device, where a binary tree
needs some for each of its log2 n levels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST_WIDTH = 32
JUST_BELOW = 1 - 1e-12  # a draw of a whole sum would lie behind the last entry; rounding can make one of it


class SumTable:
    """`size` numbers, 0 at first, float32 on `device`."""

    def __init__(self, size: int, device: str):
        self.size, self.device = size, device
        self._width = max(LEAST_WIDTH, 1 << math.ceil(math.log2(size) / 2))
        self._blocks = torch.zeros(-(-size // self._width), self._width, device=device)
        self._sums = torch.zeros(len(self._blocks), dtype=torch.float64, device=device)

    @property
    def numbers(self) -> Tensor:
        """All of them, float32 [size]: a view, to be read."""
        return self._blocks.view(-1)[: self.size]

    def fill(self, start: int, numbers: Tensor) -> None:
        """Write consecutive entries, float32 [K] from `start` on."""
        end = start + len(numbers)
        self._blocks.view(-1)[start:end] = numbers
        touched = slice(start // self._width, -(-end // self._width))
        self._sums[touched] = self._blocks[touched].sum(1, dtype=torch.float64)

    def update(self, index: Tensor, numbers: Tensor) -> None:
        """Write entries `index`, int64 [K]; of an entry that is named twice, one of its numbers, float32 [K]."""
        self._blocks.view(-1)[index] = numbers
        touched = index // self._width
        self._sums[touched] = self._blocks[touched].sum(1, dtype=torch.float64)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Entries, int64 [count], each with a probability proportional to its number: one of each of `count` equal parts of the
        sum (stratified). An entry of 0 is never drawn, unless all are 0."""
        upto = self._sums.cumsum(0)
        places = torch.arange(count, device=self.device) + torch.rand(
            count, dtype=torch.float64, device=self.device, generator=generator
        )
        wanted = (places / count).clamp(max=JUST_BELOW) * upto[-1]
        block = torch.searchsorted(upto, wanted, right=True).clamp(max=len(upto) - 1)
        inside = self._blocks[block].cumsum(1, dtype=torch.float64)
        rest = (wanted - (upto[block] - self._sums[block])).clamp(min=0.0)
        rest = torch.minimum(rest, inside[:, -1] * JUST_BELOW)
        entry = torch.searchsorted(inside, rest.unsqueeze(1), right=True).squeeze(1)
        return block * self._width + entry.clamp(max=self._width - 1)
