"""Joining a run: the stream between a sampling node, or a learner rank other than the first, and the `Membership` of the first
rank."""

from __future__ import annotations

import platform
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import Any

from headrace.cluster import protocol
from headrace.cluster.protocol import Link
from headrace.cluster.user_code import unpack
from headrace.config import Config, ConfigError, from_dict
from headrace.config.errors import RANK_LOST, UserError
from headrace.envs.core.imports import import_files
from headrace.runs.error_texts import explain
from headrace.transport.messages import ProtocolError, Refused
from headrace.transport.streams import Backoff, Caller, Stream

GONE_TIMEOUT = 20.0
"""Seconds after which a member ends that has lost the learner and finds that nobody listens there any more."""
ANSWER_TIMEOUT = 10.0  # seconds that the learner's machine may take to answer a member that dials it
END_TIMEOUT = 10.0  # seconds that the first rank may take to end a run whose failure it was told
AWAY = re.compile("timed out|timeout|no answer|no route|unreachable", re.IGNORECASE)
"""How calls fail while a machine, or the network to it, is away."""


class Lost(UserError):
    """The learner cannot be reached. The member may be started again."""

    exit_code = RANK_LOST


class Member:
    """A place in the run, and the stream that it lasts as long as.

    Args:
        place: what the welcome says.
        code: what `headrace.cluster.user_code.pack` gave; b"" if this member has its own.
    """

    def __init__(self, stream: Stream, messages: Iterator[bytes], place: Any, code: bytes) -> None:
        self.stream, self.place, self._code = stream, place, code
        self._received: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._receive, args=(messages,), name="membership", daemon=True).start()

    def config(self, imports: tuple[str, ...] | None) -> Config:
        """The run's settings as the user gave them, with `imports` if this member has its own files; their code is imported."""
        config = from_dict(self.place["config"])
        if imports is not None:
            config = replace(config, imports=imports)
        elif self._code:
            config = unpack(self._code, config)
        import_files(config.imports)
        return config

    def _receive(self, messages: Iterator[bytes]) -> None:
        with suppress(ProtocolError, Refused):
            for message in messages:
                self._received.put(protocol.from_bytes(message))
        self._received.put(("lost", None))

    def send(self, kind: str, content: Any) -> None:
        self.stream.send(protocol.to_bytes(kind, content))

    def fail(self, error: Exception) -> str:
        """Tell the first rank why this member fails, and wait until it has ended the run. Returns the reason as it was told."""
        explained = explain(error, [])
        text = explained[0] if explained else f"{type(error).__name__}: {error}"
        self.send("failed", text)
        self.next(END_TIMEOUT)
        return text

    def next(self, timeout: float | None) -> tuple[str, Any] | None:
        """Kind and content of what was received, waited for up to `timeout` seconds (None: for ever); "lost" at the stream's
        end."""
        with suppress(queue.Empty):
            return self._received.get(timeout=timeout)
        return None

    def close(self) -> None:
        """Leave the run."""
        self.stream.finish()
        self.stream.close()


def join(link: Link, gone_timeout: float, stopped: threading.Event, say: Callable[[str], None], **hello: Any) -> Member | None:
    """A place in the run, asked for again and again; None if `stopped`. `hello`: what the first message has beside the versions.

    Raises `ConfigError` if this member is refused, and `Lost` after `link.wait` seconds, or after `gone_timeout` if the machine
    answers and nobody listens there, unless it was away: when it is back it has to start the learner first.
    """
    caller, backoff = Caller(link.endpoint(protocol.MEMBERSHIP), protocol.FLAGS), Backoff()
    began, said = monotonic(), ""
    content: Any
    while not stopped.is_set():
        stream = caller.open()
        stream.timeout = ANSWER_TIMEOUT
        stream.request(protocol.to_bytes("hello", {"host": platform.node(), "versions": protocol.versions(), **hello}))
        messages = iter(stream)
        try:
            first = next(messages, None)
            kind, content = ("", stream.ended) if first is None else protocol.from_bytes(first)
            code = [*islice(messages, content["code"])] if kind == "welcome" else []
        except (Refused, ProtocolError) as error:
            stream.close()
            raise ConfigError(f"the learner's machine {link.address} refuses this node: {error}") from error
        if kind == "welcome" and len(code) == content["code"]:
            return Member(stream, messages, content, b"".join(code))
        if kind == "welcome":  # the stream ended behind it
            content = stream.ended
        stream.close()
        if AWAY.search(str(content)):
            gone_timeout = link.wait
        limit = gone_timeout if "refused" in str(content) else link.wait
        if stream.hopeless or (monotonic() > began + limit and kind != "busy"):
            raise Lost(f"the learner's machine {link.address} cannot be reached: {content}")
        if content != said:
            say(f"Waiting for the learner's machine {link.address}: {content}")
            said = content
        backoff.wait(stopped)
    return None
