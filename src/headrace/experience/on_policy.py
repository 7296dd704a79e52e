"""Trajectories consumed once, in order: finished slots become batches for the learner."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from headrace.accelerator.device_observations import DeviceObservations
from headrace.accelerator.graphs import Marker
from headrace.experience.batch import Arrivals, Batch, ConsumedOnce
from headrace.shm.primitives import Closed
from headrace.shm.trajectory_store import TrajectoryStore


class OnPolicyExperience(ConsumedOnce):
    """Copies finished slots into preallocated batches and frees them at once.

    A thread does it. For a learner on CUDA it fills one batch (page-locked memory, then the device, on a stream of its own)
    while the other is learned from, so a batch is at most one update older than it had to be. On the CPU there is one batch
    only: copying takes a hundredth of the time of learning, and what waits in a second batch would just get older. With
    `collect` (serial) nothing is done before it is asked for.
    """

    def __init__(
        self,
        store: TrajectoryStore,
        slots_per_batch: int,
        device: str,
        collect: Callable[[int], None] | None = None,
        on_device: DeviceObservations | None = None,
    ):
        prefetch, self._collect = collect is None, collect
        self._store, self._on_device, self._slots_per_batch = store, on_device, slots_per_batch
        if on_device is not None:
            try:
                on_device.allocate()
            except RuntimeError as error:
                warnings.warn(f"Observations cross the bus twice: no memory for them on {device} ({error})", stacklevel=2)
        count = 2 if prefetch and device != "cpu" else 1
        self._batches = [_Memory(store, slots_per_batch, device) for _ in range(count)]
        self._stream = None if device == "cpu" else torch.cuda.Stream(device)
        self._arrived = Marker(device)
        self._free, self._filled = threading.Semaphore(count), threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._ended = False
        self._next = self._current = 0
        self._thread: threading.Thread | None = None
        if prefetch:
            self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
            self._thread.start()

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch; waits for it up to `timeout` seconds. None if there is none yet, and at the end of the run."""
        if self._collect is not None:
            self._collect(self._slots_per_batch)
            if self._store.qsize() < self._slots_per_batch:  # it gave up waiting; a batch is taken whole or not at all
                return None
            return self._batches[0].batch if self._fill(self._batches[0]) else None
        if not self._filled.acquire(timeout=timeout):
            return None
        if self._failure is not None:
            raise self._failure
        if self._ended:
            return None
        self._current, self._next = self._next, (self._next + 1) % len(self._batches)
        return self._batches[self._current].batch

    def release(self) -> None:
        """The learner has given its device all the work there is with the batch it got last: behind that its memory may be
        filled again."""
        self._batches[self._current].used.set()
        if self._thread is not None:
            self._free.release()

    def _run(self) -> None:
        i = 0
        try:
            while True:
                self._free.acquire()
                if not self._fill(self._batches[i]):
                    break
                i = (i + 1) % len(self._batches)
                self._filled.release()
        except Exception as failure:  # handed to the learner, which raises it
            self._failure = failure
        self._ended = True
        self._filled.release()

    def _fill(self, memory: _Memory) -> bool:
        """Copy the next finished slots into `memory`, up to the device, and free them. False at the end of the run."""
        memory.used.wait()
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            missing = []
            for i in range(self._slots_per_batch):
                try:
                    slot = self._store.take(timeout=None if self._thread else 0)
                except Closed:
                    return False
                if slot is None:
                    return False
                left = self._on_device.find(slot) if self._on_device else None
                memory.take(i, slot, left)
                if left is None:
                    missing.append(i)
                else:
                    self._wait()  # others may write there as soon as the slot is free
                self._store.release(slot)
            memory.send(missing)
            self._wait()
        return True

    def _wait(self) -> None:
        self._arrived.set()
        self._arrived.wait()


class _Memory:
    """Memory of one batch: on the CPU the batch itself; for CUDA (or `apart`, for tests) page-locked memory, and the batch."""

    def __init__(self, store: TrajectoryStore, slots_per_batch: int, device: str, apart: bool = False):
        self._store, self._slots = store, slots_per_batch
        apart = apart or device != "cpu"
        host = {}
        for (name, array), field in zip(self._store.arrays.items(), self._store.fields.values(), strict=True):
            shape = (*array.shape[1 : -1 - len(field.shape)], slots_per_batch * self._store.C, *field.shape)
            host[name] = torch.zeros(shape, dtype=torch.from_numpy(array[:0]).dtype, pin_memory=device != "cpu")
        self._arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in host.items()}
        self._pinned = host if apart else {}
        # Not zeroed: that would be work on another stream than the one that copies.
        self._there = {name: torch.empty_like(tensor, device=device) for name, tensor in host.items()} if apart else host
        self._host = host
        self.used = Marker(device)
        """Behind it the batch is not read any more."""

    @property
    def batch(self) -> Batch:
        """What was filled in."""
        arrivals = Arrivals.of(*(self._arrays[name] for name in ("valid", "episode_return", "episode_length")))
        return Batch(self._there, self._host["version"], self._host["valid"], None, arrivals)

    def _columns(self, i: int) -> slice:
        return slice(i * self._store.C, (i + 1) * self._store.C)

    def take(self, i: int, slot: int, left: dict[str, Tensor] | None) -> None:
        """Copy a slot to place i. `left`: rows 0 to T-1 of its observations, where they are on the device already."""
        T, columns = self._store.T, self._columns(i)
        for name, field in self._store.fields.items():
            array, to = self._store.arrays[name], self._arrays[name]
            if field.rows == "once":
                to[columns] = array[slot]
            elif left and name in left:
                self._there[name][:T, columns].copy_(left[name], non_blocking=True)
                to[T, columns] = array[slot, T]
            else:
                to[:, columns] = array[slot]

    def send(self, missing: list[int]) -> None:
        """Copy to the device what is not there: all fields, but observations of the places `missing` and row T only."""
        T = self._store.T
        for name, tensor in self._pinned.items():
            there = self._there[name]
            if not name.startswith("obs/") or len(missing) == self._slots:
                there.copy_(tensor, non_blocking=True)
                continue
            there[T].copy_(tensor[T], non_blocking=True)
            for columns in map(self._columns, missing):  # rare: trajectories begun before the learner was restarted
                there[:T, columns].copy_(tensor[:T, columns], non_blocking=True)
