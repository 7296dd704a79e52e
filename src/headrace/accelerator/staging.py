"""Between host memory and the device: an actor's buffers, with one copy in per observation and one copy out for all results, and
copies of single tensors that the host need not wait for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.accelerator.graphs import Marker


class Staging:
    """Allocated once for `capacity` lanes: page-locked for CUDA, so that copies are asynchronous, and never given back to the
    system, which would make every batch pay for its pages again. On the CPU the gathered rows are what the network reads, unless
    `apart` (for tests)."""

    def __init__(self, device: str, capacity: int, apart: bool = False):
        self._device, self._capacity, self._apart = device, capacity, apart or device != "cpu"
        self._host: dict[str, Tensor] = {}
        self._there: dict[str, Tensor] = {}
        self._views: dict[tuple[str, int, int], tuple[np.ndarray, Tensor, Tensor, Tensor]] = {}
        self._done = Marker(device)
        self._layout = np.dtype([])

    def take(self, name: str, array: np.ndarray, index: np.ndarray, rows: int | None = None) -> Tensor:
        """`array[index]` with its first two axes joined, on the device: [k, C, ...] and [n] give [n C, ...].

        With `rows` >= n it is [rows C, ...]; the content after the first n C is undefined. Equal `rows` mean equal memory.
        The copy may be under way when this returns, but no more after the next `fetch`.
        """
        n = len(index)
        views = self._views.get((name, n, rows or n)) or self._view(name, array, n, rows or n)
        gathered, host, there, whole = views
        array.take(index, 0, gathered, "clip")  # the other modes copy once more, and np.take takes longer
        if self._apart:
            there.copy_(host, non_blocking=True)
        return whole

    def _view(self, name: str, array: np.ndarray, n: int, rows: int) -> tuple[np.ndarray, Tensor, Tensor, Tensor]:
        """What `take` needs of a buffer, made once for each size: making a view takes as long as gathering a few small rows."""
        if name not in self._host:
            shape, dtype = (self._capacity, *array.shape[1:]), torch_dtype(array.dtype)
            host = self._host[name] = torch.zeros(shape, dtype=dtype, pin_memory=self._device != "cpu")
            self._there[name] = torch.zeros_like(host, device=self._device) if self._apart else host
        host, there = self._host[name], self._there[name]
        views = self._views[name, n, rows] = host[:n].numpy(), host[:n], there[:n], there[:rows].flatten(0, 1)
        return views

    def pack(self, fields: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `fetch` wants of fields [N, ...]: on CUDA all of them side by side as bytes, so that they leave in one copy."""
        if not self._apart:
            return fields
        self._layout = layout_of(fields)
        return {"packed": packed(fields)}

    def fetch(self, tensors: dict[str, Tensor], n: int) -> dict[str, np.ndarray]:
        """The first `n` rows of what `pack` made, by field on the host; waits for the device."""
        if not self._apart:
            return {name: (tensor if tensor.size(0) == n else tensor[:n]).numpy() for name, tensor in tensors.items()}
        there = tensors["packed"]
        host = self._host.get("packed")
        if host is None or len(host) < n:
            host = self._host["packed"] = torch.empty(there.shape, dtype=torch.uint8, pin_memory=self._device != "cpu")
        host[:n].copy_(there[:n], non_blocking=True)
        self._done.catch_up()
        return unpacked(host[:n].numpy(), self._layout)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Torch's name of a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def to_device(x: Tensor, device: str) -> Tensor:
    """`x` on the device, or `x` where it is there. The host does not wait: a tensor of the host goes through page-locked memory,
    since a copy from other memory begins when all work given to the stream before is done."""
    if device == "cpu" or x.device.type != "cpu":
        return x.to(device)
    dense = x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)
    return (x if dense else x.contiguous()).pin_memory().to(device, non_blocking=True)


def to_host(x: Tensor) -> Tensor:
    """`x` in host memory, or `x` where it is there. From a device it has arrived when a `Marker` that was set behind it is
    passed."""
    if x.device.type == "cpu":
        return x
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def layout_of(fields: dict[str, Tensor]) -> np.dtype:
    """Dtype of a row of these fields [N, ...] side by side."""
    return np.dtype([(name, torch.empty(0, dtype=x.dtype).numpy().dtype, x.shape[1:]) for name, x in fields.items()])


def packed(fields: dict[str, Tensor]) -> Tensor:
    """Fields [N, ...] of any dtypes as bytes side by side: uint8 [N, W]."""
    flat = (x.reshape(len(x), x.shape[1:].numel()).contiguous() for x in fields.values())
    return torch.cat([x.view(torch.uint8) for x in flat], dim=1)


def unpacked(rows: np.ndarray, layout: np.dtype) -> dict[str, np.ndarray]:
    """The inverse of `packed`: copies of the fields in uint8 [N, W]."""
    records = rows.view(layout)[:, 0]
    return {name: np.ascontiguousarray(records[name]) for name in layout.names or ()}
