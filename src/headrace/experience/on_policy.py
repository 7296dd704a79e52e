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
from headrace.accelerator.staging import torch_dtype
from headrace.experience.batch import Arrivals, Batch, Experience
from headrace.shm.primitives import Closed
from headrace.shm.trajectory_store import TrajectoryStore


class OnPolicyExperience(Experience):
    """Copies finished slots into preallocated batches and frees them at once. See `Experience`.

    A thread does it. For a learner on CUDA it fills one batch (page-locked memory, then the device, on a stream of its own)
    while the other is learned from, so a batch is at most one update older than necessary. On the CPU there is one batch only:
    copying takes a hundredth of the time of learning, and a second batch would only grow old while it waits.

    Args:
        store, slots_per_batch: B of a batch is `slots_per_batch` x C.
        collect: `collect(n)` steps the environments until n slots are finished, or gives up; there is no thread then, and nothing
            is done before it is asked for (serial). None: other processes step them.
        on_device: observations that policy workers left on the device.
        reported: the environments whose episodes are reported, where trajectories say whose they are (`env_index`); None: all.
    """

    def __init__(
        self,
        store: TrajectoryStore,
        slots_per_batch: int,
        device: str,
        collect: Callable[[int], None] | None = None,
        on_device: DeviceObservations | None = None,
        reported: range | None = None,
    ):
        prefetch, self._collect = collect is None, collect
        self._store, self._on_device, self._slots_per_batch = store, on_device, slots_per_batch
        if on_device is not None:
            try:
                on_device.allocate()
            except RuntimeError as error:
                warnings.warn(f"Observations cross the bus twice: no memory for them on {device} ({error})", stacklevel=2)
        count = 2 if prefetch and device != "cpu" else 1
        self._batches = [BatchMemory(store, slots_per_batch, device, reported=reported) for _ in range(count)]
        self._stream = None if device == "cpu" else torch.cuda.Stream(device)
        self._copied = Marker(device)
        self._free, self._filled = threading.Semaphore(count), threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._ended = False
        self._next = self._current = 0
        self._thread: threading.Thread | None = None
        if prefetch:
            self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
            self._thread.start()

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch; waits for it up to `timeout` seconds (serial: until `collect` returns). None if there is none yet, and
        at the end of the run. Raises what failed in the thread."""
        if self._collect is not None:
            self._collect(self._slots_per_batch)
            if self._store.qsize() < self._slots_per_batch:  # it gave up waiting; a batch is taken whole or not at all
                return None
            return self._batches[0].batch if self._fill(self._batches[0]) else None
        if not self._ended and not self._filled.acquire(timeout=timeout):
            return None
        if self._failure is not None:
            raise self._failure
        if self._ended:
            return None
        self._current, self._next = self._next, (self._next + 1) % len(self._batches)
        return self._batches[self._current].batch

    def release(self) -> None:
        """The learner has given its device all the work there is with the batch got last. When the device has done it, the memory
        is filled again."""
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
        self._filled.release()  # wakes the learner

    def _fill(self, memory: BatchMemory) -> bool:
        """Copy the next finished slots into `memory`, up to the device, and free them. False at the end of the run."""
        memory.used.wait()
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            from_host = []
            for place in range(self._slots_per_batch):
                try:
                    slot = self._store.take(timeout=None if self._thread else 0)
                except Closed:
                    return False
                if slot is None:
                    return False
                observations = self._on_device.find(slot) if self._on_device else None
                memory.copy_slot(place, slot, observations)
                if observations is None:
                    from_host.append(place)
                else:
                    self._copied.catch_up()  # others may write there as soon as the slot is free
                self._store.release(slot)
            memory.copy_to_device(from_host)
            self._copied.catch_up()
        return True


class BatchMemory:
    """Memory of one batch, for `slots_per_batch` slots side by side.

    On the CPU it is the batch itself. For CUDA (or `apart`, for tests) there are two: page-locked host memory, and the batch.
    """

    def __init__(
        self, store: TrajectoryStore, slots_per_batch: int, device: str, apart: bool = False, reported: range | None = None
    ):
        self._store, self._slots, self._reported = store, slots_per_batch, reported
        apart = apart or device != "cpu"
        host = {}
        for (name, array), field in zip(self._store.arrays.items(), self._store.fields.values(), strict=True):
            shape = (*array.shape[1 : -1 - len(field.shape)], slots_per_batch * self._store.C, *field.shape)
            host[name] = torch.zeros(shape, dtype=torch_dtype(array.dtype), pin_memory=device != "cpu")
        self._host = host
        self._arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in host.items()}
        self._pinned = host if apart else {}
        # Not zeroed: that would be work on another stream than the one that copies.
        self._data = {name: torch.empty_like(tensor, device=device) for name, tensor in host.items()} if apart else host
        self.used = Marker(device)  # when the device is past it, it does not read the batch any more

    @property
    def batch(self) -> Batch:
        """The batch that the copied slots make up."""
        env, of_reported = self._arrays.get("env_index"), True
        if env is not None and self._reported is not None:
            of_reported = (env >= self._reported.start) & (env < self._reported.stop)
        arrivals = Arrivals.of(self._arrays, of_reported)
        return Batch(self._data, self._host["version"], self._host["valid"], None, arrivals, self._host.get("behind"))

    def _columns(self, place: int) -> slice:
        return slice(place * self._store.C, (place + 1) * self._store.C)

    def copy_slot(self, place: int, slot: int, observations: dict[str, Tensor] | None) -> None:
        """Copy a slot to its place among `slots_per_batch`. `observations`: of rows 0 to T-1 by field, [T, C, ...], where they
        are on the device already."""
        T, columns = self._store.T, self._columns(place)
        for name, field in self._store.fields.items():
            array, to = self._store.arrays[name], self._arrays[name]
            if field.rows == "once":
                to[columns] = array[slot]
            elif observations and name in observations:
                self._data[name][:T, columns].copy_(observations[name], non_blocking=True)
                to[T, columns] = array[slot, T]
            else:
                to[:, columns] = array[slot]

    def copy_to_device(self, from_host: list[int]) -> None:
        """Copy to the device what is not there yet: of observations only row T, except at the places `from_host`."""
        T = self._store.T
        for name, tensor in self._pinned.items():
            data = self._data[name]
            if not name.startswith("obs/") or len(from_host) == self._slots:
                data.copy_(tensor, non_blocking=True)
                continue
            data[T].copy_(tensor[T], non_blocking=True)
            for columns in map(self._columns, from_host):  # rare: trajectories begun before the learner was restarted
                data[:T, columns].copy_(tensor[:T, columns], non_blocking=True)
