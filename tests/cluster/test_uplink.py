"""The node's side of a trajectory stream, against a receiver that the test stands for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster import protocol
from headrace.cluster.protocol import CREDIT, WEIGHTS
from headrace.cluster.uplink import NOTICE_TIMEOUT, _Traffic
from headrace.config import ConfigError
from headrace.transport.messages import HEADER, Refused
from headrace.transport.streams import Stream, Unreachable


class Sent:
    """Stands for a stream."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.messages.append(message)


def test_a_credit_that_comes_while_another_is_used_counts_once() -> None:
    traffic, stream = _Traffic.__new__(_Traffic), Sent()
    made: Any = stream
    traffic._stream, traffic._credits, traffic._changed = made, 1, threading.Condition()
    credit = threading.Thread(target=traffic._handle, args=("message", made, HEADER.pack(CREDIT, 1)))
    with traffic._changed:
        credit.start()
        time.sleep(0.2)  # it waits for the lock
        traffic.send(made, b"a trajectory")
    credit.join()
    assert (traffic._credits, stream.messages) == (1, [b"a trajectory"])


@pytest.fixture
def traffic() -> Any:
    """Without a connection: the test says what becomes of one."""
    made: Any = _Traffic.__new__(_Traffic)
    made._changed, made._stream, made._credits, made._failure = threading.Condition(), None, 0, None
    made._since, made._reason, made._reported_reasons, made._learner, made._hello = 0.0, "", set(), "there:7", {}
    made._shard, made._reported, made._policy, made._control = None, b"", 0, SimpleNamespace(set_ready=lambda p: None)
    made._members = [SimpleNamespace(weights=SimpleNamespace(publish=lambda content, version: None))]
    return made


def test_each_reason_why_no_trajectories_arrive_is_told_once(traffic: Any) -> None:
    later = time.perf_counter() + NOTICE_TIMEOUT + 1
    assert traffic.trouble(later) is None
    for _ in range(2):
        traffic._handle("failed", None, "no connection (No route to host)")
    assert traffic.trouble(time.perf_counter()) is None, "a receiver may just be replaced"
    told = traffic.trouble(later)
    assert "there:7" in told
    assert "No route to host" in told
    traffic._handle("failed", None, "no connection (No route to host)")
    assert traffic.trouble(later) is None
    traffic._handle("failed", None, "it refuses the token")
    assert "it refuses the token" in traffic.trouble(later)
    traffic._handle("up", stream := Sent(), None)
    traffic._handle("message", stream, HEADER.pack(WEIGHTS, 1))
    traffic._handle("down", stream, "it was stopped")
    assert traffic.trouble(time.perf_counter()) is None


@pytest.mark.parametrize(("kind", "error"), [("busy", Unreachable), ("refused", Refused)])
def test_what_is_refused_for_ever_ends_the_uplink_and_a_place_that_is_taken_does_not(
    kind: str, error: type[Exception], traffic: Any
) -> None:
    stream = Stream(iter([protocol.to_bytes(kind, "the reason")]), lambda: None)
    with pytest.raises(error, match="the reason"):
        traffic._greet(stream)
    if kind == "busy":
        assert traffic.credit(0) is None
    else:
        with pytest.raises(ConfigError, match=r"the reason.*--import"):
            traffic.credit(0)
