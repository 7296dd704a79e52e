"""`Connection`: a stream that is opened again whenever it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from headrace.transport.messages import ProtocolError, Refused
from headrace.transport.streams import Backoff, Stream, StreamSource, Unreachable

JOIN_TIMEOUT = 2.0  # seconds that `close` waits for the connection's thread

Event = Literal["up", "message", "down", "failed"]
Greet = Callable[[Stream], tuple[Any, Iterator[bytes]]]
Handle = Callable[[Event, Stream | None, Any], None]


class Connection:
    """A thread that opens a stream, passes on its messages, and opens a new stream when it has ended, until `close`.

    Args:
        greet: makes the handshake on a new stream. Returns its result, and an iterator over the messages that follow. Raises
            `Unreachable`, `Refused` or `ProtocolError` if the stream cannot be used.
        handle: called by the connection's thread with ("up", stream, result of the handshake), ("message", stream, message),
            ("down", stream, reason of its end), or, after a failed attempt, ("failed", None, reason). An error that it raises for
            a message ends the stream.
    """

    def __init__(self, source: StreamSource, greet: Greet, handle: Handle, name: str) -> None:
        self._source, self._greet, self._handle = source, greet, handle
        self._closed = threading.Event()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._closed.is_set():
            try:
                stream = self._stream = self._source.open(self._closed)
                if self._closed.is_set():
                    stream.close()
                    return
                result, messages = self._greet(stream)
            except (Unreachable, Refused, ProtocolError) as error:
                self._fail(str(error))
            except Exception as error:  # an error of gRPC's must not end the thread: its user would wait for ever
                self._fail(f"{type(error).__name__}: {error}")
            else:
                self._handle("up", stream, result)
                try:
                    for message in messages:
                        backoff.reset()
                        self._handle("message", stream, message)
                except ProtocolError as error:
                    stream.close(str(error))
                except Exception as error:  # as above
                    stream.close(f"{type(error).__name__}: {error}")
                stream.close()
                self._handle("down", stream, stream.ended)
            backoff.wait(self._closed)

    def _fail(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.close()
        self._handle("failed", None, reason)

    def close(self) -> None:
        self._closed.set()
        if self._stream is not None:
            self._stream.close()
        self._source.close()
        self._thread.join(JOIN_TIMEOUT)
