"""Queues, words and slot credits between processes that may be killed at any instruction.

Thin classes over `headrace._native.ipc` (contracts: `native/ipc/*.h`) that child processes can be given as arguments:

    queue = Queue(64)
    multiprocessing.get_context("spawn").Process(target=work, args=(queue,)).start()

Each has a `Segment` of its own, or lies at a multiple of 64 bytes in one that the caller names: a process can be handed only so
many. A process killed at any instruction leaves nothing behind, neither memory nor a lock, and nobody
waits for it. Waits let other threads run and are ended by Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import headrace._native.ipc as native
from headrace.shm.segment import Segment

Closed = native.Closed  # raised by a queue that was closed: the run is ending


def _attach(cls: Any, *arguments: Any) -> Any:
    """A `cls` on what another process made: the native constructor without the Python one."""
    self = cls.__new__(cls)
    cls.__base__.__init__(self, *arguments)
    return self


def reduced(self: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`__reduce__` of these classes and the weight store: a process that is started gets the same memory."""
    return _attach, (type(self), self.segment, self.offset, len(self) if isinstance(self, Words) else None)


class Queue(native.Queue):
    """A bounded queue of int32 for any number of producers and consumers; first in, first out.

    `capacity` is rounded up to a power of two. After `close()` puts raise `Closed` at once and gets when nothing is left.
    """

    def __init__(self, capacity: int, segment: Segment | None = None, offset: int = 0) -> None:
        super().__init__(segment or Segment(self.bytes(capacity), purpose="a queue"), offset, capacity)

    def contents(self) -> list[int]:
        """What is in the queue, which stays as it is. For runs in one process."""
        found = [number for _ in range(self.qsize()) if (number := self.get(timeout=0)) is not None]
        for number in found:
            self.put(number, timeout=0)
        return found

    __reduce__ = reduced


class Words(native.Words):
    """`n` words of uint32, 0 at first, each on its own cache line; every change wakes those who wait for that word."""

    def __init__(self, n: int) -> None:
        super().__init__(Segment(self.bytes(n), purpose="words"), 0, n)

    __reduce__ = reduced


class Slots(native.Slots):
    """The owners of `n` slots (at most 32768): 0, nobody, at first; else a number 1 ... 65535 that stands for a process.

    A slot goes from owner to owner by single atomic steps. A rollout worker `acquire`s it, fills it and puts its
    `ticket` into a queue; the learner, with the ticket, `transfer`s it to itself and `release`s it when it has copied
    it. When a process has ended its slots are `reclaim`ed; a ticket it left in a queue is refused by `transfer`.
    """

    def __init__(self, n: int, segment: Segment | None = None, offset: int = 0) -> None:
        super().__init__(segment or Segment(self.bytes(n), purpose="a table of slots"), offset, n)

    __reduce__ = reduced
