"""The node's side of a trajectory stream, against a receiver that the test stands for."""

from __future__ import annotations

import threading
import time
from typing import Any

from headrace.cluster.protocol import CREDIT
from headrace.cluster.uplink import _Traffic
from headrace.transport.messages import HEADER


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
