"""Reports of child processes to the supervisor, which waits for nobody: a child may be killed or stopped in the middle of one.

Reports are pickled, as `multiprocessing` does it: the pipe has no name, and both its ends are processes of this run. Nothing from
a disk or a network comes this way.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any

_LENGTH = struct.Struct("<Q")
READ_BYTES, READS = 1 << 16, 16
"""Most bytes of one system call, and most calls for one child at a time: one that reports without end must not keep the
supervisor from the others."""
MOST_BYTES = 1 << 30
"""A report that is said to be longer is none."""


class ReportWriter:
    """The child's end of the pipe; its threads may share it. An argument of the child's process."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_pipe": self._pipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_pipe"])  # type: ignore[misc]

    def send(self, report: Any) -> None:
        """Report something that can be pickled. Waits while the pipe is full; raises OSError if nobody reads any more."""
        data = pickle.dumps(report)
        left = memoryview(_LENGTH.pack(len(data)) + data)
        with self._lock:
            while left:
                left = left[os.write(self._pipe.fileno(), left) :]

    def close(self) -> None:
        """Close this end."""
        self._pipe.close()


class ReportReader:
    """The supervisor's end."""

    def __init__(self, pipe: Connection):
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._buffer = bytearray()
        self.ended = False
        """Nothing more will come: the child has ended, or has closed its end."""

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`: there is something to read, or the end."""
        return self._pipe.fileno()

    def read(self) -> list[Any]:
        """The reports that have arrived whole since the last call; never waits. Raises `ValueError` for what is no report, and
        then reads no more."""
        for _ in range(READS):
            if self.ended or not self._read_some():
                break
        reports = []
        while (data := self._next()) is not None:
            try:
                reports.append(pickle.loads(data))
            except Exception as error:
                raise self._unreadable(f"{type(error).__name__}: {error}") from error
        return reports

    def _read_some(self) -> bool:
        """Move what is in the pipe to the buffer; False if there is nothing at this moment."""
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        self._buffer += data
        self.ended = not data
        return True

    def _next(self) -> bytes | None:
        """The next whole report in the buffer. What a killed child left half written stays there for ever."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MOST_BYTES:
            raise self._unreadable(f"{length:,} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return data

    def _unreadable(self, why: str) -> ValueError:
        self.ended = True
        self._buffer.clear()
        return ValueError(f"what it reports cannot be read ({why}); nothing more is read from it")

    def close(self) -> None:
        """Close this end."""
        self._pipe.close()


def report_pipe() -> tuple[ReportReader, ReportWriter]:
    """Both ends of a new pipe."""
    here, there = multiprocessing.Pipe(duplex=False)
    return ReportReader(here), ReportWriter(there)
