"""Observations that policy workers keep on the device for the learner.

Where policy workers and the learner share a GPU, an observation then crosses the bus once, to be acted on, instead of twice.
The trajectory store in host memory stays the truth: this is only a second copy of rows 0 to T-1 of its observations. Every row
has a *stamp*: the generation of the device memory that holds it. If a stamp differs from the learner's generation (the learner
was restarted, or a policy worker could not reach the memory), the learner copies that trajectory from the host. So each process
may die at any moment. Row T has not been acted on when the learner takes a trajectory, so it comes from the host too.

The learner allocates; policy workers find its memory by a handle of the CUDA driver (64 bytes in shared memory, nothing pickled)
and look for a new one when the generation has changed. On the CPU the memory is shared memory, and everything else the same.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.accelerator import cuda_memory
from headrace.arrays import ArrayLayout, ArraySpec
from headrace.shm.primitives import Words
from headrace.shm.segment import Mapped, Segment
from headrace.shm.trajectory_store import TrajectoryStore

if TYPE_CHECKING:  # rollout workers, which are given this too, never import torch
    from torch import Tensor

_NOW, _LAST = 0, 1  # words: the generation that may be attached to (0: none), and the highest there has been


class DeviceObservations(Mapped):
    """Made by the parent, passed to every child."""

    def __init__(self, store: TrajectoryStore, device: str):
        self.device, self._slots, self._T = device, store.num_slots, store.T
        observed = {name: field for name, field in store.fields.items() if name.startswith("obs/")}
        rows = {name: ArraySpec((self._slots * self._T, store.C, *f.shape), f.dtype) for name, f in observed.items()}
        self._layout = ArrayLayout(rows, alignment=256)
        self._words = Words(2)
        self._segment = Segment(cuda_memory.HANDLE_BYTES + 4 * self._slots * self._T)
        self._shared = Segment(self._layout.nbytes, purpose="observations left for the learner") if device == "cpu" else None
        self._map()

    def _map(self) -> None:
        """Start without device memory in this process."""
        self._handle = self._segment.ndarray(np.uint8, cuda_memory.HANDLE_BYTES)
        self._stamps = self._segment.ndarray(np.int32, (self._slots, self._T), cuda_memory.HANDLE_BYTES)
        self._generation = 0
        self._rows: dict[str, Tensor] = {}  # by field, [slots T, C, ...]; empty where the memory could not be reached

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_rows": {}}

    # -- the learner --------------------------------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Make the memory; policy workers leave observations in it from now on.

        Raises RuntimeError if the device has not enough; observations then go on crossing the bus twice.
        """
        self._words.store(_NOW, 0)  # policy workers find no handle until the new one is written
        if self._shared is None:
            memory, handle = cuda_memory.allocate(self._layout.nbytes, self.device)
            self._handle[:] = np.frombuffer(handle, np.uint8)
        else:
            memory = _host_memory(self._shared)
        self._divide(memory)
        self._generation = self._words.load(_LAST) + 1
        self._words.store(_LAST, self._generation)
        self._words.store(_NOW, self._generation)

    def find(self, slot: int) -> dict[str, Tensor] | None:
        """Rows 0 to T-1 of the observations of a finished slot, by field [T, C, ...]; None unless all of them are here."""
        if not self._generation or (self._stamps[slot] != self._generation).any():
            return None
        return {name: rows[slot * self._T : (slot + 1) * self._T] for name, rows in self._rows.items()}

    # -- policy workers -----------------------------------------------------------------------------------------------------

    def leave(self, slots: np.ndarray, rows: np.ndarray, obs: dict[str, Tensor]) -> int:
        """Copy observations {field: [n, C, ...]} to rows `rows` (int [n]) of `slots` (int [n]).

        Returns the stamp for `mark`, which is to be called when the device has done it.
        """
        now = self._words.load(_NOW)
        if now != self._generation:
            self._attach(now)
        if not self._rows:
            return 0
        import torch

        from headrace.accelerator.staging import to_device

        index = to_device(torch.from_numpy(slots.astype(np.int64) * self._T + rows), self.device)
        for name, tensor in obs.items():
            self._rows[name].index_copy_(0, index, tensor)
        return self._generation

    def mark(self, slots: np.ndarray, rows: np.ndarray, stamp: int) -> None:
        """Say where these rows are: in the memory of generation `stamp`, or (0) only on the host."""
        self._stamps[slots, rows] = stamp

    def _attach(self, generation: int) -> None:
        self._rows, self._generation = {}, generation
        handle = self._handle.tobytes()
        if generation == 0 or self._words.load(_NOW) != generation:  # changed meanwhile: looked at again with the next batch
            self._generation = 0
            return
        try:
            if self._shared is None:
                self._divide(cuda_memory.open_handle(handle, self._layout.nbytes, self.device))
            else:
                self._divide(_host_memory(self._shared))
        except RuntimeError as error:
            text = f"Observations cross the bus twice: the learner's memory on {self.device} cannot be reached ({error})"
            warnings.warn(text, stacklevel=2)

    def _divide(self, memory: Tensor) -> None:
        from headrace.accelerator.staging import torch_dtype

        for name, part in self._layout.slices().items():
            array = self._layout.arrays[name]
            self._rows[name] = memory[part].view(torch_dtype(array.dtype)).view(array.shape)


def _host_memory(segment: Segment) -> Tensor:
    import torch

    return torch.from_numpy(segment.ndarray(np.uint8, segment.nbytes))
