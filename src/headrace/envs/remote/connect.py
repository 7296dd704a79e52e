"""The trainer's side of connections: addresses of servers, the handshake, and the question which environment a server has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.contract import EnvSpec
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import Hello, Welcome
from headrace.transport.credentials import check_address, credentials
from headrace.transport.listeners import Acceptor
from headrace.transport.messages import LARGEST_MESSAGE, ProtocolError, Refused
from headrace.transport.streams import Caller, Endpoint, Stream, StreamSource, Unreachable

LISTEN = "listen:"  # prefix of an address at which the trainer listens for simulators
LOCAL = "local"  # in place of an address: the worker's own process steps the environments


def addresses(remote: str) -> list[str]:
    """The entries of `envs.remote`. Raises `ConfigError` for an invalid address."""
    entries = [entry.strip() for entry in remote.split(",")]
    for entry in entries:
        if entry != LOCAL:
            check_address(entry.removeprefix(LISTEN))
    return entries


def stream_source(entry: str, options: EnvConfig) -> StreamSource:
    """The source of streams for groups with this entry of `envs.remote`. Raises `ConfigError` if this process cannot listen."""
    own = credentials(options.remote_token_file, options.remote_ca, options.remote_tls_cert, options.remote_tls_key)
    address = entry.removeprefix(LISTEN)
    endpoint = Endpoint(protocol.SERVICE, address, own, LARGEST_MESSAGE, options.remote_compression)
    return Acceptor.at(endpoint) if entry.startswith(LISTEN) else Caller(endpoint, protocol.OF_RUN)


def greet(stream: Stream, hello: Hello, timeout: float) -> tuple[Welcome, Iterator[bytes]]:
    """Send `hello`. Returns the welcome, and an iterator over the messages that follow. Each answer may take `timeout` seconds.

    Closes the stream if it raises `Unreachable`, `Refused` or `ProtocolError`.
    """
    try:
        stream.timeout = timeout
        stream.request(hello.to_bytes())
        messages = iter(stream)
        first = next(messages, None)
        if first is None:
            raise Unreachable(stream.ended, stream.hopeless)
        return Welcome.from_bytes(first), messages
    except BaseException:
        stream.close()
        raise


# -- what a server has ------------------------------------------------------------------------------------------------

ASK_TIMEOUT = 10.0  # seconds that a server may take for its welcome
_known: dict[tuple[str, str], Welcome] = {}


def ask(env: str, options: EnvConfig, patience: float = 60.0) -> Welcome:
    """The first welcome for the environment `env` from any server of `options.remote`, waiting up to `patience` seconds. Each
    process asks only once. Raises `ConfigError` with every server's reason if all fail."""
    remote = options.remote or ""
    if (remote, env) in _known:
        return _known[remote, env]
    entries = [entry for entry in dict.fromkeys(addresses(remote)) if entry != LOCAL]
    if not entries:
        raise ConfigError("envs.remote has no address of a server")
    deadline = monotonic() + patience
    warned = False
    while True:
        reasons, hopeless = {}, False
        for entry in entries:
            try:
                welcome = _ask_one(entry, env, options, deadline)
            except (Unreachable, ProtocolError, Refused) as error:
                reasons[entry] = str(error)
                hopeless |= isinstance(error, Refused) or (isinstance(error, Unreachable) and error.hopeless)
            else:
                _known[remote, env] = welcome
                return welcome
        listed = "; ".join(f"{entry}: {why}" for entry, why in reasons.items())
        if hopeless or monotonic() >= deadline:
            raise ConfigError(f"no environment server of envs.remote can be used: {listed}")
        if not warned:
            warned = True
            print(f"waiting for an environment server: {listed}", flush=True)
        threading.Event().wait(0.5)


def _ask_one(entry: str, env: str, options: EnvConfig, deadline: float) -> Welcome:
    source = stream_source(entry, options)
    closed = threading.Event()
    timer = threading.Timer(max(0.1, deadline - monotonic()), closed.set)
    timer.daemon = True
    timer.start()
    try:
        if entry.startswith(LISTEN):
            print(f"waiting for a simulator to dial in at {entry.removeprefix(LISTEN)}", flush=True)
        stream = source.open(closed)
        welcome, _ = greet(stream, Hello(env, 0), ASK_TIMEOUT)
        stream.close()
        return welcome
    finally:
        timer.cancel()
        source.close()


def describe(env: str, options: EnvConfig) -> EnvSpec:
    """The specification from an environment server. Raises `ConfigError` if the server's settings differ from `options`."""
    welcome = ask(env, options)
    if differ := protocol.differences(protocol.shared_options(options), welcome.options):
        raise ConfigError(
            f"the environment server has other settings than this run: {differ}. Start `headrace serve-envs` with the flags that "
            "this run has, or leave them out here"
        )
    return welcome.spec
