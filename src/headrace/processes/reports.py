"""Reports of child processes: JSON values, one a line, through a pipe.

The reader never waits: a child may be killed or stopped in the middle of a report.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any

READ_BYTES, READS = 1 << 16, 16
"""Most bytes of one system call, and most calls of one `read`: a child that reports without end must not keep the reader from the
others."""
MOST_BYTES = 1 << 30  # a longer line is no report


class ReportWriter:
    """The child's end of the pipe; its threads may share it. An argument of the child's process."""

    _lock = threading.Lock()  # one for a process, which has one such end. So that it is not pickled, it is the class's.

    def __init__(self, pipe: Connection):
        self._pipe = pipe

    def send(self, report: Any) -> None:
        """Send a JSON value, in which there may be tuples, NaN, infinities and NumPy's numbers and arrays; the reader gets lists
        and Python's numbers. Waits while the pipe is full. Raises `TypeError` for anything else, and `OSError` if nobody reads
        any more."""
        left = memoryview(json.dumps(report, default=_plain).encode() + b"\n")
        with self._lock:
            while left:
                left = left[os.write(self._pipe.fileno(), left) :]

    def close(self) -> None:
        self._pipe.close()


def _plain(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        raise TypeError(f"a child process cannot report a {type(value).__name__}")
    return value.tolist()


class ReportReader:
    """The parent's end."""

    def __init__(self, pipe: Connection):
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._buffer = bytearray()
        self.ended = False  # nothing more will come: the child has ended, or has closed its end

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`: there is something to read, or the end."""
        return self._pipe.fileno()

    def read(self) -> list[Any]:
        """The reports that have arrived whole since the last call; never waits. Raises `ValueError` for what is no report, and
        then reads no more."""
        arrived = bytearray()
        for _ in range(READS):
            try:
                data = b"" if self.ended else os.read(self._pipe.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            self.ended = not data
            if self.ended:
                break
            arrived += data
        if b"\n" not in arrived:  # what a killed child left half written stays there
            self._buffer += arrived
            if len(self._buffer) > MOST_BYTES:
                raise self._unreadable(f"a line of more than {MOST_BYTES:,} bytes")
            return []
        *lines, self._buffer = (self._buffer + arrived).split(b"\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise self._unreadable(str(error)) from error

    def _unreadable(self, why: str) -> ValueError:
        self.ended = True
        self._buffer.clear()
        return ValueError(f"what it reports cannot be read ({why}); nothing more is read from it")

    def close(self) -> None:
        self._pipe.close()


def report_pipe() -> tuple[ReportReader, ReportWriter]:
    """Both ends of a new pipe."""
    here, there = multiprocessing.Pipe(duplex=False)
    return ReportReader(here), ReportWriter(there)
