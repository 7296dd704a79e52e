"""The trainer's side of connections: which group uses which server, dialling servers, and listening for simulators."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Protocol

import grpc

from headrace.config import ConfigError, EnvConfig
from headrace.envs.contract import EnvSpec
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import Hello, ProtocolError, Refused, Welcome
from headrace.envs.remote.transport import (
    OF_RUN,
    WRONG_TLS,
    Credentials,
    Handler,
    Link,
    channel_options,
    check_address,
    credentials,
    dial,
)

LISTEN = "listen:"
"""Before an address at which the trainer listens for simulators."""
LOCAL = "local"
"""Instead of an address: environments of the worker's own process."""


class Unreachable(Exception):
    """No connection to a server; the message is the reason."""


def addresses(remote: str) -> list[str]:
    """The entries of `envs.remote`. Raises `ConfigError` for one that is none."""
    entries = [entry.strip() for entry in remote.split(",")]
    for entry in entries:
        if entry != LOCAL:
            check_address(entry.removeprefix(LISTEN))
    return entries


def own_credentials(options: EnvConfig) -> Credentials:
    """The trainer's."""
    return credentials(options.remote_token_file, options.remote_ca, options.remote_tls_cert, options.remote_tls_key)


class Connector(Protocol):
    """Makes streams to one address."""

    def open(self, closed: threading.Event) -> Link:
        """A stream that has begun. Raises `Unreachable`."""

    def close(self) -> None:
        """No more streams are wanted."""


def connector(entry: str, options: EnvConfig) -> Connector:
    """For an entry of `envs.remote`. Raises `ConfigError` where this process cannot listen."""
    own = own_credentials(options)
    if entry.startswith(LISTEN):
        return Listener.at(entry.removeprefix(LISTEN), own, options.remote_compression)
    return _Dialling(entry, own, options.remote_compression)


class _Dialling:
    def __init__(self, address: str, own: Credentials, compression: bool) -> None:
        self._arguments = address, own, OF_RUN, protocol.MOST_REPLY, compression

    def open(self, closed: threading.Event) -> Link:
        return dial(*self._arguments)

    def close(self) -> None:
        pass


class Listener:
    """Simulators dial in here. Several processes may listen at the same address: the system deals callers out to them. A
    process without a group that waits sends the caller away, which tries again."""

    _all: dict[str, Listener] = {}  # noqa: RUF012
    _lock = threading.Lock()

    def __init__(self, address: str, own: Credentials, compression: bool) -> None:
        self._address, self._users = address, 0
        self._waiting = 0
        self._links: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(1024, "remote-envs"),
            handlers=(Handler(own, self._session),),
            options=[*channel_options(protocol.MOST_REPLY), ("grpc.so_reuseport", 1)],
            compression=grpc.Compression.Gzip if compression else None,
        )
        own.listen(self._server, address)
        self._server.start()

    @classmethod
    def at(cls, address: str, own: Credentials, compression: bool) -> Listener:
        """This process's listener at an address; every user closes it."""
        with cls._lock:
            found = cls._all.get(address)
            if found is None:
                found = cls._all[address] = cls(address, own, compression)
            found._users += 1
            return found

    def close(self) -> None:
        """The inverse of `at`."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            del self._all[self._address]
        self._server.stop(0.2)

    def _session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        link = Link(requests, context.cancel)
        with self._guard:
            wanted = self._waiting > 0
            if wanted:
                self._waiting -= 1
                self._links.put(link)
        if not wanted:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no group waits for environments")
        context.add_callback(lambda: link.outbox.put(None))  # the simulator is gone: this thread is free again
        yield from link.outgoing()

    def open(self, closed: threading.Event) -> Link:
        """The next simulator that dials in. Raises `Unreachable` where `closed` is set meanwhile."""
        with self._guard:
            self._waiting += 1
        while not closed.is_set():
            try:
                return self._links.get(timeout=0.2)
            except queue.Empty:
                continue
        with self._guard:
            try:
                self._links.get_nowait().close()  # one that came at the last moment
            except queue.Empty:
                self._waiting -= 1
        raise Unreachable("closed")


def greet(link: Link, hello: Hello, timeout: float) -> tuple[Welcome, Iterator[bytes]]:
    """Say hello. Returns the welcome, and the messages that follow. Raises `Unreachable`, `Refused`, `ProtocolError`; the link is
    closed then."""
    try:
        link.timeout = timeout
        link.send(hello.to_bytes())
        messages = iter(link)
        first = next(messages, None)
        if first is None:
            raise Unreachable(link.ended)
        return Welcome.from_bytes(first), messages
    except BaseException:
        link.close()
        raise


# -- what a server has ------------------------------------------------------------------------------------------------

ASK_TIMEOUT = 10.0
"""Seconds that a server has to say what it serves."""
_known: dict[tuple[str, str], Welcome] = {}


def ask(env: str, options: EnvConfig, patience: float = 60.0) -> Welcome:
    """What the servers of `options.remote` say of the environment `env`. Asked once in a process; waits up to `patience` seconds
    for the first server that answers. A server that refuses is no obstacle where another one does not. Raises `ConfigError` with
    every server's reason."""
    remote = options.remote or ""
    if (remote, env) in _known:
        return _known[remote, env]
    entries = [entry for entry in dict.fromkeys(addresses(remote)) if entry != LOCAL]
    if not entries:
        raise ConfigError("envs.remote has no address of a server")
    deadline = monotonic() + patience
    warned = False
    while True:
        reasons, refused = {}, False
        for entry in entries:
            try:
                welcome = _ask_one(entry, env, options, deadline)
            except (Unreachable, ProtocolError) as error:
                reasons[entry] = str(error)
            except Refused as error:
                reasons[entry], refused = str(error), True
            else:
                _known[remote, env] = welcome
                return welcome
        listed = "; ".join(f"{entry}: {why}" for entry, why in reasons.items())
        refused |= any(sign in why for why in reasons.values() for sign in ("token", "no environment server", WRONG_TLS))
        if refused or monotonic() >= deadline:
            raise ConfigError(f"no environment server of envs.remote can be used: {listed}")
        if not warned:
            warned = True
            print(f"waiting for an environment server: {listed}", flush=True)
        threading.Event().wait(0.5)


def _ask_one(entry: str, env: str, options: EnvConfig, deadline: float) -> Welcome:
    source = connector(entry, options)
    closed = threading.Event()
    timer = threading.Timer(max(0.1, deadline - monotonic()), closed.set)
    timer.daemon = True
    timer.start()
    try:
        if entry.startswith(LISTEN):
            print(f"waiting for a simulator to dial in at {entry.removeprefix(LISTEN)}", flush=True)
        link = source.open(closed)
        welcome, _ = greet(link, Hello(env, 0), ASK_TIMEOUT)
        link.close()
        return welcome
    finally:
        timer.cancel()
        source.close()


def describe(env: str, options: EnvConfig) -> EnvSpec:
    """The specification that an environment server gives. Raises `ConfigError` where it has other settings than `options`."""
    welcome = ask(env, options)
    if differ := protocol.differences(protocol.shared_options(options), welcome.options):
        raise ConfigError(
            f"the environment server has other settings than this run: {differ}. Start `headrace serve-envs` with the flags that "
            "this run has, or leave them out here"
        )
    return welcome.spec
