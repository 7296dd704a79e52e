"""Shared memory and the queues, words, boards and credits that live in it.

Thin classes over `headrace._native.ipc` (contracts: `native/ipc/*.h`) which child processes can be given as arguments:

    queue = Queue(64)
    multiprocessing.get_context("spawn").Process(target=work, args=(queue,)).start()

Everything lives in a `Segment`, anonymous memory that the kernel frees with its last user. An object makes its own
segment, or shares one: `Queue(64, segment, offset)`, with `Queue.bytes(64)` bytes at an offset that is a multiple of 64.
Nothing is left behind by a process killed at any instruction, neither memory nor a lock, and nobody waits for it. Waits
let other threads run and are ended by Ctrl-C.
"""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.reduction
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil

import headrace._native.ipc as native

Closed = native.Closed
T = TypeVar("T", bound="native.Queue | native.Words | native.Board | native.Slots")

MIB = 1 << 20


def align(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 64, the alignment of everything in a segment."""
    return (nbytes + 63) // 64 * 64


def available_memory() -> int:
    """Bytes this process may still use: what the machine has free, or less where its control group is limited."""
    available: int = psutil.virtual_memory().available
    v2, v1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
    if (v2 / "memory.max").exists():
        limit, usage, statistics = v2 / "memory.max", v2 / "memory.current", v2 / "memory.stat"
    elif (v1 / "memory.limit_in_bytes").exists():
        limit, usage, statistics = v1 / "memory.limit_in_bytes", v1 / "memory.usage_in_bytes", v1 / "memory.stat"
    else:
        return available
    allowed = limit.read_text().strip()
    if allowed != "max":
        used = dict(line.split() for line in statistics.read_text().splitlines())
        # Cached files count as used, but the kernel gives them up first.
        available = min(available, int(allowed) - int(usage.read_text()) + int(used.get("inactive_file", 0)))
    return max(available, 0)


class Segment(native.Segment):
    """Anonymous shared memory (memfd) of `nbytes` bytes, zero at first; supports the buffer protocol.

    It has no name, is not limited by the size of /dev/shm, and is freed by the kernel with its last user, however that
    ends. It can be an argument of a process that `multiprocessing` starts, and is not picklable otherwise.

    Raises:
        MemoryError: this machine or control group has not that much memory left; says how much it has.
        OSError: the kernel refused the size, or file descriptors ran out.
    """

    def __init__(self, nbytes: int, *, purpose: str = "shared memory") -> None:
        if nbytes < 1:
            raise ValueError(f"{purpose}: {nbytes} bytes")
        available = available_memory()
        if nbytes > available:
            raise MemoryError(f"{purpose} needs {nbytes / MIB:,.0f} MiB; {available / MIB:,.0f} MiB are available")
        super().__init__(nbytes)

    def ndarray(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
        """A view of the memory from byte `offset` on; keeps the segment alive. Raises ValueError where it does not fit."""
        return np.ndarray(shape, dtype, buffer=self.buffer, offset=offset)

    def __reduce__(self) -> tuple[Callable[..., Segment], tuple[Any, ...]]:
        if multiprocessing.context.get_spawning_popen() is None:
            raise TypeError("a Segment can only be pickled as an argument of a process that is being started")
        return _inherit_segment, (type(self), multiprocessing.reduction.DupFd(self.fd))


def _inherit_segment(cls: type[Segment], fd: Any) -> Segment:
    segment = cls.__new__(cls)
    native.Segment.__init__(segment, fd=fd.detach())
    return segment


def _attach(cls: type[T], native_class: Any, *args: Any) -> T:
    """A `cls` on what another process made: the native constructor without the Python one."""
    self: T = cls.__new__(cls)  # type: ignore[call-overload]
    native_class.__init__(self, *args)
    return self


def _place(segment: Segment | None, nbytes: int, purpose: str) -> Segment:
    return Segment(nbytes, purpose=purpose) if segment is None else segment


class Queue(native.Queue):
    """A bounded queue of int32 for any number of producers and consumers; first in, first out.

    `capacity` is rounded up to a power of two. After `close()` puts raise `Closed` at once and gets when nothing is left.
    """

    def __init__(self, capacity: int, segment: Segment | None = None, offset: int = 0) -> None:
        super().__init__(_place(segment, self.bytes(capacity), "a queue"), offset, capacity)

    def __reduce__(self) -> tuple[Callable[..., Queue], tuple[Any, ...]]:
        return _attach, (type(self), native.Queue, self.segment, self.offset, None)


class Words(native.Words):
    """`n` words of uint32, 0 at first, each on its own cache line; every change wakes those who wait for that word."""

    def __init__(self, n: int, segment: Segment | None = None, offset: int = 0) -> None:
        super().__init__(_place(segment, self.bytes(n), "words"), offset, n)

    def __reduce__(self) -> tuple[Callable[..., Words], tuple[Any, ...]]:
        return _attach, (type(self), native.Words, self.segment, self.offset, len(self))


class Board(native.Board):
    """The newest of a series of blobs of `nbytes` bytes, with its version: one writer, any number of readers."""

    def __init__(self, nbytes: int, segment: Segment | None = None, offset: int = 0) -> None:
        super().__init__(_place(segment, self.bytes(nbytes), "a board"), offset, nbytes)

    def __reduce__(self) -> tuple[Callable[..., Board], tuple[Any, ...]]:
        return _attach, (type(self), native.Board, self.segment, self.offset, None)


class Slots(native.Slots):
    """The owners of `n` slots (at most 32768): 0, nobody, at first; else a number 1 ... 65535 that stands for a process.

    A slot goes from owner to owner by single atomic steps. A rollout worker `acquire`s it, fills it and puts its
    `ticket` into a queue; the learner, with the ticket, `transfer`s it to itself and `release`s it when it has copied
    it. When a process has ended its slots are `reclaim`ed; a ticket it left in a queue is refused by `transfer`.
    """

    def __init__(self, n: int, segment: Segment | None = None, offset: int = 0) -> None:
        super().__init__(_place(segment, self.bytes(n), "a table of slots"), offset, n)

    def __reduce__(self) -> tuple[Callable[..., Slots], tuple[Any, ...]]:
        return _attach, (type(self), native.Slots, self.segment, self.offset, None)
