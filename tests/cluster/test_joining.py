"""A member joins a run, whatever happens to the stream while it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster import protocol, rank
from headrace.cluster.joining import Lost, join
from headrace.cluster.protocol import Link
from headrace.make_config import make_config
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


@pytest.mark.parametrize(("received", "lost"), [("end", False), ("lost", True)])
def test_a_rank_that_is_done_and_loses_the_first_one_is_to_be_started_again(
    received: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the machine of a launcher would end, though the learners may have to go on from an earlier checkpoint."""
    settings = {"cluster.nodes": 2, "cluster.learners": 2, "cluster.engine": "static", "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", "ppo", **settings)
    member = SimpleNamespace(place={"store": 7, "alone": True}, config=lambda imports: config, close=lambda: None)
    member.next = lambda timeout: (received, None)
    monkeypatch.setattr(rank, "join", lambda *_, **__: member)
    link = Link("127.0.0.1:7", Credentials(token="a-token-for-tests"), 1.0)
    with pytest.raises(Lost) if lost else nullcontext(), rank.joined(link, 1, None):
        pass
