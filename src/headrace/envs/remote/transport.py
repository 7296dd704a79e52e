"""gRPC as it is used here: one bidirectional stream of bytes, addresses, tokens, certificates.

No generated code: the one method has identity serializers, so that a message is the bytes that were given.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import queue
import re
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import grpc

from headrace.config import ConfigError
from headrace.envs.remote.protocol import MOST_REPLY

METHOD = "/headrace.Environments/Session"
TOKEN_VARIABLE = "HEADRACE_TOKEN"
KEEPALIVE = 10.0
"""Seconds without a message after which the other side is asked whether it is there, and seconds that it has for the answer."""
SLOW = 10.0
"""Seconds without an answer after which the user is told."""


def channel_options(most_received: int) -> list[tuple[str, int]]:
    """gRPC's settings of either side; `most_received`: bytes of a message."""
    keepalive = int(KEEPALIVE * 1000)
    return [
        ("grpc.max_receive_message_length", most_received),
        ("grpc.max_send_message_length", MOST_REPLY),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.use_local_subchannel_pool", 1),  # a connection for each stream
        ("grpc.keepalive_time_ms", keepalive),
        ("grpc.keepalive_timeout_ms", keepalive),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # a listener calls more frequent questions an attack, and ends the connection; unless told, more than one in five minutes
        ("grpc.http2.min_ping_interval_without_data_ms", keepalive // 2),
        ("grpc.enable_http_proxy", 0),
    ]


# -- addresses, tokens, certificates ----------------------------------------------------------------------------------


def check_address(address: str) -> str:
    """The address itself; raises `ConfigError` unless it is HOST:PORT, with an IPv6 host in brackets, or unix:PATH."""
    if re.fullmatch(r"unix:.+", address):
        return address
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:,\[\]]+):(\d{1,5})", address)
    if not found or int(found[2]) > 65_535:
        raise ConfigError(f"{address!r} is no address: give HOST:PORT, such as 127.0.0.1:7777")
    return address


def is_local(address: str) -> bool:
    """Whether only this machine can reach what listens at this address."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Credentials:
    """What one side proves itself with. The token is never shown, and in no configuration file."""

    token: str = ""
    ca: str | None = None
    """File with the certificate that signed the server's; None: no TLS."""
    cert: str | None = None
    """Files of a listener's own certificate and key."""
    key: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(token={'set' if self.token else 'none'}, ca={self.ca}, cert={self.cert})"

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """What a caller sends."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def admits(self, metadata: Any) -> bool:
        """Whether a caller's metadata has this token, compared in constant time; always where there is none."""
        if not self.token:
            return True
        said = [value for name, value in metadata or () if name == "authorization"]
        given = said[0] if len(said) == 1 and isinstance(said[0], str) else ""
        return hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())

    def channel(self, address: str, most_received: int, compression: bool = False) -> grpc.Channel:
        """A channel to a listener."""
        options, method = channel_options(most_received), grpc.Compression.Gzip if compression else None
        if self.ca is None:
            return grpc.insecure_channel(address, options, compression=method)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(_read(self.ca)), options, compression=method)

    def listen(self, server: grpc.Server, address: str) -> int:
        """Have a server listen; returns the port. Raises `ConfigError` where it cannot, or where it must not."""
        if not is_local(check_address(address)) and not self.token:
            raise ConfigError(
                f"{address} can be reached from other machines: give a token (a file, or {TOKEN_VARIABLE}), "
                "or listen at 127.0.0.1"
            )
        try:
            if self.cert is None or self.key is None:
                port = server.add_insecure_port(address)
            else:
                pair = (_read(self.key), _read(self.cert))
                port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise ConfigError(f"cannot listen at {address}: {str(error).splitlines()[0]}") from error
        return port


