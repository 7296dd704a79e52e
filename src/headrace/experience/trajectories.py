"""Trajectories consumed once, in order: finished slots become batches for the learner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.sampling.exchange import LEARNER, LOOK_AROUND, Exchange
from headrace.sampling.ipc import Closed


@dataclass
class Batch:
    """Trajectories side by side. B = slots per batch x E."""

    fields: dict[str, Tensor]
    """Every field of the slab: [T+1, B, ...] or [T, B, ...] by its number of rows; `core` [B, S]."""


class TrajectoryBatches:
    """Copies finished slots into preallocated batches (pinned where the learner is on CUDA) and frees them at once.

    A thread does it. For a learner on CUDA it fills one batch while the other is learned from, so a batch is at most one update
    older than it had to be. On the CPU there is one batch only: copying takes a hundredth of the time of learning, and what
    waits in a second batch would just get older. With `collect` (serial) nothing is done before it is asked for.
    """

    def __init__(self, exchange: Exchange, slots_per_batch: int, device: str, collect: Callable[[int], None] | None):
        prefetch, self._collect = collect is None, collect
        self._exchange, self._slots_per_batch, self._device = exchange, slots_per_batch, device
        slab = exchange.slab
        B = slots_per_batch * slab.E

        def empty() -> dict[str, np.ndarray]:
            return {
                n: _pinned((*a.shape[1 : -1 - len(f.shape)], B, *f.shape), a.dtype, device != "cpu")
                for (n, a), f in zip(slab.arrays.items(), slab.fields.values(), strict=True)
            }

        self._buffers = [empty() for _ in range(2 if prefetch and device != "cpu" else 1)]
        self._free, self._filled = threading.Semaphore(len(self._buffers)), threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        if prefetch:
            self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
            self._thread.start()
        self._next = 0

    def get(self, waiting: Callable[[], None] = lambda: None) -> Batch | None:
        """The next batch; waits for it, calling `waiting` now and then. None at the end of the run."""
        if self._collect is not None:
            self._collect(self._slots_per_batch)
            return self._to_device(self._buffers[0]) if self._fill(self._buffers[0]) else None
        while not self._filled.acquire(timeout=LOOK_AROUND):
            waiting()
        if self._failure is not None:
            raise self._failure
        if self._ended:
            return None
        batch = self._to_device(self._buffers[self._next])
        self._next = (self._next + 1) % len(self._buffers)
        return batch

    def done(self) -> None:
        """The learner has finished with the batch it got last: its memory may be filled again."""
        if self._thread is not None:
            self._free.release()

    def metrics(self) -> dict[str, float]:
        """What there is to say about the experience itself: nothing."""
        return {}

    def _run(self) -> None:
        i = 0
        try:
            while True:
                self._free.acquire()
                if not self._fill(self._buffers[i]):
                    break
                i = (i + 1) % len(self._buffers)
                self._filled.release()
        except Exception as failure:  # handed to the learner, which raises it
            self._failure = failure
        self._ended = True
        self._filled.release()

    def _fill(self, batch: dict[str, np.ndarray]) -> bool:
        """Copy the next finished slots into `batch` and free them. False at the end of the run."""
        x, E = self._exchange, self._exchange.E
        arrays, fields = x.slab.arrays, x.slab.fields
        for i in range(self._slots_per_batch):
            slot = self._next_slot()
            if slot is None:
                return False
            columns = slice(i * E, (i + 1) * E)
            for name, field in fields.items():
                if field.rows == "once":
                    batch[name][columns] = arrays[name][slot]
                else:
                    batch[name][:, columns] = arrays[name][slot]
            x.slots.release(slot, LEARNER)
        return True

    def _next_slot(self) -> int | None:
        x = self._exchange
        while True:
            try:
                ticket = x.full.get(timeout=None if self._thread else 0)
            except Closed:
                return None
            if ticket is None:
                return None
            # A ticket of a worker that died meanwhile is refused: its slot was freed and may be somebody else's.
            if x.slots.transfer(ticket, LEARNER):
                return x.slots.slot_of(ticket)

    def _to_device(self, arrays: dict[str, np.ndarray]) -> Batch:
        tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
        if self._device != "cpu":
            tensors = {name: t.to(self._device, non_blocking=True) for name, t in tensors.items()}
        return Batch(tensors)


def _pinned(shape: tuple[int, ...], dtype: np.dtype, pin: bool) -> np.ndarray:
    """A zeroed array; page-locked where `pin`, so that copies to the GPU run beside the computation."""
    array = np.zeros(shape, dtype)
    return torch.from_numpy(array).pin_memory().numpy() if pin else array
