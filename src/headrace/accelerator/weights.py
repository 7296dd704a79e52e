"""A model's parameters and buffers as one block of memory, for a policy's weight store."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn

from headrace.accelerator.graphs import Marker
from headrace.shm.weight_store import WeightStore


class FlatWeights:
    """All tensors of `model.state_dict()` laid end to end as bytes, in the dictionary's order and as they are now: a model whose
    parameters get another dtype later has them converted when it reads. For a model on CUDA they are gathered there first, and
    cross the bus as one copy from or to page-locked memory."""

    def __init__(self, model: nn.Module):
        self._tensors: list[Tensor] = list(model.state_dict(keep_vars=True).values())
        device = next((t.device for t in self._tensors), torch.device("cpu"))
        nbytes, cuda = weights_nbytes(model), device.type != "cpu"
        self._pinned = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=cuda)
        self._host = self._pinned.numpy()
        self._flat = torch.zeros(nbytes, dtype=torch.uint8, device=device) if cuda else self._pinned
        self._there = Marker(str(device) if cuda else "cpu")
        offset = 0
        self._views: list[Tensor] = []
        for t in self._tensors:
            size = t.numel() * t.element_size()
            self._views.append(self._flat[offset : offset + size].view(t.dtype).view(t.shape))
            offset += -(-size // 16) * 16  # every tensor starts aligned for its dtype

    @torch.no_grad()
    def gather(self) -> None:
        """Let the device copy the model's tensors into host memory of our own; does not wait for it."""
        for view, tensor in zip(self._views, self._tensors, strict=True):
            view.copy_(tensor)
        if self._flat is not self._pinned:
            self._pinned.copy_(self._flat, non_blocking=True)
        self._there.set()

    def put(self, store: WeightStore, version: int) -> None:
        """Publish the weights gathered last; waits until the device has copied them."""
        self._there.wait()
        store.publish(self._host, version)

    def publish(self, store: WeightStore, version: int) -> None:
        self.gather()
        self.put(store, version)

    @torch.no_grad()
    def read(self, store: WeightStore) -> int:
        """Copy the newest published weights into the model; returns their version. On CUDA work given to the device before must
        be done, and the copy may go on after the return."""
        version = store.read(self._host)
        self._scatter()
        return version

    def held(self) -> np.ndarray:
        """The bytes read or gathered last, uint8 [n]: a copy."""
        return self._host.copy()

    @torch.no_grad()
    def hold(self, content: np.ndarray) -> None:
        """Copy what `held` gave into the model."""
        self._host[:] = content
        self._scatter()

    def _scatter(self) -> None:
        if self._flat is not self._pinned:
            self._flat.copy_(self._pinned, non_blocking=True)
        for view, tensor in zip(self._views, self._tensors, strict=True):
            tensor.copy_(view)


class Publisher:
    """Publishes a model's weights from a thread, which waits for the GPU so that the learner need not."""

    def __init__(self, model: nn.Module, store: WeightStore, device: str):
        self._weights, self._store = FlatWeights(model), store
        self._thread = None if device == "cpu" else ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._last: Future[None] | None = None

    def publish(self, version: int) -> None:
        """The weights as they are when the work given to the device so far is done, under this version."""
        self.wait()
        self._weights.gather()
        if self._thread is None:
            self._weights.put(self._store, version)
        else:
            self._last = self._thread.submit(self._weights.put, self._store, version)

    def held(self) -> np.ndarray:
        """The bytes published last, uint8 [n]: a copy. Waits for them."""
        self.wait()
        return self._weights.held()

    def wait(self) -> None:
        """Return when the weights given last are published."""
        if self._last is not None:
            self._last.result()


def weights_nbytes(model: nn.Module) -> int:
    """Size of `FlatWeights` of this model in bytes."""
    return sum(-(-t.numel() * t.element_size() // 16) * 16 for t in model.state_dict().values())