def credentials(token_file: str | None, ca: str | None = None, cert: str | None = None, key: str | None = None) -> Credentials:
    """The token is that of the file, or of the environment variable HEADRACE_TOKEN, or none. Raises `ConfigError` for files that
    cannot be read or are no certificates, and for a token that gRPC cannot send."""
    if (cert is None) != (key is None):
        raise ConfigError("a TLS certificate and its key belong together: give both files, or none")
    for path in (ca, cert, key):
        if path is not None:
            _read(path)
    _check_certificates(ca, cert, key)
    token = os.environ.get(TOKEN_VARIABLE, "") if token_file is None else _read(token_file).decode(errors="replace").strip()
    where = TOKEN_VARIABLE if token_file is None else token_file
    if token_file is not None and not token:
        raise ConfigError(f"{token_file} is empty; it must hold the token")
    if token and not re.fullmatch(r"[\x21-\x7e]{8,4096}", token):
        raise ConfigError(f"the token in {where} must be 8 to 4096 visible ASCII characters without spaces")
    return Credentials(token, ca, cert, key)


def _check_certificates(ca: str | None, cert: str | None, key: str | None) -> None:
    """Raise `ConfigError` for what gRPC would only say later, and not why."""
    try:
        if ca is not None:
            ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigError(f"{ca} holds no TLS certificate in PEM format ({error.reason or error})") from error
    try:
        if cert is not None:  # a key with a password would ask for it
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        what = f"a TLS certificate and its private key, without password, in PEM format ({error.reason or error})"
        raise ConfigError(f"{cert} and {key} are not {what}") from error


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


class Handler(grpc.GenericRpcHandler):
    """The one method, for callers with the token; everybody else is turned away before anything they sent is read."""

    def __init__(self, own: Credentials, session: Callable[[Iterator[bytes], Any], Iterator[bytes]]) -> None:
        self._own = own
        self._session = grpc.stream_stream_rpc_method_handler(session)
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def service(self, handler_call_details: Any) -> Any:
        """See `grpc.GenericRpcHandler`."""
        if handler_call_details.method != METHOD:
            return None
        return self._session if self._own.admits(handler_call_details.invocation_metadata) else self._refusal


def _refuse(_: Iterator[bytes], context: Any) -> Iterator[bytes]:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
    yield b""


@dataclass(frozen=True)
class TlsFlags:
    """What the settings of TLS are called, where one side calls the other."""

    ca: str
    """Of the caller: the certificate that signed the listener's."""
    certificate: str
    """Of the listener: its own certificate and key."""


OF_RUN = TlsFlags("--envs.remote-ca", "--tls-cert and --tls-key")
"""Where a run calls an environment server."""
OF_SIMULATOR = TlsFlags("--tls-ca", "--envs.remote-tls-cert and --envs.remote-tls-key")
"""Where a simulator calls a run that listens."""
WRONG_TLS = "TLS settings do not agree"
"""In the reason where both sides were there, but cannot understand each other: waiting does not help."""


def tls_advice(details: str, uses_tls: bool, flags: TlsFlags) -> str:
    """What to set where a call failed before the first answer because of TLS, or may have; empty where TLS is not the cause.

    `details`: gRPC's. `uses_tls`: whether the caller does. A listener with TLS closes the connection of a caller without, as one
    does that is stopped.
    """
    if not uses_tls:
        closed = re.search("Socket closed|Connection reset", details)
        return f": if it uses TLS, give the certificate that signed its own here, too ({flags.ca})" if closed else ""
    for sign, advice in (
        ("WRONG_VERSION_NUMBER", f"it does not use TLS; start it with {flags.certificate}, or leave out {flags.ca} here"),
        ("CERTIFICATE_VERIFY_FAILED", f"its certificate was not signed by that of {flags.ca}, or its time is over"),
        ("Hostname Verification Check failed", "its certificate is not for the name or address by which it is called"),
    ):
        if sign in details:
            return f": the {WRONG_TLS}: {advice}"
    return ""


def no_advice(details: str) -> str:
    """Where there is nothing to advise."""
    return ""


