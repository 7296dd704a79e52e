"""Listening for streams: `Listener` answers each stream, `Acceptor` gives each to a thread that waits in `open`."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any
from urllib.parse import unquote

import grpc

from headrace.config import ConfigError
from headrace.transport.credentials import read_file
from headrace.transport.streams import Endpoint, Stream, Unreachable

MOST_NAMED = 100  # machines whose calls were rejected that a user is told of


class Listener:
    """Listens for streams of a service, and answers each in a thread of its own.

    Callers without the token are rejected before any of their messages is read.

    Args:
        answer: returns the messages to send on a stream. Raises `Busy` to send the caller away.
        streams: most streams at a time.
        share_port: other processes may listen at the same address; the system distributes callers among them.
        say: gets a text for the user, once for each machine whose calls are rejected.

    Raises `ConfigError` if it cannot listen, or if other machines can reach the address and there is no token.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        answer: Callable[[Stream], Iterator[bytes]],
        *,
        streams: int,
        share_port: bool = False,
        say: Callable[[str], object] = warnings.warn,
    ) -> None:
        address, own = endpoint.address, endpoint.own
        own.check_may_listen(address)
        self._own, self._answer, self._name, self._say = own, answer, endpoint.service.listener, say
        self._rejected: set[str] = set()  # machines, of which the user knows
        service, _, method = endpoint.service.method.strip("/").partition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._session)
        self._server = grpc.server(
            _Threads(),
            handlers=(grpc.method_handlers_generic_handler(service, {method: handler}),),
            options=[*endpoint.options(), ("grpc.so_reuseport", int(share_port))],
            maximum_concurrent_rpcs=streams,
        )
        try:
            if own.cert is None or own.key is None:
                self.port = self._server.add_insecure_port(address)
            else:
                pair = (read_file(own.key), read_file(own.cert))
                self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            why = "another program listens there, or it is no address of this machine"
            raise ConfigError(f"cannot listen at {address}: {why}") from error
        self._server.start()

    def _session(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        if not self._own.admits(context.invocation_metadata()):
            peer = unquote(context.peer()).partition(":")[2].rpartition(":")[0] or "this machine"
            if peer not in self._rejected and len(self._rejected) < MOST_NAMED:
                self._rejected.add(peer)
                self._say(f"A call from {peer} is refused: its token is not that of this {self._name}")
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        stream = Stream(messages, context.cancel)
        context.add_callback(stream.gone)  # frees this thread
        try:
            yield from self._answer(stream)
        except Busy as busy:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(busy))

    def wait(self) -> None:
        self._server.wait_for_termination()

    def stop(self, grace: float = 0.5) -> None:
        """Stop listening. Streams have `grace` seconds to end; returns when they have ended, or some seconds later."""
        self._server.stop(grace).wait(grace + 2)


class _Threads(Executor):
    """A daemon thread for each call. An answer that hangs does not keep the process from ending, as in a `ThreadPoolExecutor`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="remote stream", daemon=True).start()
        return future


class Busy(Exception):
    """The listener sends a caller away, which may try again; the message is the reason."""


class Acceptor:
    """Listens for streams and gives each to a thread that waits in `open`. If none waits, the caller is sent away and dials
    again. All users of an address in this process share one acceptor; other processes may listen there, too."""

    _at: dict[str, Acceptor] = {}  # noqa: RUF012
    _lock = threading.Lock()

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._users, self._waiting = endpoint, 0, 0
        self._streams: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._listener = Listener(endpoint, self._hand_over, streams=1024, share_port=True)

    @classmethod
    def at(cls, endpoint: Endpoint) -> Acceptor:
        """This process's acceptor at an address; each user calls `close`. Raises what `Listener` raises."""
        with cls._lock:
            found = cls._at.get(endpoint.address)
            if found is None:
                found = cls._at[endpoint.address] = cls(endpoint)
            found._users += 1
            return found

    def close(self) -> None:
        """Stop listening when every user has called this."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            del self._at[self._endpoint.address]
        self._listener.stop(0.2)

    def _hand_over(self, stream: Stream) -> Iterator[bytes]:
        with self._guard:
            if not self._waiting:
                raise Busy(self._endpoint.service.busy)
            self._waiting -= 1
            self._streams.put(stream)
        return stream.outgoing()

    def open(self, closed: threading.Event) -> Stream:
        with self._guard:
            self._waiting += 1
        while not closed.is_set():
            try:
                return self._streams.get(timeout=0.2)
            except queue.Empty:
                continue
        with self._guard:
            try:
                self._streams.get_nowait().close()  # it arrived at the last moment
            except queue.Empty:
                self._waiting -= 1
        raise Unreachable("closed")
