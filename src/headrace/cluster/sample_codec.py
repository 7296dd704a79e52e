"""Samples of a replay shard as messages: what a node draws becomes rows of a batch on the learner's machine.

A frame crosses the network once for each batch, however many stacks of its samples it is part of: a message has the frames, and
for each stack the numbers of its frames. Frame 0 is zeros. The layout of a message follows from its prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.arrays import ArrayLayout, ArraySpec, specs
from headrace.cluster.packing import Packing
from headrace.cluster.protocol import SAMPLES
from headrace.config import ConfigError
from headrace.experience.replay.buffer import ReplayField
from headrace.transport.messages import HEADER, LARGEST_MESSAGE, MessageLayout, ProtocolError

STATISTICS = ("size", "total", "inserts", "samples", "updates", "late", "overwritten", "evicted", "bytes", "room")
"""What is known of a shard: as `ReplayStats` has them, `total` the sum of priority ^ alpha, `bytes` of memory, `room`."""
COUNTED = ("inserts", "samples", "updates", "late", "overwritten", "evicted")
"""Those that are counters: they go on when a shard is lost and another takes its place."""
FRAMES, FIRST, NEXT = "frames/", "first/", "next/"


class Drawn(NamedTuple):
    """Samples as a shard drew them, before they are written as a message."""

    arrays: dict[str, np.ndarray]  # as `SampleCodec.arrays` lays them out; of frames as many as there are
    total: float  # the sum of priority ^ alpha of the shard when they were drawn


@dataclass(frozen=True)
class Samples:
    """A message of samples, as the learner reads it."""

    number: int  # of the request that it answers
    statistics: np.ndarray  # float64 [STATISTICS], after the draw
    total: float
    arrays: dict[str, np.ndarray]  # views of the message


class SampleCodec:
    """Writes samples as messages, and reads them.

    Args:
        fields: of the replay.
        size: most samples of a message.
        length: rows of a sequence; 0: transitions are sampled.
        compression: `cluster.compression`.

    Raises `ConfigError` for samples that are too large for a message.
    """

    def __init__(self, fields: Mapping[str, ReplayField], size: int, length: int, compression: str) -> None:
        self.fields, self.size, self.length = dict(fields), size, length
        self._packing = Packing(compression)
        self._memory: dict[str, np.ndarray] | None = None
        self._observed = [name for name, field in fields.items() if field.stack]
        self._prefix = MessageLayout(
            specs(
                number=((), np.int64),
                samples=((), np.int64),
                total=((), np.float64),
                statistics=((len(STATISTICS),), np.float64),
                frames=((len(self._observed),), np.int64),
            )
        )
        self.largest = self._body(size, self.most_frames(size)).nbytes  # most bytes of a message, before compression
        if self.largest > LARGEST_MESSAGE:
            raise ConfigError(
                f"a batch of {self.largest / 2**20:,.0f} MiB is too large to be sent by a shard of the replay "
                f"({LARGEST_MESSAGE / 2**20:,.0f} MiB): use a smaller learning.batch_size, or replay.shards learner"
            )

    def schema(self) -> list[Any]:
        """What both sides must agree about, as JSON types."""
        fields = [[name, field.dtype.str, list(field.shape), field.stack] for name, field in self.fields.items()]
        return [fields, self.size, self.length, self._packing.name]

    def most_frames(self, samples: int) -> list[int]:
        """Largest number of frames in a message with this many samples, for each field of observations."""
        stacks = [self.fields[name].stack for name in self._observed]
        return [1 + samples * (self.length + stack - 1 if self.length else 2 * stack) for stack in stacks]

    def arrays(self, samples: int, frames: list[int]) -> dict[str, ArraySpec]:
        """The arrays of a message with this many samples, and this many frames for each field of observations."""
        number, count = np.dtype("<f4"), np.dtype("<i4")
        rows = (samples, self.length) if self.length else (samples,)
        found = {"keys": ArraySpec((samples,), np.dtype("<u8")), "probabilities": ArraySpec((samples,), np.dtype("<f8"))}
        found |= {"reward": ArraySpec(rows, number), "discount": ArraySpec(rows, number)}
        if self.length:
            found["age_flags"] = ArraySpec(rows, np.dtype("<u4"))
        for name, field in self.fields.items():
            if not field.stack:
                found[FIRST + name] = ArraySpec((*rows, *field.shape), field.dtype.newbyteorder("<"))
        for name, there in zip(self._observed, frames, strict=True):
            field = self.fields[name]
            found[FIRST + name] = ArraySpec((*rows, field.stack), count)
            if not self.length:
                found[NEXT + name] = ArraySpec((*rows, field.stack), count)
            found[FRAMES + name] = ArraySpec((there, *field.shape), field.dtype.newbyteorder("<"))
        return found

    def _body(self, samples: int, frames: list[int]) -> ArrayLayout:
        return ArrayLayout(self.arrays(samples, frames), alignment=8, start=self._prefix.nbytes)

    def draw(self, replay: Any, positions: np.ndarray, parts: float) -> Drawn | None:
        """Draw from a shard's native replay (its `sample_pooled`). None: it is empty. What was drawn is overwritten by the next
        draw.

        Args:
            positions: float64 [n], of the samples, in units of `parts` equal parts of the sum of priority ^ alpha.
        """
        if self._memory is None:
            largest = self.arrays(self.size, self.most_frames(self.size))
            self._memory = {name: np.empty(x.shape, x.dtype) for name, x in largest.items()}
        a = {name: x if name.startswith(FRAMES) else x[: len(positions)] for name, x in self._memory.items()}
        fields = [a[FIRST + name] for name in self.fields]
        after, frames = [a.get(NEXT + name) for name in self.fields], [a.get(FRAMES + name) for name in self.fields]
        flags = a["age_flags"].reshape(-1) if self.length else None
        numbers = (a["reward"].reshape(-1), a["discount"].reshape(-1), flags)
        drawn = replay.sample_pooled(
            a["keys"], a["probabilities"], positions, parts, self.length, fields, after, frames, *numbers
        )
        if drawn is None:
            return None
        _, total, counts = drawn
        for name, count in zip(self.fields, counts, strict=True):
            if FRAMES + name in a:
                a[FRAMES + name] = a[FRAMES + name][:count]
        return Drawn(a, total)

    def encode(self, number: int, drawn: Drawn | None, statistics: np.ndarray) -> bytes:
        """The answer to request `number`."""
        samples = 0 if drawn is None else len(drawn.arrays["keys"])
        frames = [0 if drawn is None else len(drawn.arrays[FRAMES + name]) for name in self._observed]
        layout = self._body(samples, frames)
        message = bytearray(layout.nbytes)
        HEADER.pack_into(message, 0, SAMPLES, 0)
        total = 0.0 if drawn is None else drawn.total
        values = {"number": number, "samples": samples, "total": total, "statistics": statistics, "frames": frames}
        for name, view in self._prefix.views(message).items():
            view[...] = values[name]
        for name, view in layout.views(message).items():
            if drawn is not None:
                view[...] = drawn.arrays[name]
        return self._packing.pack(message)

    def unpack(self, packed: bytes) -> memoryview:
        """A message that came from a node, checked. Raises `ProtocolError` for one that holds no such samples."""
        message = self._packing.unpack(packed, self.largest)
        if len(message) < self._prefix.nbytes:
            raise ProtocolError(f"samples of {len(message)} bytes")
        prefix = self._prefix.views(message)
        samples, frames = int(prefix["samples"]), prefix["frames"].tolist()
        most = self.most_frames(samples) if 0 <= samples <= self.size else [-1] * len(frames)
        if any(not 0 <= there <= room for there, room in zip(frames, most, strict=True)):
            raise ProtocolError(f"{samples} samples with {frames} frames")
        layout = self._body(samples, frames)
        if len(message) != layout.nbytes:
            raise ProtocolError(f"samples of {len(message)} bytes, where {layout.nbytes} were expected")
        arrays = layout.views(message)
        for name, there in zip(self._observed, frames, strict=True):
            for kind in (FIRST, NEXT):
                numbers = arrays.get(kind + name, np.zeros(0))
                if numbers.size and not 0 <= numbers.min() <= numbers.max() < there:
                    raise ProtocolError("samples of frames that are not there")
        return message

    def read(self, message: Any) -> Samples:
        """What `unpack` gave, or a copy with something behind it."""
        prefix = self._prefix.views(message)
        layout = self._body(int(prefix["samples"]), prefix["frames"].tolist())
        return Samples(int(prefix["number"]), prefix["statistics"], float(prefix["total"]), layout.views(message))
