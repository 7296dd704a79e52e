"""Shards of a replay in this process, with everything between them and the learner but the network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.cluster.protocol import SAMPLES, SHARD
from headrace.cluster.sample_codec import SampleCodec
from headrace.cluster.shard import Shard
from headrace.cluster.shard_relay import ShardRelay
from headrace.cluster.shard_table import ShardTable
from headrace.cluster.sharded_replay import TOTAL, ShardedReplay
from headrace.experience.replay.buffer import Replay, ReplayConfig


class Lying(Shard):
    """Says that the sum of its priorities is another one."""

    said: float | None = None

    def counted(self) -> np.ndarray:
        found = super().counted()
        if self.said is not None:
            found[TOTAL] = self.said
        return found


class Wire:
    """Stands for the stream to one shard: a thread answers requests as a node's uplink does.

    `lose(number)`: called with the number of requests so far; True ends the stream instead of answering, as a killed node does.
    """

    def __init__(self, replay: ShardedReplay, node: int, shard: Lying, stopped: Any) -> None:
        self.relay, self.shard, self.node = ShardRelay(replay, node), shard, node
        self.lose: Callable[[int], bool] = lambda number: False
        self.generation, self.answers, self.answered = 1, 0, 0
        self.pause = threading.Event()
        """Set while the shard does not answer."""
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stopped = stopped
        for work in (self._answer, self._relay):
            threading.Thread(target=work, daemon=True).start()
        self.begin()

    def begin(self) -> None:
        self.relay.begin(self, self.generation)  # type: ignore[arg-type]
        self.relay.receive(SHARD, self.shard.statistics())

    def die(self) -> None:
        """The node is lost; another one with the same content takes its place."""
        self.relay.end()
        self.generation += 1

    def answers_are(self, number: int) -> None:
        """Wait until so many requests are answered."""
        while self.answered < number:
            self._stopped.wait(0.001)

    def send(self, message: bytes) -> None:
        self._messages.put(message)

    def _relay(self) -> None:
        self.relay.run(self._stopped)

    def _answer(self) -> None:
        while (message := self._messages.get()) is not None:
            self.answers += 1
            if self.lose(self.answers):
                self.die()
                self.begin()
                continue
            answer = self.shard.answer(message)
            while self.pause.is_set():
                self._stopped.wait(0.01)
            self.relay.receive(SAMPLES, answer)
            self.answered += 1


class Stopped(threading.Event):
    """As a run's control says it."""

    @property
    def stopped(self) -> bool:
        return self.is_set()


class Shards:
    """A replay in shards on these replays, whose batches have `size` samples (of `length` rows)."""

    def __init__(self, replays: list[Replay], size: int, length: int = 0, **config: Any) -> None:
        self.replays, first = replays, replays[0]
        codec = SampleCodec(first.fields, size, length, "none")
        self.table = ShardTable(len(replays), size, 20 * size, codec.largest)
        settings = {**vars(first.config), "minimum": 1, **config}
        self.replay = ShardedReplay(ReplayConfig(**settings), first.fields, self.table, codec)
        self._stopped = Stopped()
        self.wires = [
            Wire(self.replay, k, Lying(replay, None, SampleCodec(first.fields, size, length, "none")), self._stopped)  # type: ignore[arg-type]
            for k, replay in enumerate(replays)
        ]

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys [B, 2] and probabilities [B] of the next batch."""
        drawn = self.replay._next(self.replay.codec.size, lambda rows, arrays: None)
        assert drawn is not None
        return drawn

    def close(self) -> None:
        self._stopped.set()
        for wire in self.wires:
            wire._messages.put(None)
