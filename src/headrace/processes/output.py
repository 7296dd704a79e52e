"""Output to a terminal or a pipe, which may go away (the connection breaks, the window is closed, `| head` has read enough), be
stopped (Ctrl-S), or have a slow reader."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TextIO, cast

GONE = (errno.EPIPE, errno.EIO)  # of a write whose reader has gone: a pipe's, a terminal's
LIMIT = 1 << 20  # most characters that `BackgroundOutput` keeps; what is written beyond them is dropped

IDLE = 10.0  # seconds after the last text until the thread of a `BackgroundOutput` ends: a program may train many times


def show(text: str) -> None:
    """Print a text. Does nothing if the reader of standard output has gone."""
    tolerantly(lambda: print(text, flush=True), sys.stdout)


def show_result(text: str) -> None:
    """Print what a command is for. Does nothing if the reader of standard output has gone; raises `OSError` where it cannot be
    written for another reason, such as a full disk."""
    try:
        print(text, flush=True)
    except OSError as error:
        discard(sys.stdout)
        if error.errno not in GONE:
            raise OSError(error.errno, error.strerror, "standard output") from error


def tolerantly(write: Callable[[], object], stream: IO[str]) -> None:
    """Call `write`, which writes to `stream`. If its reader has gone, all that is written there from now on is discarded."""
    try:
        write()
    except OSError:
        discard(stream)


def discard(stream: IO[str]) -> None:
    """Discard all that is written to `stream` from now on."""
    with suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def show_without_source(show: Callable[..., None]) -> Callable[..., None]:
    """Show a `UserWarning` as one line, without file, line number and source. Warnings for developers go to `show`."""

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is UserWarning:
            print(f"warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return show_warning


def never_waiting(stream: TextIO) -> IO[str]:
    """`stream`, or a `BackgroundOutput` before it where writing may have to wait: for a terminal or the reader of a pipe."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return stream
    # Streams of another kind, as in notebooks, want to be written to themselves.
    direct = stat.S_ISREG(mode) or not isinstance(stream, io.TextIOWrapper)
    return stream if direct else cast(IO[str], BackgroundOutput(stream))


class BackgroundOutput:
    """A text stream that never waits: a thread writes to the descriptor of `stream`, past that stream's buffer and lock.

    Where the descriptor's reader has gone, all is dropped. Whatever is not here is that of `stream`.
    """

    def __init__(self, stream: TextIO, limit: int = LIMIT):
        stream.flush()
        self._stream, self._fd, self._limit = stream, stream.fileno(), limit
        self._texts: deque[str] = deque()
        self._characters = self._dropped = 0  # characters that are not written yet, and texts that had no room among them
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def write(self, text: str) -> int:
        """Have the text written. It is dropped where too much is kept already, and a line will say so."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
                self._thread.start()
            if self._characters + len(text) > self._limit:
                self._dropped += 1
            else:
                self._keep(text)
        return len(text)

    def drain(self, timeout: float) -> bool:
        """Wait until all is written, up to `timeout` seconds; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._characters, timeout)

    def _keep(self, text: str) -> None:
        self._texts.append(text)
        self._characters += len(text)
        self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._texts, IDLE):
                    self._thread = None  # `write` starts another
                    return
                text = "".join(self._texts)
                self._texts.clear()
            self._write(text)
            with self._changed:
                self._characters -= len(text)
                if self._dropped:
                    self._keep(f"\n({self._dropped:,} more texts are left out here: nobody read them)\n")
                    self._dropped = 0
                self._changed.notify_all()

    def _write(self, text: str) -> None:
        data = memoryview(text.encode(self._stream.encoding, errors="replace"))
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # somebody made the descriptor so, for all who have it
                select.select([], [self._fd], [], 1.0)
            except OSError:
                return
