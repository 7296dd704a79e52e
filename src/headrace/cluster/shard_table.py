"""What the learner and its receivers share of a sharded replay: requests for samples, the answers, and what is known of shards.

The learner makes a request for each shard and draw; the receiver of that shard's node passes it on and writes the answer here. A
request or an answer is complete when its number is there, which is written last. The learner reads an answer before it makes the
next request for the same place, so that nobody overwrites what somebody reads, whoever dies.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from headrace.arrays import ArrayLayout, ArraySpec
from headrace.cluster.protocol import DRAW
from headrace.cluster.sample_codec import COUNTED, STATISTICS
from headrace.shm.primitives import Words
from headrace.shm.segment import Mapped, Segment
from headrace.transport.messages import HEADER, ProtocolError

DRAWS = 2  # draws that are under way at a time: while one is learned from or waits, the next one crosses the network
PREFIX = struct.Struct("<qqdd?7xqq")  # of a DRAW message, behind its header: see `Request`
COUNTERS = [STATISTICS.index(name) for name in COUNTED]


@dataclass
class Request:
    """What the learner asks a shard for. New priorities come first, then transitions are evicted, then samples are drawn."""

    number: int  # never used again
    generation: int  # of the node, and so of its shard
    parts: float  # see `SampleCodec.draw`
    largest: float  # the largest priority so far
    evict: bool
    positions: np.ndarray  # float64 [n]; see `SampleCodec.draw`
    keys: np.ndarray  # uint64 [m]: transitions with new priorities
    priorities: np.ndarray  # float32 [m]

    def to_bytes(self) -> bytes:
        """The message to the node."""
        prefix = (self.number, self.generation, self.parts, self.largest, self.evict)
        sizes = (len(self.positions), len(self.keys))
        arrays = (self.positions.astype("<f8"), self.keys.astype("<u8"), self.priorities.astype("<f4"))
        return HEADER.pack(DRAW, 0) + PREFIX.pack(*prefix, *sizes) + b"".join(array.tobytes() for array in arrays)

    @classmethod
    def from_bytes(cls, message: bytes) -> Request:
        """Raises `ProtocolError` for a message of another size."""
        at = HEADER.size + PREFIX.size
        if len(message) < at:
            raise ProtocolError(f"a draw of {len(message)} bytes")
        number, generation, parts, largest, evict, n, m = PREFIX.unpack_from(message, HEADER.size)
        if n < 0 or m < 0 or len(message) != at + 8 * n + 12 * m:
            raise ProtocolError(f"a draw of {len(message)} bytes for {n} samples and {m} priorities")
        positions = np.frombuffer(message, "<f8", n, at)
        keys = np.frombuffer(message, "<u8", m, at + 8 * n)
        return cls(number, generation, parts, largest, evict, positions, keys, np.frombuffer(message, "<f4", m, at + 8 * (n + m)))


class ShardTable(Mapped):
    """Tables by draw and node; made by the parent, passed to the learner and to every receiver.

    Args:
        nodes: K.
        batch: most samples of a request.
        updates: most new priorities of a request.
        largest: most bytes of an answer.

    Raises `MemoryError` where the machine has not the memory.
    """

    def __init__(self, nodes: int, batch: int, updates: int, largest: int) -> None:
        self.nodes, self.batch, self.updates = nodes, batch, updates
        count, real = np.dtype(np.int64), np.dtype(np.float64)
        asked = (DRAWS, nodes)
        self._layout = ArrayLayout(
            {
                "session": ArraySpec((nodes,), count),
                "generation": ArraySpec((nodes,), count),
                "statistics": ArraySpec((nodes, len(STATISTICS)), real),
                "former": ArraySpec((nodes, len(STATISTICS)), real),
                "asked": ArraySpec(asked, count),
                "answered": ArraySpec(asked, count),
                "sizes": ArraySpec((*asked, 3), count),
                "numbers": ArraySpec((*asked, 2), real),
                "positions": ArraySpec((*asked, batch), real),
                "keys": ArraySpec((*asked, updates), np.dtype(np.uint64)),
                "priorities": ArraySpec((*asked, updates), np.dtype(np.float32)),
                "answers": ArraySpec((*asked, largest), np.dtype(np.uint8)),
            }
        )
        self._segment = Segment(self._layout.nbytes, purpose="batches from the shards of the replay")
        self.news = Words(nodes + 1)
        """Word k changes with a request to node k, the last one with everything that comes from any node."""
        self._map()

    def _map(self) -> None:
        self._views = self._layout.views(self._segment.buffer)
        self.session = self._views["session"]
        """int64 [K]: odd while a stream to the shard is open; changes whenever one begins or ends."""
        self.generation = self._views["generation"]  # int64 [K]: of the node whose shard this is
        self.statistics = self._views["statistics"]  # float64 [K, STATISTICS] of the shards that are or were there last
        self.former = self._views["former"]  # the same of shards before, all together: only COUNTERS

    # -- the learner ------------------------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The largest number of a request so far, also where a learner was killed while it replaced that request."""
        return int(max(self._views["asked"].max(), self._views["answered"].max()))

    def ask(self, draw: int, node: int, request: Request) -> None:
        """Make a request. An earlier one of this place was answered, or its stream has ended."""
        v, place = self._views, (draw, node)
        v["asked"][place] = 0
        n, m = len(request.positions), len(request.keys)
        v["sizes"][place] = (request.generation << 1 | request.evict, n, m)
        v["numbers"][place] = (request.parts, request.largest)
        v["positions"][place][:n] = request.positions
        v["keys"][place][:m] = request.keys
        v["priorities"][place][:m] = request.priorities
        v["asked"][place] = request.number
        self.news.add(node)

    def answered(self, draw: int, node: int) -> int:
        """The number of the request that was answered last at this place."""
        return int(self._views["answered"][draw, node])

    def answer(self, draw: int, node: int) -> np.ndarray:
        """The answer, which is there until the next request for this place: a message for `SampleCodec.read`."""
        return self._views["answers"][draw, node]

    # -- a receiver -------------------------------------------------------------------------------------------------------

    def request(self, draw: int, node: int, after: int) -> Request | None:
        """The request at this place if its number is above `after`."""
        v, place = self._views, (draw, node)
        if (number := int(v["asked"][place])) <= after:
            return None
        generation, n, m = v["sizes"][place].tolist()
        parts, largest = v["numbers"][place].tolist()
        arrays = (v["positions"][place][:n].copy(), v["keys"][place][:m].copy(), v["priorities"][place][:m].copy())
        request = Request(number, generation >> 1, parts, largest, bool(generation & 1), *arrays)
        return request if int(v["asked"][place]) == number else None  # else it is being replaced

    def write_answer(self, node: int, number: int, message: memoryview) -> None:
        """Write an answer to the place of its request; drop it if nobody waits for it any more."""
        v = self._views
        for draw in np.flatnonzero(v["asked"][:, node] == number).tolist():
            v["answers"][draw, node, : len(message)] = np.frombuffer(message, np.uint8)
            v["answered"][draw, node] = number
        self.news.add(self.nodes)

    def begin(self, node: int, generation: int) -> None:
        """A stream to the shard of this node begins."""
        if generation != self.generation[node]:
            self.former[node, COUNTERS] += self.statistics[node, COUNTERS]
            self.statistics[node] = 0
            self.generation[node] = generation
        self.session[node] += 1 + self.session[node] % 2
        self.news.add(self.nodes)

    def end(self, node: int) -> None:
        """It has ended."""
        self.session[node] += self.session[node] % 2
        self.news.add(self.nodes)
