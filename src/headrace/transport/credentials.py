"""Addresses, and the credentials of both sides of a connection: a token, and TLS certificates."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import ConfigError

TOKEN_VARIABLE = "HEADRACE_TOKEN"


def check_address(address: str) -> str:
    """Returns the address. Raises `ConfigError` unless it is HOST:PORT, with an IPv6 host in brackets, or unix:PATH."""
    if re.fullmatch(r"unix:.+", address):
        return address
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:,\[\]]+):(\d{1,5})", address)
    if not found or int(found[2]) > 65_535:
        raise ConfigError(f"{address!r} is no address: give HOST:PORT, such as 127.0.0.1:7777")
    return address


def is_local(address: str) -> bool:
    """Whether only this machine can reach a listener at this address."""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Credentials:
    """The credentials of one side. The token is never printed, and in no configuration file."""

    token: str = ""
    ca: str | None = None  # file with the certificate that signed the listener's; None: no TLS
    cert: str | None = None  # file with a listener's own certificate; `key`: file with its private key
    key: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(token={'set' if self.token else 'none'}, ca={self.ca}, cert={self.cert})"

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def admits(self, metadata: Any) -> bool:
        """Whether a caller's metadata has this token, compared in constant time. True if there is no token."""
        if not self.token:
            return True
        found = [value for name, value in metadata or () if name == "authorization"]
        given = found[0] if len(found) == 1 and isinstance(found[0], str) else ""
        return hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())

    def check_may_listen(self, address: str) -> None:
        """Raise `ConfigError` for an invalid address, and without a token also for one that other machines can reach."""
        if not is_local(check_address(address)) and not self.token:
            raise ConfigError(
                f"{address} can be reached from other machines: give a token (a file, or {TOKEN_VARIABLE}), "
                "or listen at 127.0.0.1"
            )


def credentials(token_file: str | None, ca: str | None = None, cert: str | None = None, key: str | None = None) -> Credentials:
    """Credentials with the token of the file, or else of the environment variable HEADRACE_TOKEN, or none. Raises `ConfigError`
    for files that cannot be read or are no certificates, and for a token that gRPC cannot send."""
    if (cert is None) != (key is None):
        raise ConfigError("a TLS certificate and its key belong together: give both files, or none")
    for path in (ca, cert, key):
        if path is not None:
            read_file(path)
    _check_certificates(ca, cert, key)
    token = os.environ.get(TOKEN_VARIABLE, "") if token_file is None else read_file(token_file).decode(errors="replace").strip()
    where = TOKEN_VARIABLE if token_file is None else token_file
    if token_file is not None and not token:
        raise ConfigError(f"{token_file} is empty; it must hold the token")
    if token and not re.fullmatch(r"[\x21-\x7e]{8,4096}", token):
        raise ConfigError(f"the token in {where} must be 8 to 4096 visible ASCII characters without spaces")
    return Credentials(token, ca, cert, key)


def _check_certificates(ca: str | None, cert: str | None, key: str | None) -> None:
    """Raise `ConfigError` with the reason; gRPC would fail later and without one."""
    wrong = f"{ca} holds no TLS certificate"
    try:
        if ca is not None:
            ssl.create_default_context(cafile=ca)
        wrong = f"{cert} and {key} are not a TLS certificate and its private key, without password,"
        if cert is not None:  # without `password`, an encrypted key would make OpenSSL prompt for one
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise ConfigError(f"{wrong} in PEM format ({error.reason or error})") from error


def read_file(path: str) -> bytes:
    """The contents of a file. Raises `ConfigError` if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
