"""The replay as one would write it without a thought for speed: lists, loops, every stack and return spelled out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from history_writer import HistoryWriter

from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField

TIME_BITS = 40


@dataclass
class NaiveRow:
    observation: np.ndarray
    action: int
    reward: float
    discount: float
    last: bool
    final: bool
    age: int
    zeros: bool = False  # at an episode's first row: zeros stand before it


@dataclass
class NaiveHistory:
    rows: list[NaiveRow] = field(default_factory=list)
    ready: int = 0
    priorities: dict[int, float] = field(default_factory=dict)  # alive transitions
    arrivals: dict[int, int] = field(default_factory=dict)


class NaiveReplay:
    """Only what `capacity` and `rows` bound is missing: it keeps everything ever added and knows what is gone."""

    def __init__(self, config: ReplayConfig, stack: int) -> None:
        self.config, self.stack = config, stack
        self.histories = [NaiveHistory() for _ in range(config.histories)]
        self.inserts = self.late = self.evicted = self.overwritten = 0

    def append(self, history: int, rows: list[NaiveRow]) -> None:
        self.histories[history].rows += rows

    def ready(self, history: int, priorities: list[float]) -> None:
        this = self.histories[history]
        for p in priorities:
            if this.ready < len(this.rows) - self.config.rows:  # overwritten before its priority came
                self.inserts += 1
                self.overwritten += 1
            elif p >= 0 and not this.rows[this.ready].final:
                this.priorities[this.ready], this.arrivals[this.ready] = p, self.inserts
                self.inserts += 1
            this.ready += 1

    def retire(self) -> None:
        for history in self.histories:
            for t in [t for t in history.priorities if t < len(history.rows) - self.config.rows]:
                del history.priorities[t]
                self.overwritten += 1

    def update(self, keys: list[int], priorities: list[float]) -> None:
        for key, p in zip(keys, priorities, strict=True):
            history, t = self.histories[key >> TIME_BITS], key & ((1 << TIME_BITS) - 1)
            if t in history.priorities:
                history.priorities[t] = p
            else:
                self.late += 1

    def evict_oldest(self) -> None:
        alive = sorted((self.histories[i].arrivals[t], i, t) for i, t in self.alive())
        for _, i, t in alive[: max(0, len(alive) - self.config.capacity)]:
            del self.histories[i].priorities[t]
            self.evicted += 1

    def alive(self) -> list[tuple[int, int]]:
        return [(i, t) for i, history in enumerate(self.histories) for t in history.priorities]

    def mass(self, history: int, t: int) -> float:
        return max(float(np.float32(self.histories[history].priorities[t])), self.config.floor) ** self.config.alpha

    def readable(self, history: int, t: int) -> bool:
        """Is the whole stack that ends at t still there?"""
        rows = self.histories[history].rows
        return t - min(self.stack - 1, rows[t].age) >= len(rows) - self.config.rows

    def frames(self, history: int, t: int) -> np.ndarray:
        rows, result = self.histories[history].rows, []
        for back in range(self.stack - 1, -1, -1):
            inside = back <= rows[t].age
            frame = rows[t - min(back, rows[t].age)].observation
            result.append(frame if inside or not rows[t - rows[t].age].zeros else np.zeros_like(frame))
        return np.stack(result)

    def transition(self, key: int) -> dict[str, Any]:
        history, t = key >> TIME_BITS, key & ((1 << TIME_BITS) - 1)
        rows, u, total, product = self.histories[history].rows, t, 0.0, 1.0
        for _ in range(self.config.n_step):
            total += product * rows[u].reward
            product *= rows[u].discount
            if rows[u].last:
                u += u + 1 < len(rows) and rows[u + 1].final
                break
            u += 1
        return {"observation": self.frames(history, t), "next": self.frames(history, u), "action": rows[t].action,
                "reward": total, "discount": product}


class Episodes:
    """Makes the rows of one history: episodes of random length that terminate or are cut off, with frames that are unique."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], mean_length: float = 6.0) -> None:
        self.rng, self.shape, self.mean_length, self.age, self.pending = rng, shape, mean_length, 0, False

    def rows(self, count: int) -> list[NaiveRow]:
        result = []
        for _ in range(count):
            observation = self.rng.integers(0, 256, self.shape).astype(np.uint8)
            if self.pending:
                result.append(NaiveRow(observation, 0, 0.0, 0.0, False, True, self.age))
                self.pending, self.age = False, 0
                continue
            last = self.rng.random() < 1 / self.mean_length
            terminated = last and self.rng.random() < 0.5
            result.append(NaiveRow(observation, int(self.rng.integers(1000)), float(np.float32(self.rng.normal())),
                                   0.0 if terminated else 0.9, last, False, self.age, self.age == 0 and self.rng.random() < 0.5))
            self.pending = last and not (terminated and self.rng.random() < 0.5)
            self.age = 0 if last and not self.pending else self.age + 1
        return result


def write(writer: HistoryWriter, rows: list[NaiveRow]) -> None:
    writer.append(
        {"observation": np.stack([r.observation for r in rows]), "action": np.array([r.action for r in rows])},
        [r.reward for r in rows], [r.discount for r in rows], [r.last for r in rows], [r.final for r in rows],
        zeros=[r.zeros for r in rows])


def known(rows: list[NaiveRow], ready: int, n: int) -> int:
    """How many rows from `ready` on have all that their n-step return needs."""
    count = 0
    for t in range(ready, len(rows)):
        window = rows[t:t + n]
        ends = [i for i, r in enumerate(window) if r.last]
        if not rows[t].final:
            if ends and window[ends[0]].discount and t + ends[0] + 1 >= len(rows):
                break
            if not ends and t + n >= len(rows):
                break
        count += 1
    return count


def fields(shape: tuple[int, ...], stack: int, compressed: bool = False) -> dict[str, ReplayField]:
    return {"observation": ReplayField(shape, "uint8", stack=stack, compressed=compressed), "action": ReplayField((), "int64")}


def check_batch(replay: Replay, naive: NaiveReplay, size: int, threads: int = 1) -> None:
    """Sample and compare every element of the batch with the slow reconstruction."""
    batch = replay.sample(size, threads=threads)
    assert batch is not None
    for i, key in enumerate(batch.keys.tolist()):
        expected = naive.transition(key)
        first = batch.first["observation"][i]
        np.testing.assert_array_equal(first.reshape(expected["observation"].shape), expected["observation"])
        if expected["discount"]:
            np.testing.assert_array_equal(batch.next["observation"][i].reshape(expected["next"].shape), expected["next"])
        assert batch.first["action"][i] == expected["action"]
        np.testing.assert_allclose(batch.reward[i], expected["reward"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i], expected["discount"], rtol=1e-6)
