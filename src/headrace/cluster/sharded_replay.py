"""A prioritized replay in shards, one on each sampling node, as the learner sees it. docs/ape-x.md has the mathematics.

A batch is drawn over the ranges of the shards, one after the other, each as long as the shard's last known sum of priority ^
alpha: one sample in each of B equal parts of the whole (stratified). A known sum may be out of date, so a shard scales its range
to its present sum, draws there, and answers with the probability within the shard. A transition's probability is then

    q_i = pi_k * p_i^alpha / S_k        pi_k: the share of shard k in the ranges; S_k: the sum in shard k when it drew

however old the known sums were, and its importance weight is (N q_i)^-beta, divided by the batch's largest. With one shard this
is a draw of `Replay`, bit for bit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace._native.replay as native
from headrace.cluster.sample_codec import COUNTED, FIRST, FRAMES, NEXT, STATISTICS, SampleCodec, Samples
from headrace.cluster.shard_table import DRAWS, Request, ShardTable
from headrace.experience.replay.buffer import (
    LearnerReplay,
    ReplayBatch,
    ReplayConfig,
    ReplayField,
    ReplayStats,
    SequenceBatch,
)

LATE = 5.0  # seconds after which a shard that has not answered is sampled no more until it does
POLL = 0.1  # most seconds between two looks at whether a shard is late
SIZE, TOTAL, ROOM = (STATISTICS.index(name) for name in ("size", "total", "room"))


@dataclass
class _Part:
    """The samples of a batch that one shard is asked for."""

    node: int
    generation: int
    number: int
    session: int
    rows: np.ndarray  # int64 [n]: their places in the batch
    share: float  # share of the batch that is expected from this request
    asked: float  # when (monotonic)


@dataclass
class _Plan:
    """A batch that is under way."""

    draw: int
    sums: dict[int, float]  # what was known of the shards when it was drawn, of those that are still there
    parts: list[_Part]


class ShardedReplay(LearnerReplay):
    """See the module. Can be an argument of a process that is started. One thread at a time samples; any may do the rest.

    Keys are uint64 [B, 2]: the key within the shard, and the shard: generation x nodes + node.

    Args:
        config: of the whole replay.
        table: shared with the receivers of the nodes.
        codec: of batches of one size.
    """

    def __init__(self, config: ReplayConfig, fields: Mapping[str, ReplayField], table: ShardTable, codec: SampleCodec) -> None:
        self.config, self.fields, self.table, self.codec = config, dict(fields), table, codec
        self._number = table.last_number
        self._random = native.Random(config.seed + self._number)  # another one in a learner that takes the place of a dead one
        self._plans: deque[_Plan] = deque()
        self._draws = 0
        self._late: dict[int, tuple[int, _Part]] = {}
        """Shards that have not answered in time: the draw and the part that they were asked for."""
        self._lock = threading.Lock()  # of the following: what goes with the next requests
        self._updates: list[list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]]] = [[] for _ in range(table.nodes)]
        self._evict = [False] * table.nodes
        self._largest = 1.0
        self._dropped = 0  # priorities for shards that are gone
        self._measured = np.zeros((table.nodes, 3))
        """By node: samples, requests, and the sum of the relative differences between the sum known and the sum at the draw."""

    def __reduce__(self) -> tuple[Callable[..., ShardedReplay], tuple[Any, ...]]:
        return type(self), (self.config, self.fields, self.table, self.codec)

    # -- sampling ---------------------------------------------------------------------------------------------------------

    def sample(self, size: int, into: ReplayBatch | None = None, *, threads: int = 1) -> ReplayBatch | None:
        """See `LearnerReplay.sample`; `size` is that of the codec. None also where no shard is there."""
        batch = into or self.empty_batch(size)

        def put(rows: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
            import torch

            side_by_side = rows[-1] - rows[0] == len(rows) - 1
            where: Any = slice(int(rows[0]), int(rows[-1]) + 1) if side_by_side else torch.from_numpy(rows)

            def write(target: Any, values: np.ndarray, frames: np.ndarray | None = None) -> None:
                place = target[where] if side_by_side else torch.empty_like(target[: len(rows)])
                if frames is None:
                    place.copy_(torch.from_numpy(values).view(place.shape))
                else:
                    numbers = torch.from_numpy(values).flatten()
                    torch.index_select(torch.from_numpy(frames), 0, numbers, out=place.view(len(numbers), *frames.shape[1:]))
                if not side_by_side:
                    target[where] = place

            write(batch.reward, arrays["reward"])
            write(batch.discount, arrays["discount"])
            for kind, targets in ((FIRST, batch.first), (NEXT, batch.next)):
                for name, target in targets.items():
                    write(target, arrays[kind + name], arrays.get(FRAMES + name))

        drawn = self._next(size, put)
        if drawn is None:
            return None
        keys, probabilities = drawn
        self._weigh(probabilities, batch.weights.numpy())
        return replace(batch, keys=keys)

    def sample_sequences(self, size: int, length: int, *, threads: int = 1) -> SequenceBatch | None:
        """See `LearnerReplay.sample_sequences`; size and length are those of the codec."""
        fields = {name: np.empty((size, length, *f.sample_shape), f.dtype) for name, f in self.fields.items()}
        numbers = {name: np.empty((size, length), np.float32) for name in ("reward", "discount")}
        flags, weights = np.empty((size, length), np.uint32), np.empty(size, np.float32)

        def put(rows: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
            flags[rows] = arrays["age_flags"]
            for name, target in numbers.items():
                target[rows] = arrays[name]
            for name, target in fields.items():
                found = arrays[FIRST + name]
                if self.fields[name].stack:
                    found = arrays[FRAMES + name].take(found.reshape(-1), 0)
                target[rows] = found.reshape(len(rows), *target.shape[1:])

        drawn = self._next(size, put)
        if drawn is None:
            return None
        keys, probabilities = drawn
        self._weigh(probabilities, weights)
        last, final = flags & native.LAST != 0, flags & native.FINAL != 0
        return SequenceBatch(fields, numbers["reward"], numbers["discount"], last, final, weights, keys)

    def _weigh(self, probabilities: np.ndarray, weights: np.ndarray) -> None:
        native.importance_weights(max(1, self.stats().size), probabilities, self.config.beta, weights)

    def _next(
        self, size: int, put: Callable[[np.ndarray, dict[str, np.ndarray]], None]
    ) -> tuple[npt.NDArray[np.uint64], np.ndarray] | None:
        """The next batch: `put` is given the rows and the arrays of each part. Returns keys and probabilities."""
        assert size == self.codec.size, "batches have one size"
        while len(self._plans) < DRAWS and self.may_sample((len(self._plans) + 1) * size) and self._plan():
            pass
        if not self._plans:
            self.table.news.wait_change(self.table.nodes, self.table.news.load(self.table.nodes), POLL)
            return None
        plan = self._plans.popleft()
        keys, probabilities = np.empty((size, 2), np.uint64), np.empty(size)
        answered: list[_Part] = []
        while plan.parts:
            lost = []
            for part in plan.parts:
                samples = self._await(plan.draw, part)
                if samples is None:
                    lost.append(part)
                    continue
                answered.append(part)
                self._measure(part, plan.sums[part.node], samples)
                if len(part.rows):
                    keys[part.rows, 0] = samples.arrays["keys"]
                    keys[part.rows, 1] = part.generation * self.table.nodes + part.node
                    probabilities[part.rows] = samples.arrays["probabilities"]
                    put(part.rows, samples.arrays)
            if not self._draw_again(plan, lost):
                return None
        # Of every shard that has answered, also of one that was lost behind its answer; what came in its place is another one.
        for who in {(part.node, part.generation) for part in answered}:
            of_shard = [part for part in answered if (part.node, part.generation) == who]
            share = sum(part.share for part in of_shard)
            for part in of_shard:
                probabilities[part.rows] *= share
        return keys, probabilities

    def _plan(self) -> bool:
        """Ask the shards for another batch. False if there are none."""
        sums = {k: float(self.table.statistics[k, TOTAL]) for k in self._there() if self.table.statistics[k, TOTAL] > 0}
        if not sums:
            return False
        plan = _Plan(self._draws % DRAWS, sums, [])
        self._ask(plan, np.arange(self.codec.size), 1.0)
        self._plans.append(plan)
        self._draws += 1
        return True

    def _ask(self, plan: _Plan, rows: np.ndarray, share: float) -> None:
        """Draw these rows of a batch, which are so large a share of it, over the ranges of the plan's shards."""
        n = len(rows)
        numbers = np.empty(n)
        self._random.uniform(numbers)
        places = np.arange(n) + numbers
        upto = np.cumsum(list(plan.sums.values()))
        ends = upto / upto[-1]
        shard = np.minimum(np.searchsorted(n * ends, places, side="right"), len(ends) - 1)
        begin = 0.0
        for i, (node, end) in enumerate(zip(plan.sums, ends.tolist(), strict=True)):
            mine = shard == i
            positions, session = np.maximum(places[mine] - n * begin, 0.0), int(self.table.session[node])
            request = self._request(node, n * (end - begin), positions)
            who = (node, request.generation, request.number, session)
            plan.parts.append(_Part(*who, rows[mine], share * (end - begin), monotonic()))
            self.table.ask(plan.draw, node, request)
            begin = end

    def _request(self, node: int, parts: float, positions: np.ndarray) -> Request:
        """The next request to a shard, with everything that it is to be told."""
        self._number += 1
        generation = int(self.table.generation[node])
        with self._lock:
            updates, self._updates[node] = self._updates[node], []
            evict, self._evict[node] = self._evict[node], False
            keys = np.concatenate([np.empty((0, 2), np.uint64), *(keys for keys, _ in updates)])
            priorities = np.concatenate([np.empty(0, np.float32), *(priorities for _, priorities in updates)])
            good = keys[:, 1] // self.table.nodes == generation
            self._dropped += int((~good).sum())
        return Request(self._number, generation, parts, self._largest, evict, positions, keys[good, 0], priorities[good])

    def _await(self, draw: int, part: _Part) -> Samples | None:
        """The answer to a request; None if there will be none, or it comes too late, or there is nothing to draw from."""
        table, k = self.table, part.node
        while True:
            seen = table.news.load(table.nodes)
            if table.answered(draw, k) == part.number:
                samples = self.codec.read(table.answer(draw, k))
                return samples if len(samples.arrays["keys"]) == len(part.rows) else None
            if table.session[k] != part.session or not part.session % 2:  # lost since it was asked, or just before
                return None
            if monotonic() > part.asked + LATE:
                self._late[k] = (draw, part)
                return None
            table.news.wait_change(table.nodes, seen, POLL)

    def _draw_again(self, plan: _Plan, lost: list[_Part]) -> bool:
        """Draw what was lost with shards from the others. False if there are none."""
        plan.parts = []
        if not lost:
            return True
        for part in lost:
            plan.sums.pop(part.node, None)
        there = self._there()
        plan.sums = {k: known for k, known in plan.sums.items() if k in there}
        if not plan.sums:
            return False
        self._ask(plan, np.sort(np.concatenate([part.rows for part in lost])), sum(part.share for part in lost))
        return True

    def _there(self) -> list[int]:
        """Shards that can be asked now."""
        for k, (draw, part) in list(self._late.items()):
            if self.table.session[k] != part.session or self.table.answered(draw, k) == part.number:
                del self._late[k]
        return [k for k in range(self.table.nodes) if self.table.session[k] % 2 and k not in self._late]

    def _measure(self, part: _Part, known: float, samples: Samples) -> None:
        if len(part.rows):
            self._measured[part.node] += (len(part.rows), 1, abs(known / samples.total - 1))

    # -- everything else --------------------------------------------------------------------------------------------------

    def update(self, keys: npt.NDArray[np.uint64], priorities: npt.ArrayLike) -> int:
        """See `LearnerReplay.update`. They go to the shards with the next requests, which count what comes too late there."""
        new = np.asarray(priorities, np.float32)
        if not (np.isfinite(new) & (new >= 0)).all():
            raise ValueError("a priority of an update is negative or not finite")
        self._largest = max(self._largest, float(new.max(initial=0)))
        shard, nodes = keys[:, 1], self.table.nodes
        good = self.table.generation[shard % nodes] == shard // nodes
        with self._lock:
            for k in np.unique(shard[good] % nodes).tolist():
                mine = good & (shard % nodes == k)
                self._updates[k].append((keys[mine], new[mine]))
            self._dropped += int((~good).sum())
        return int((~good).sum())

    def evict(self) -> int:
        """Let each shard remove what is above its share of the capacity, with the next request. Returns 0."""
        with self._lock:
            self._evict = [True] * self.table.nodes
        return 0

    def stats(self) -> ReplayStats:
        """Of the shards that are there; counters also of those that were."""
        counted = (self.table.statistics + self.table.former).sum(0)
        values = {name: int(counted[STATISTICS.index(name)]) for name in COUNTED}
        values["late"] += self._dropped
        return ReplayStats(size=self._sum("size"), **values)

    def _sum(self, name: str) -> int:
        return int(self.table.statistics[self.table.session % 2 == 1, STATISTICS.index(name)].sum())

    def room(self) -> int:
        """See `LearnerReplay.room`. A shard that is not there, or has not yet said how its rows pack, counts with its share."""
        capacity = self.config.capacity
        rooms = self.table.statistics[:, ROOM] * (self.table.session % 2)
        return min(capacity, int(rooms.sum() + capacity * np.mean(rooms == 0)))

    def held_bytes(self) -> int:
        return self._sum("bytes")

    def metrics(self) -> dict[str, float]:
        """See `headrace.runs.metrics.OF_SHARD`."""
        (samples, requests, difference), self._measured = self._measured.T.copy(), np.zeros_like(self._measured)
        there = np.flatnonzero(self.table.session % 2).tolist()
        found = {"replay/shards": float(len(there))}
        for k in there:
            size, total = self.table.statistics[k, [SIZE, TOTAL]].tolist()
            found |= {f"replay/shard-{k}/size": size, f"replay/shard-{k}/sum": total}
            if requests[k]:
                found[f"replay/shard-{k}/share"] = samples[k] / samples.sum()
                found[f"replay/shard-{k}/staleness"] = difference[k] / requests[k]
        return found
