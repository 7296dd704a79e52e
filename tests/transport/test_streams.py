"""Deadlines of answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from headrace.transport.connection import Connection, Event
from headrace.transport.credentials import Credentials
from headrace.transport.failures import TlsFlags
from headrace.transport.listeners import Listener
from headrace.transport.messages import LARGEST_MESSAGE
from headrace.transport.streams import Caller, Endpoint, Service, Stream

pytestmark = pytest.mark.process
SERVICE = Service("/test/Streams", "listener of a test")


def test_only_a_late_answer_ends_the_stream() -> None:
    closed: list[str] = []
    answer, late_is_closed = threading.Event(), threading.Event()

    def messages() -> Iterator[bytes]:
        answer.wait(60)
        yield b"answer"
        late_is_closed.wait(60)

    def close_late() -> None:
        closed.append("late")
        late_is_closed.set()

    late = Stream(messages(), close_late)
    answered = Stream(messages(), lambda: closed.append("answered"))
    answered.timeout = late.timeout = 1.0
    answered.request(b"question")
    answer.set()
    assert next(iter(answered)) == b"answer"
    late.request(b"question")
    assert late_is_closed.wait(60)
    assert (closed, late.ended, answered.ended) == (["late"], "no answer for 1 s", "")
    assert list(late.outgoing()) == [b"question"]


def test_an_answer_that_takes_long_is_told_once(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("headrace.transport.streams.SLOW", 0.1)
    told: list[float] = []
    ended = threading.Event()
    stream = Stream(iter(()), ended.set)
    stream.timeout, stream.on_slow = 1.0, told.append
    stream.request(b"question")
    assert ended.wait(60)
    assert len(told) == 1
    assert 0.1 < told[0] <= 1.0


def test_an_error_of_its_user_ends_the_stream_and_not_the_connection() -> None:
    """A message that its user cannot read, on every stream but the third."""
    handled: list[tuple[Event, Any]] = []
    third = threading.Event()

    class Source:
        opened = 0

        def open(self, closed: threading.Event) -> Stream:
            self.opened += 1
            return Stream(iter((b"good" if self.opened == 3 else b"bad",)), lambda: None)

        def close(self) -> None:
            pass

    def handle(event: Event, stream: Stream | None, content: Any) -> None:
        if content == b"bad":
            raise ValueError("what is this")
        handled.append((event, content))
        if content == b"good":
            third.set()

    connection = Connection(Source(), lambda stream: (None, iter(stream)), handle, "test")
    connection.start()
    assert third.wait(60)
    connection.close()
    assert handled[:5] == [("up", None), ("down", "ValueError: what is this")] * 2 + [("up", None)]


def test_a_listener_says_once_whom_it_refuses() -> None:
    service = Service("/headrace.Tests/Stream", "listener of the tests")
    here = Endpoint(service, "127.0.0.1:0", Credentials("one"), LARGEST_MESSAGE)
    listener = Listener(here, lambda stream: stream.outgoing(), streams=4)
    there = Endpoint(service, f"127.0.0.1:{listener.port}", Credentials("another"), LARGEST_MESSAGE)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(2):
            stream = Caller(there, TlsFlags("", "")).open()
            assert not list(stream)
            assert stream.ended == "it refuses the token: both sides must have the same"
    listener.stop(0.0)
    assert [str(warning.message) for warning in said] == [
        "A call from 127.0.0.1 is refused: its token is not that of this listener of the tests"
    ]


def say_hello_and_wait(port: str) -> None:
    caller = Caller(Endpoint(SERVICE, f"127.0.0.1:{port}", Credentials(), 1 << 10), TlsFlags("", ""))
    stream = caller.open()
    stream.send(b"hello")
    for _ in stream:
        pass


def test_a_stream_ends_if_the_other_side_answers_no_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is stopped: the system still takes what is sent to it."""
    monkeypatch.setattr("headrace.transport.streams.KEEPALIVE", 1.0)
    said, ended = threading.Event(), threading.Event()

    def answer(stream: Stream) -> Iterator[bytes]:
        next(iter(stream))
        said.set()
        yield from stream.outgoing()
        ended.set()

    listener = Listener(Endpoint(SERVICE, "127.0.0.1:0", Credentials(), 1 << 10), answer, streams=1)
    call = f"import test_streams; test_streams.say_hello_and_wait('{listener.port}')"
    there = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    caller = subprocess.Popen([sys.executable, "-c", call], env=there, stderr=subprocess.PIPE)
    try:
        assert said.wait(60)
        caller.send_signal(signal.SIGSTOP)
        began = monotonic()
        assert ended.wait(30)
        assert monotonic() - began > 0.5
        caller.send_signal(signal.SIGCONT)
        assert caller.communicate(timeout=30)[1] == b"", "gRPC's own lines are not for users"
    finally:
        caller.kill()
        caller.wait()
        listener.stop(0)
