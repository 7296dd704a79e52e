"""A model's parameters and buffers as one flat piece of memory: what travels over the board."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from headrace.sampling.ipc import Board


class FlatWeights:
    """All tensors of `model.state_dict()` laid end to end as bytes, in the dictionary's order."""

    def __init__(self, model: nn.Module):
        self._tensors: list[Tensor] = [t.detach() for t in model.state_dict().values()]
        self._host = np.zeros(weights_nbytes(model), np.uint8)
        flat, offset = torch.from_numpy(self._host), 0
        self._views: list[Tensor] = []
        for t in self._tensors:
            size = t.numel() * t.element_size()
            self._views.append(flat[offset : offset + size].view(t.dtype).view(t.shape))
            offset += -(-size // 16) * 16  # every tensor starts aligned for its dtype

    @torch.no_grad()
    def publish(self, board: Board, version: int) -> None:
        """Copy the model's tensors to the board."""
        for view, tensor in zip(self._views, self._tensors, strict=True):
            view.copy_(tensor)
        board.publish(self._host, version)

    @torch.no_grad()
    def read(self, board: Board) -> int:
        """Copy the board's newest weights into the model; returns their version."""
        version = board.read(self._host)
        for view, tensor in zip(self._views, self._tensors, strict=True):
            tensor.copy_(view)
        return version


def weights_nbytes(model: nn.Module) -> int:
    """Size of `FlatWeights` of this model in bytes."""
    return sum(-(-t.numel() * t.element_size() // 16) * 16 for t in model.state_dict().values())