def reason(error: grpc.RpcError, advice: Callable[[str], str] = no_advice) -> str:
    """In words, why a stream ended. `advice`: what to do about a connection that could not be made, from gRPC's details."""
    code, details = error.code(), (error.details() or "").strip()  # type: ignore[attr-defined]
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return "it refuses the token: both sides must have the same"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "it is no environment server of headrace"
    if details == "Cancelling all calls":
        return "it was stopped"
    if code is grpc.StatusCode.UNAVAILABLE:
        last = details.rpartition("last error: ")[2]
        known = re.search(r"Connection refused|Connection reset|Connection timed out|No route to host|Socket closed|ping timeout|"
                          r"keepalive watchdog timeout|Name or service not known|GOAWAY|Handshake|CERTIFICATE_VERIFY_FAILED|"
                          r"Hostname Verification Check failed|"
                          r"Network is unreachable|Timeout occurred", last, re.IGNORECASE)  # fmt: skip
        return f"no connection ({known[0] if known else last[:200] or 'unavailable'}){advice(details)}"
    return f"{code.name.lower().replace('_', ' ')}: {details[:200]}" if details else code.name.lower()


# -- one stream -------------------------------------------------------------------------------------------------------


class Link:
    """One stream, with a deadline for every answer. `send` may be called from any thread; one thread iterates over it.

    Iteration ends where the stream does; `ended` is then the reason.
    """

    def __init__(self, messages: Any, cancel: Callable[[], None]) -> None:
        """`messages`: iterator over what comes. `cancel`: ends the stream from this side."""
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.ended = ""
        self.on_slow: Callable[[float], None] = lambda seconds: None
        self.sent_at = 0.0
        """When the request was sent that is not answered; 0 if all are."""
        self.warned = False
        self.advice = no_advice
        """What to do where the stream ends, for this reason of gRPC's, before the first message has come."""
        self._messages, self._cancel = messages, cancel
        self.timeout = 60.0
        """Seconds that an answer may take."""

    def outgoing(self) -> Iterator[bytes]:
        """What gRPC sends."""
        while (message := self.outbox.get()) is not None:
            yield message

    def send(self, message: bytes) -> None:
        """Send a message, an answer to which is expected."""
        self.sent_at, self.warned = monotonic(), False
        watch(self)
        self.outbox.put(message)

    def start(self, messages: Any, cancel: Callable[[], None]) -> None:
        """Where `outgoing` had to be given to gRPC before these were there."""
        self._messages, self._cancel = messages, cancel

    def __iter__(self) -> Iterator[bytes]:
        answered = False
        try:
            for message in self._messages:
                self.sent_at, answered = 0.0, True
                yield message
            self.ended = self.ended or "the other side ended the stream"
        except grpc.RpcError as error:
            advice = no_advice if answered else self.advice
            self.ended = self.ended or (reason(error, advice) if hasattr(error, "code") else "the stream was cut")
        except Exception as error:  # of gRPC's server: the peer is gone
            self.ended = self.ended or f"the stream was cut ({type(error).__name__})"
        finally:
            self.sent_at = 0.0

    def close(self, why: str = "closed") -> None:
        """End the stream."""
        self.ended = self.ended or why
        self.outbox.put(None)
        self._cancel()


_watched: weakref.WeakSet[Link] = weakref.WeakSet()
_watcher: threading.Thread | None = None
_watching = threading.Lock()


def watch(link: Link) -> None:
    """Have a thread end the link when an answer is late."""
    global _watcher
    if link in _watched:
        return
    with _watching:
        _watched.add(link)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_watch, name="remote-deadlines", daemon=True)
            _watcher.start()


def _watch() -> None:
    while True:
        sleep(0.25)
        _close_late()


def _close_late() -> None:
    with _watching:
        links = list(_watched)
    for link in links:
        sent = link.sent_at  # read once: the answer may come meanwhile
        waited = monotonic() - sent if sent else 0.0
        if waited > link.timeout:
            link.close(f"no answer for {link.timeout:g} s")
        elif waited > SLOW and not link.warned:
            link.warned = True
            link.on_slow(waited)


def dial(address: str, own: Credentials, flags: TlsFlags, most_received: int, compression: bool = False) -> Link:
    """Call a listener; the connection is made meanwhile. `flags`: for messages."""
    channel = own.channel(address, most_received, compression)
    link = Link(None, lambda: None)
    link.advice = lambda details: tls_advice(details, own.ca is not None, flags)
    call = channel.stream_stream(METHOD)(link.outgoing(), metadata=own.metadata)

    def cancel() -> None:
        call.cancel()
        channel.close()

    link.start(call, cancel)
    return link
