"""Streams of messages in both directions between two processes: each is one gRPC call, which a `Caller` begins.

There is no generated code: messages are sent as plain bytes. Every message that expects an answer has a deadline; a stream ends
if an answer is late.
"""

from __future__ import annotations

import queue
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Protocol

import grpc

from headrace.transport.credentials import Credentials, read_file
from headrace.transport.failures import TlsFlags, failure
from headrace.transport.messages import LARGEST_MESSAGE

KEEPALIVE = 10.0  # seconds without a message after which gRPC pings the other side, and seconds that the answer may take
SLOW = 10.0  # seconds without an answer after which `Stream.on_slow` is called
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds between two attempts to connect: doubled from the first to the longest, plus up to a quarter at random."""


@dataclass(frozen=True)
class Service:
    """One kind of stream, such as that between a run and environment servers."""

    method: str  # the method's path in gRPC
    listener: str  # name of the listening program, for messages
    busy: str = "nobody waits for a stream"  # why an `Acceptor` sends a caller away


@dataclass(frozen=True)
class Endpoint:
    """One side of a service's streams."""

    service: Service
    address: str  # the listener's, see `check_address`
    own: Credentials
    largest_received: int  # most bytes of a received message
    compress: bool = False  # compress sent messages (gzip)

    def options(self) -> list[tuple[str, int]]:
        keepalive = int(KEEPALIVE * 1000)
        return [
            ("grpc.max_receive_message_length", self.largest_received),
            ("grpc.max_send_message_length", LARGEST_MESSAGE),
            ("grpc.max_metadata_size", 16 << 10),
            ("grpc.default_compression_algorithm", grpc.Compression.Gzip if self.compress else grpc.Compression.NoCompression),
            ("grpc.use_local_subchannel_pool", 1),  # a connection for each stream
            ("grpc.keepalive_time_ms", keepalive),
            ("grpc.keepalive_timeout_ms", keepalive),
            ("grpc.http2.ping_timeout_ms", keepalive),  # where the system still takes what a process that hangs is sent
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # a listener ends the connection if pings come more often than this (by default, every five minutes)
            ("grpc.http2.min_ping_interval_without_data_ms", keepalive // 2),
            ("grpc.enable_http_proxy", 0),
        ]


class Backoff:
    """Pauses between attempts to connect."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with a short pause again, after a successful connection."""
        self._pause = FIRST_PAUSE

    def wait(self, stopped: threading.Event) -> None:
        """Pause, or return as soon as `stopped` is set."""
        stopped.wait(self._pause * (1 + random.random() / 4))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


# -- one stream -------------------------------------------------------------------------------------------------------


@dataclass
class _Awaited:
    """An answer that has not arrived, and the reason of the stream's end if it is late."""

    since: float
    seconds: float
    otherwise: str
    slow: bool = False  # `Stream.on_slow` was called


class Stream:
    """One stream. Any thread may call `send` and `request`; one thread iterates over the received messages.

    Iteration ends with the stream; `ended` then says why.
    """

    def __init__(self, messages: Iterator[bytes], cancel: Callable[[], Any]) -> None:
        """`messages`: those received. `cancel`: ends the stream from this side."""
        self.ended = ""
        self.hopeless = False  # the two sides do not fit together: trying again is useless until one of them is restarted
        self.on_slow: Callable[[float], None] = lambda seconds: None
        """Called once for a slow answer, with the seconds since its request."""
        self.on_gone: Callable[[], None] = lambda: None  # called by a thread of gRPC's when the other side has gone
        self.timeout = 60.0  # seconds that an answer to `request` may take
        self._messages, self._cancel = messages, cancel
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._awaited: _Awaited | None = None

    def send(self, message: bytes) -> None:
        """Send a message that expects no answer."""
        self._outbox.put(message)

    def request(self, message: bytes) -> None:
        """Send a message that expects an answer within `timeout`."""
        self.expect(self.timeout, f"no answer for {self.timeout:g} s")
        self._outbox.put(message)

    def expect(self, seconds: float, otherwise: str) -> None:
        """End the stream, for the reason `otherwise`, if no message arrives within `seconds`."""
        self._awaited = _Awaited(monotonic(), seconds, otherwise)
        _watch(self)

    def __iter__(self) -> Iterator[bytes]:
        answered = False
        try:
            for message in self._messages:
                self._awaited, answered = None, True
                yield message
            self._end("the other side ended the stream")
        except Exception as error:
            self._end(*self._failure(error, answered))
        finally:
            self._awaited = None

    def _failure(self, error: Exception, answered: bool) -> tuple[str, bool]:
        """See `failures.failure`. In a listener, gRPC raises a bare exception when the caller is gone."""
        return f"the stream was cut ({type(error).__name__})", False

    def _end(self, why: str, hopeless: bool = False) -> None:
        if not self.ended:
            self.ended, self.hopeless = why, hopeless

    def outgoing(self) -> Iterator[bytes]:
        """For gRPC: the messages to send, until `finish`."""
        while (message := self._outbox.get()) is not None:
            yield message

    def finish(self) -> None:
        """Send no more. The stream ends when the other side has called `finish`, too."""
        self._outbox.put(None)

    def gone(self) -> None:
        """For gRPC: the other side has gone."""
        self.finish()
        self.on_gone()

    def close(self, why: str = "closed") -> None:
        """End the stream at once."""
        self._end(why)
        self.finish()
        self._cancel()

    def close_if_late(self) -> None:
        """End the stream if its answer is late."""
        awaited = self._awaited  # read once: another thread may reset it meanwhile
        if awaited is None:
            return
        waited = monotonic() - awaited.since
        if waited > awaited.seconds:
            self.close(awaited.otherwise)
        elif waited > SLOW and not awaited.slow:
            awaited.slow = True
            self.on_slow(waited)


class StreamSource(Protocol):
    """Opens streams by calling an address (`Caller`) or by listening at one (`Acceptor`)."""

    def open(self, closed: threading.Event) -> Stream:
        """The next stream. Raises `Unreachable` if `closed` is set before there is one."""

    def close(self) -> None:
        """Open no more streams."""


class Unreachable(Exception):
    """No connection to the other side; the message is the reason. `hopeless`: see `Stream`."""

    def __init__(self, reason: str, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.hopeless = hopeless


class Caller:
    """Dials a listener. See `StreamSource`. `flags`: names of the TLS flags, for messages."""

    def __init__(self, endpoint: Endpoint, flags: TlsFlags) -> None:
        self.endpoint, self.flags = endpoint, flags

    def open(self, closed: threading.Event | None = None) -> Stream:
        """A stream; gRPC connects in the background."""
        return _Dialled(self)

    def close(self) -> None:
        """Nothing to do: nothing is kept between two streams."""


class _Dialled(Stream):
    """The caller's side of a stream."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(iter(()), lambda: None)
        self._caller = caller
        to = caller.endpoint
        if to.own.ca is None:
            self._channel = grpc.insecure_channel(to.address, to.options())
        else:
            tls = grpc.ssl_channel_credentials(read_file(to.own.ca))
            self._channel = grpc.secure_channel(to.address, tls, to.options())
        call = self._channel.stream_stream(to.service.method)(self.outgoing(), metadata=to.own.metadata)
        self._messages, self._cancel = call, call.cancel
        if not call.add_callback(self.gone):
            self.gone()

    def _failure(self, error: Exception, answered: bool) -> tuple[str, bool]:
        if not isinstance(error, grpc.RpcError):
            return super()._failure(error, answered)
        to = self._caller.endpoint
        return failure(error, to.service.listener, answered, to.own.ca is not None, self._caller.flags)

    def close(self, why: str = "closed") -> None:
        super().close(why)
        self._channel.close()


# -- deadlines --------------------------------------------------------------------------------------------------------

_watched: weakref.WeakSet[Stream] = weakref.WeakSet()
_watcher: threading.Thread | None = None
_watching = threading.Lock()


def _watch(stream: Stream) -> None:
    """Let this process's one watcher thread end the stream if an answer is late."""
    global _watcher
    if stream in _watched:
        return
    with _watching:
        _watched.add(stream)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_watch_streams, name="stream-deadlines", daemon=True)
            _watcher.start()


def _watch_streams() -> None:
    while True:
        sleep(0.25)
        with _watching:
            streams = list(_watched)
        while streams:  # no reference to a stream is kept during the pause
            streams.pop().close_if_late()
