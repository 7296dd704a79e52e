"""Between the learner and one shard of the replay: the part of a receiver that passes on requests and writes answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.cluster.protocol import SAMPLES
from headrace.cluster.sample_codec import STATISTICS
from headrace.cluster.shard_table import DRAWS
from headrace.cluster.sharded_replay import ShardedReplay
from headrace.shm.run_control import POLL_INTERVAL, RunControl
from headrace.transport.messages import HEADER, ProtocolError
from headrace.transport.streams import Stream


class ShardRelay:
    """The requests to the shard of `node`, and its answers. One thread runs `run`; the receiver's lock is held in the rest."""

    def __init__(self, replay: ShardedReplay, node: int) -> None:
        self._table, self._codec, self._node = replay.table, replay.codec, node
        self.schema: Any = replay.codec.schema()  # what the node must agree about
        self._open: tuple[Stream, int] | None = None  # the stream to the shard, and the node's generation
        self._table.end(node)  # of a receiver that this one replaces

    def begin(self, stream: Stream, generation: int) -> None:
        """The shard is there."""
        self._open = (stream, generation)
        self._table.begin(self._node, generation)

    def end(self) -> None:
        """It is not any more."""
        self._open = None
        self._table.end(self._node)

    def receive(self, kind: int, message: bytes) -> None:
        """Write a message of the shard to the table. Raises `ProtocolError` for any other message."""
        if kind == SAMPLES:
            content = self._codec.unpack(message)
            samples = self._codec.read(content)
            self._table.statistics[self._node] = samples.statistics
            self._table.write_answer(self._node, samples.number, content)
        else:
            if len(message) != HEADER.size + 8 * len(STATISTICS):
                raise ProtocolError(f"statistics of {len(message)} bytes")
            self._table.statistics[self._node] = np.frombuffer(message, "<f8", offset=HEADER.size)

    def run(self, control: RunControl) -> None:
        """Pass on requests until the end of the run."""
        sent = 0
        while not control.stopped:
            seen = self._table.news.load(self._node)
            found = [self._table.request(draw, self._node, sent) for draw in range(DRAWS)]
            for request in sorted((request for request in found if request is not None), key=lambda request: request.number):
                sent = request.number
                if (now := self._open) is not None and now[1] == request.generation:
                    now[0].send(request.to_bytes())
            self._table.news.wait_change(self._node, seen, POLL_INTERVAL)
