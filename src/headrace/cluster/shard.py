"""A shard of the replay, on the node that fills it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from headrace.cluster.protocol import SHARD
from headrace.cluster.sample_codec import STATISTICS, SampleCodec
from headrace.cluster.shard_table import Request
from headrace.config import Config
from headrace.experience.batch import EPISODE_FIELDS
from headrace.experience.replay.buffer import Replay, ReplayField
from headrace.experience.replay.layout import sequences_of
from headrace.experience.replay.writer import SlotWriter
from headrace.sampling.placements.base import Placement
from headrace.transport.messages import HEADER

SUMMARY: Collection[str] = frozenset({"valid", "terminated", "truncated", "version", "env_index", *EPISODE_FIELDS.values()})
"""Fields of a trajectory that the learner is sent where the rest stays in the shard."""


def make_codec(config: Config, fields: dict[str, ReplayField]) -> SampleCodec:
    """The codec of a run's samples. Raises as `SampleCodec`."""
    sequences = sequences_of(config)
    return SampleCodec(fields, config.learning.batch_size, sequences.rows if sequences else 0, config.cluster.compression)


class Shard:
    """The part of the replay that one node keeps. One thread writes its trajectories, another one draws its samples."""

    def __init__(self, replay: Replay, writer: SlotWriter, codec: SampleCodec) -> None:
        self._replay, self._writer, self._codec = replay, writer, codec
        self.schema = codec.schema()  # what the learner must agree about
        self._largest = 1.0  # the largest priority so far, as the learner has said

    @classmethod
    def of(cls, placement: Placement, p: int) -> Shard:
        """The shard of a node's placement."""
        config, memory = placement.config, placement.memory.policies[p]
        assert isinstance(memory.replay, Replay)
        each = config.sampling.envs_per_worker
        envs = [worker * each + i for worker in placement.rollout_workers for i in range(each)]
        writer = SlotWriter(memory.replay, memory.trajectories, config, envs)
        return cls(memory.replay, writer, make_codec(config, memory.replay.fields))

    def write(self, slot: int) -> None:
        """Write a finished trajectory, see `SlotWriter.write`."""
        self._writer.write(slot, self._largest)

    def answer(self, message: bytes) -> bytes:
        """Answer a request of the learner. Raises `ProtocolError` for anything else."""
        request, native = Request.from_bytes(message), self._replay.native
        self._largest = request.largest
        if len(request.keys):
            native.update(request.keys, request.priorities)
        if request.evict:
            self._replay.evict()
        drawn = self._codec.draw(native, request.positions, request.parts) if len(request.positions) else None
        return self._codec.encode(request.number, drawn, self.counted())

    def statistics(self) -> bytes:
        """The message that says what the shard holds."""
        return HEADER.pack(SHARD, 0) + self.counted().tobytes()

    def counted(self) -> np.ndarray:
        """float64 [STATISTICS]."""
        stats, replay = self._replay.stats(), self._replay
        own = {"total": replay.native.total(), "bytes": replay.held_bytes(), "room": replay.room()}
        return np.array([own[name] if name in own else getattr(stats, name) for name in STATISTICS], np.float64)
