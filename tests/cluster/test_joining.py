"""A member joins a run, whatever happens to the stream while it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from headrace.cluster import protocol
from headrace.cluster.joining import join
from headrace.cluster.protocol import Link
from headrace.transport.credentials import Credentials
from headrace.transport.listeners import Listener
from headrace.transport.messages import LARGEST_MESSAGE
from headrace.transport.streams import Endpoint, Stream


def test_a_stream_that_ends_between_the_welcome_and_the_code_is_opened_again() -> None:
    own, opened = Credentials(token="a-token-for-tests"), []

    def answer(stream: Stream) -> Iterator[bytes]:
        opened.append(stream)
        next(iter(stream))
        yield protocol.to_bytes("welcome", {"code": 2})
        yield b"one, "
        if len(opened) > 1:
            yield b"two"
            yield from stream.outgoing()

    listener = Listener(Endpoint(protocol.MEMBERSHIP, "127.0.0.1:0", own, LARGEST_MESSAGE), answer, streams=4)
    said: list[str] = []
    member: Any = join(Link(f"127.0.0.1:{listener.port}", own, 30.0), 30.0, threading.Event(), said.append, code=True)
    assert (member._code, len(opened), len(said)) == (b"one, two", 2, 1)
    member.close()
    listener.stop(0.2)
