"""Anonymous shared memory that the kernel frees with its last user."""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.reduction
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import psutil

import headrace._native.ipc as native
from headrace.arrays import ArrayLayout, specs

MIB = 1 << 20


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


class Mapped:
    """An object with arrays that are views of segments. Other processes are given everything else, and make views of their own
    with `_map`."""

    def _map(self) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        def is_view(value: Any) -> bool:
            """An array, or a list or dictionary of arrays."""
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            return any(isinstance(part, np.ndarray) for part in parts)

        return {name: value for name, value in self.__dict__.items() if not is_view(value)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()


class Tables(Mapped):
    """Arrays in one segment, as attributes of this object. Raises `MemoryError` where the machine has not the memory."""

    PURPOSE: ClassVar[str]
    """What the memory is for, as its error says."""

    def _allocate(self, **arrays: tuple[tuple[int, ...], type[np.generic]]) -> None:
        """Make memory for arrays of these shapes and types, by their names."""
        self._layout = ArrayLayout(specs(**arrays))
        self._segment = Segment(self._layout.nbytes, purpose=self.PURPOSE)
        self._map()

    def _map(self) -> None:
        self.__dict__.update(self._layout.views(self._segment.buffer))


def _inherit_segment(cls: type[Segment], fd: Any) -> Segment:
    segment = cls.__new__(cls)
    native.Segment.__init__(segment, fd=fd.detach())
    return segment
