"""What the learner and its receivers share of a sharded replay: requests for samples, the answers, and what is known of shards.

The learner makes a request for each shard and draw; the receiver of that shard's node passes it on and writes the answer here. A
request or an answer is complete when its number is there, which is written last. The learner reads an answer before it makes the
next request for the same place, so that nobody overwrites what somebody reads, whoever dies.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from headrace.cluster.protocol import DRAW
from headrace.cluster.sample_codec import COUNTED, STATISTICS
from headrace.shm.primitives import Words
from headrace.shm.segment import Tables
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


class ShardTable(Tables):
    """Tables by draw and node; made by the parent, passed to the learner and to every receiver.

    Args:
        nodes: K.
        batch: most samples of a request.
        updates: most new priorities of a request.
        largest: most bytes of an answer.

    Raises `MemoryError` where the machine has not the memory.
    """

    PURPOSE = "batches from the shards of the replay"

    session: np.ndarray
    """int64 [K]: odd while a stream to the shard is open; changes whenever one begins or ends."""
    generation: np.ndarray  # int64 [K]: of the node whose shard this is
    statistics: np.ndarray  # float64 [K, STATISTICS] of the shards that are or were there last
    former: np.ndarray  # the same of shards before, all together: only COUNTERS
    asked: np.ndarray  # int64 [DRAWS, K]: number of each request, in whose places the following arrays have their rows
    replied: np.ndarray  # int64: number of the request that was answered last
    sizes: np.ndarray  # int64 [..., 3]: generation and whether to evict, numbers of samples and of new priorities
    numbers: np.ndarray  # float64 [..., 2]: `parts` and `largest`
    positions: np.ndarray  # float64 [..., batch]
    keys: np.ndarray  # uint64 [..., updates]
    priorities: np.ndarray  # float32 [..., updates]
    answers: np.ndarray  # uint8 [..., largest]

    def __init__(self, nodes: int, batch: int, updates: int, largest: int) -> None:
        self.nodes, self.batch, self.updates = nodes, batch, updates
        place = (DRAWS, nodes)
        self._allocate(
            session=((nodes,), np.int64), generation=((nodes,), np.int64), statistics=((nodes, len(STATISTICS)), np.float64),
            former=((nodes, len(STATISTICS)), np.float64), asked=(place, np.int64), replied=(place, np.int64),
            sizes=((*place, 3), np.int64), numbers=((*place, 2), np.float64), positions=((*place, batch), np.float64),
            keys=((*place, updates), np.uint64), priorities=((*place, updates), np.float32),
            answers=((*place, largest), np.uint8),
        )  # fmt: skip
        self.news = Words(nodes + 1)
        """Word k changes with a request to node k, the last one with everything that comes from any node."""

    # -- the learner ------------------------------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The largest number of a request so far, also where a learner was killed while it replaced that request."""
        return int(max(self.asked.max(), self.replied.max()))

    def ask(self, draw: int, node: int, request: Request) -> None:
        """Make a request. An earlier one of this place was answered, or its stream has ended."""
        place = (draw, node)
        self.asked[place] = 0
        n, m = len(request.positions), len(request.keys)
        self.sizes[place] = (request.generation << 1 | request.evict, n, m)
        self.numbers[place] = (request.parts, request.largest)
        self.positions[place][:n] = request.positions
        self.keys[place][:m] = request.keys
        self.priorities[place][:m] = request.priorities
        self.asked[place] = request.number
        self.news.add(node)

    def answered(self, draw: int, node: int) -> int:
        """The number of the request that was answered last at this place."""
        return int(self.replied[draw, node])

    def answer(self, draw: int, node: int) -> np.ndarray:
        """The answer, which is there until the next request for this place: a message for `SampleCodec.read`."""
        return self.answers[draw, node]

    # -- a receiver -------------------------------------------------------------------------------------------------------

    def request(self, draw: int, node: int, after: int) -> Request | None:
        """The request at this place if its number is above `after`."""
        place = (draw, node)
        if (number := int(self.asked[place])) <= after:
            return None
        generation, n, m = self.sizes[place].tolist()
        parts, largest = self.numbers[place].tolist()
        arrays = (self.positions[place][:n].copy(), self.keys[place][:m].copy(), self.priorities[place][:m].copy())
        request = Request(number, generation >> 1, parts, largest, bool(generation & 1), *arrays)
        return request if int(self.asked[place]) == number else None  # else it is being replaced

    def write_answer(self, node: int, number: int, message: memoryview) -> None:
        """Write an answer to the place of its request; drop it if nobody waits for it any more."""
        for draw in np.flatnonzero(self.asked[:, node] == number).tolist():
            self.answers[draw, node, : len(message)] = np.frombuffer(message, np.uint8)
            self.replied[draw, node] = number
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
