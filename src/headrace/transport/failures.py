"""Why a stream ended, in words, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import grpc


@dataclass(frozen=True)
class TlsFlags:
    """Names of the TLS flags, for messages."""

    ca: str  # the caller's: the certificate that signed the listener's
    certificate: str  # the listener's: its own certificate and key


def failure(error: grpc.RpcError, listener: str, answered: bool, uses_tls: bool, flags: TlsFlags) -> tuple[str, bool]:
    """Why a call ended with this error of gRPC's, and whether trying again is useless until one side is restarted.

    Args:
        listener: for messages, what the caller called, such as "environment server".
        answered: whether a message had arrived, so that TLS is not the cause.
        uses_tls: whether the caller uses TLS.
    """
    if not hasattr(error, "code"):
        return "the stream was cut", False
    code, details = error.code(), (error.details() or "").strip()  # type: ignore[attr-defined]
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return "it refuses the token: both sides must have the same", True
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"it is no {listener} of headrace", True
    if code is grpc.StatusCode.CANCELLED and details in ("", "CANCELLED"):
        return "the other side ended the stream", False
    if details == "Cancelling all calls":
        return "it was stopped", False
    if code is grpc.StatusCode.UNAVAILABLE:
        advice, disagree = ("", False) if answered else _tls_advice(details, uses_tls, flags)
        return f"no connection ({_cause(details)}){advice}", disagree
    name = code.name.lower().replace("_", " ")
    return f"{name}: {details[:200]}" if details else name, False


_CAUSES = re.compile(
    r"Connection refused|Connection reset|Connection timed out|No route to host|Socket closed|ping timeout|"
    r"keepalive watchdog timeout|Name or service not known|GOAWAY|Handshake|CERTIFICATE_VERIFY_FAILED|"
    r"Hostname Verification Check failed|Network is unreachable|Timeout occurred",
    re.IGNORECASE,
)


def _cause(details: str) -> str:
    last = details.rpartition("last error: ")[2]
    known = _CAUSES.search(last)
    return known[0] if known else last[:200] or "unavailable"


def _tls_advice(details: str, uses_tls: bool, flags: TlsFlags) -> tuple[str, bool]:
    """Advice if TLS is, or may be, the reason why a call failed before the first answer; and whether TLS certainly is.

    A listener with TLS closes the connection of a caller without TLS, and so does a listener that is stopped.
    """
    if not uses_tls:
        closed = re.search("Socket closed|Connection reset", details)
        return f": if it uses TLS, give the certificate that signed its own here, too ({flags.ca})" if closed else "", False
    for sign, advice in (
        ("WRONG_VERSION_NUMBER", f"it does not use TLS; start it with {flags.certificate}, or leave out {flags.ca} here"),
        ("CERTIFICATE_VERIFY_FAILED", f"its certificate was not signed by that of {flags.ca}, or its time is over"),
        ("Hostname Verification Check failed", "its certificate is not for the name or address by which it is called"),
    ):
        if sign in details:
            return f": the TLS settings do not agree: {advice}", True
    return "", False
