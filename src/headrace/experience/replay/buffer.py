"""Prioritized replay in shared memory: many writers, one or more readers, every frame stored once.

A *history* holds what one environment went through: rows in time order, one per step, each with the observation, the action
taken on it and the reward and discount that followed. A *transition* is (history, time): its n-step return, its frame stack
and the stack n steps later are rebuilt from the rows when it is sampled. Time grows without end and is part of the key, so a
key is never used twice, and a priority that comes back for evicted data is recognised, dropped and counted.

    fields = {"observation": ReplayField((84, 84), np.uint8, stack=4), "action": ReplayField((), np.int64)}
    replay = Replay(ReplayConfig(histories=8, minimum=1000), fields)  # can be an argument of a process that is started
    batch = replay.sample(512)              # in the learner; others write (`headrace.experience.replay.writer`)
    replay.update(batch.keys, new_priorities)

Sampling is proportional, P(k) = p_k^alpha / sum of p^alpha over everything (Schaul et al. 2016, arXiv 1511.05952), with
the eviction rules of Ape-X (Horgan et al. 2018, arXiv 1803.00933). Adding never waits. The memory is anonymous and
belongs to the processes that use it: nothing is left behind however they end.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

import headrace._native.replay as native
from headrace.arrays import ArraySpec
from headrace.shm.primitives import Segment

if TYPE_CHECKING:  # processes that only add to the replay do not need torch
    import torch


@dataclass(frozen=True, kw_only=True)
class ReplayField(ArraySpec):
    """One column of the rows; shape and dtype are of one row (one frame, not a stack)."""

    stack: int = 0
    """Observations: how many successive frames a sample holds, from 1. 0: not an observation; it is sampled at the
    transition's start only (actions, core states)."""
    compressed: bool = False  # packed in blocks of rows by the replay's codec

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: frames are stacked along the first axis (a new one for [H, W] frames)."""
        if self.stack <= 1:
            return self.shape
        return (self.stack, *self.shape) if len(self.shape) < 3 else (self.stack * self.shape[0], *self.shape[1:])


@dataclass(frozen=True)
class ReplayConfig:
    """What a replay keeps and how it samples. Defaults: Ape-X DQN."""

    histories: int  # Environments; each has one writer at a time
    capacity: int = 2_000_000  # soft capacity in transitions: `evict` brings the replay back to it; adding never waits for that
    slack: float = 1.1
    """Rows are kept for slack x capacity. Transitions that are still there when a history's rows are used again are lost
    and counted as overwritten. Proportional eviction keeps old transitions longer and wants more."""
    period: int = 1
    """Rows between two starts of transitions or sequences: with 40, capacity and minimum count sequences of 40 rows each."""
    window: int = 0  # sequences: rows that one must have behind its start before it can be sampled, besides its last n steps
    n_step: int = 3  # steps of a return
    alpha: float = 0.6  # priority exponent; 0 samples uniformly
    beta: float = 0.4  # exponent of the importance weights (N P)^-beta, which are divided by the batch's largest
    floor: float = 1e-6  # priorities below are raised to it, so that everything can be sampled
    stratified: bool = True
    """One draw from each of B equal parts of the mass instead of B independent ones; the expectation is the same."""
    minimum: int = 50_000  # transitions that must be there before the first sample
    evict_alpha: float | None = None
    """None: the oldest arrivals are evicted. A number: proportional to p^evict_alpha (Ape-X DPG: -0.4)."""
    samples_per_insert: float | None = None
    """Samples per inserted transition that `may_sample` and `may_insert` keep to, within `ratio_band`. None: no limit."""
    ratio_band: float = 10_000.0  # how many samples the ratio may be off
    codec: Literal["none", "lz4", "zstd"] = "none"
    """Compression of the fields that ask for it. LZ4 is taken from the system or from the `lz4` package; Zstandard from
    the system."""
    codec_level: int = 1  # LZ4: acceleration (more is faster and larger). Zstandard: level (negative is faster).
    block: int = 8  # rows per compressed block; 8, 16, ... More compress better and cost more to sample.
    packed_share: float = 0.2
    """Memory set aside for the rows of a compressed field, as a share of what they take unpacked. A history whose rows pack worse
    keeps fewer of them: see `Replay.room`."""
    seed: int = 0  # of the sampling

    @property
    def rows(self) -> int:
        """Rows of each history."""
        unit = math.lcm(8, self.block)
        share = self.capacity * self.period / self.histories
        # Only in small replays of sequences is the slack less than the window.
        return -(-math.ceil(max(share * self.slack, share + self.window) + self.n_step + 8) // unit) * unit


@dataclass(frozen=True)
class ReplayBatch:
    """B samples. The tensors are the caller's, or new ones; a batch keeps those that it was made with."""

    first: dict[str, torch.Tensor]  # every field at the transition's start, [B, *sample_shape]
    next: dict[str, torch.Tensor]
    """Observations n steps later, or the last one of an episode that was truncated before, [B, *sample_shape]. After termination
    it is any observation: the discount is 0."""
    reward: torch.Tensor  # n-step return without the bootstrap value, float32 [B]
    discount: torch.Tensor  # what the value of `next` is multiplied with: gamma^n, 0 after termination. float32 [B].
    weights: torch.Tensor  # importance weights, largest 1. float32 [B].
    keys: npt.NDArray[np.uint64]  # what `update` wants, uint64 [B]

    def __getstate__(self) -> dict[str, Any]:
        """A copy has tensors of its own, which `native` does not know."""
        return {name: value for name, value in vars(self).items() if name != "native"}

    @cached_property
    def native(self) -> dict[str, Any]:
        """Arguments of the native `sample`, which fills the same memory again and again. Fields are in the replay's order."""
        return {
            "keys": self.keys, "weights": self.weights.numpy(),
            "first": [x.numpy() for x in self.first.values()],
            "next": [self.next[name].numpy() if name in self.next else None for name in self.first],
            "reward": self.reward.numpy(), "discount": self.discount.numpy(),
        }  # fmt: skip


@dataclass
class SequenceBatch:
    """B sequences of L rows in time order, for recurrent learners: NumPy arrays, batch first."""

    fields: dict[str, npt.NDArray[Any]]  # every field, [B, L, *sample_shape]
    reward: npt.NDArray[np.float32]  # [B, L]
    discount: npt.NDArray[np.float32]  # [B, L], per step
    last: npt.NDArray[np.bool_]  # [B, L]: the episode ended with this action
    final: npt.NDArray[np.bool_]  # [B, L]: an observation on which no action was taken, such as an episode's last one
    weights: npt.NDArray[np.float32]  # [B]: importance weights, largest 1
    keys: npt.NDArray[np.uint64]  # [B]: what `update` wants


@dataclass(frozen=True)
class ReplayStats:
    """Counters since the replay was made, in transitions."""

    size: int  # transitions that can be sampled
    inserts: int
    samples: int
    updates: int
    late: int  # priorities that came back for data already gone
    overwritten: int  # lost before eviction because their history's rows were used again
    evicted: int


class LearnerReplay(ABC):
    """A replay as its learner sees it, wherever its transitions are: in this machine's memory (`Replay`) or elsewhere."""

    config: ReplayConfig
    fields: dict[str, ReplayField]

    @abstractmethod
    def sample(self, size: int, into: ReplayBatch | None = None, *, threads: int = 1) -> ReplayBatch | None:
        """Draw `size` transitions with replacement; None while fewer than the minimum are there. `into`: an earlier batch of that
        size, whose tensors are filled; the keys are those of the batch that is returned. `threads`: that copy and decode. The
        interpreter is free meanwhile."""

    @abstractmethod
    def sample_sequences(self, size: int, length: int, *, threads: int = 1) -> SequenceBatch | None:
        """As `sample`, but of each transition drawn the rows [time, time + length), which must be there when its priority is
        given."""

    @abstractmethod
    def update(self, keys: npt.NDArray[np.uint64], priorities: npt.ArrayLike) -> int:
        """New priorities (float32 [B], not negative) of what a batch with these keys held; returns how many came too late.

        Raises:
            ValueError: a priority is negative or not finite.
        """

    @abstractmethod
    def evict(self) -> int:
        """Remove everything above the capacity, at once; returns how many transitions that were, as far as it is known."""

    @abstractmethod
    def stats(self) -> ReplayStats:
        """Counters, after taking in what writers have published."""

    @abstractmethod
    def room(self) -> int:
        """Transitions that there is room for: `capacity`, or fewer where the newest rows pack worse than `packed_share`."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Memory that the kernel has given to the replay; it grows as histories fill for the first time."""

    def metrics(self) -> dict[str, float]:
        """Further metrics of this kind of replay since the last call, by name."""
        return {}

    def empty_batch(self, size: int, pin: bool = False) -> ReplayBatch:
        """Memory for a batch of `size` samples, to be given to `sample` again and again."""
        import torch

        from headrace.accelerator.staging import torch_dtype

        def empty(f: ReplayField) -> torch.Tensor:
            return torch.empty((size, *f.sample_shape), dtype=torch_dtype(f.dtype), pin_memory=pin)

        first = {name: empty(f) for name, f in self.fields.items()}
        after = {name: empty(f) for name, f in self.fields.items() if f.stack}
        reward, discount, weights = (torch.empty(size, dtype=torch.float32, pin_memory=pin) for _ in range(3))
        return ReplayBatch(first, after, reward, discount, weights, np.empty(size, np.uint64))

    def may_sample(self, size: int) -> bool:
        """Is the minimum there, and does the samples-per-insert limit allow `size` more samples?"""
        stats, ratio = self.stats(), self.config.samples_per_insert
        if stats.size < self.config.minimum:
            return False
        return ratio is None or stats.samples + size <= ratio * (stats.inserts - self.config.minimum) + self.config.ratio_band

    def may_insert(self) -> bool:
        """Does the samples-per-insert limit allow further inserts? Adding itself never waits; actors may ask."""
        stats, ratio = self.stats(), self.config.samples_per_insert
        if ratio is None or stats.size < self.config.minimum:
            return True
        return ratio * (stats.inserts - self.config.minimum) - stats.samples < self.config.ratio_band

    def wait(self, size: int, timeout: float) -> bool:
        """Wait until `may_sample(size)`, at most `timeout` seconds; says whether it may."""
        deadline = time.monotonic() + timeout
        while not self.may_sample(size):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        return True


class Replay(LearnerReplay):
    """The replay. Can be an argument of a process that `multiprocessing` starts; the copy shares the memory.

    `replay_layout` makes configurations that can work. Raises:
        MemoryError: the machine has not the memory.
        RuntimeError: the codec's library is not there.
    """

    def __init__(self, config: ReplayConfig, fields: Mapping[str, ReplayField], segment: Segment | None = None) -> None:
        self.config, self.fields = config, dict(fields)
        create = None
        if segment is None:
            create = _native_config(config, self.fields)
            segment = Segment(create.bytes_needed, purpose="the replay")
        self.segment = segment
        self.native = native.Replay(segment.fd, create, _codec_libraries(config.codec))

    def __reduce__(self) -> tuple[Callable[..., Replay], tuple[Any, ...]]:
        return type(self), (self.config, self.fields, self.segment)

    def sample(self, size: int, into: ReplayBatch | None = None, *, threads: int = 1) -> ReplayBatch | None:
        batch = into or self.empty_batch(size)
        c = self.config
        there = self.native.sample(**batch.native, beta=c.beta, stratified=c.stratified, minimum=c.minimum, threads=threads)
        return batch if there else None

    def sample_keys(self, size: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32], npt.NDArray[np.float64]] | None:
        """Draw without copying data: keys uint64, importance weights float32, probabilities float64, each [size]. None while
        fewer than the minimum are there."""
        keys, weights, probabilities = np.empty(size, np.uint64), np.empty(size, np.float32), np.empty(size)
        there = self.native.sample(
            keys, weights, self.config.beta, self.config.stratified, self.config.minimum, probabilities=probabilities
        )
        return (keys, weights, probabilities) if there else None

    def sample_sequences(self, size: int, length: int, *, threads: int = 1) -> SequenceBatch | None:
        fields = {name: np.empty((size, length, *f.sample_shape), f.dtype) for name, f in self.fields.items()}
        reward, discount = np.empty((size, length), np.float32), np.empty((size, length), np.float32)
        flags, keys, weights = np.empty((size, length), np.uint32), np.empty(size, np.uint64), np.empty(size, np.float32)
        rows = (list(fields.values()), reward.reshape(-1), discount.reshape(-1), flags.reshape(-1))
        c = self.config
        if not self.native.sample_windows(keys, weights, c.beta, c.stratified, c.minimum, length, *rows, threads):
            return None
        last, final = flags & native.LAST != 0, flags & native.FINAL != 0
        return SequenceBatch(fields, reward, discount, last, final, weights, keys)

    def update(self, keys: npt.NDArray[np.uint64], priorities: npt.ArrayLike) -> int:
        return int(self.native.update(keys, np.ascontiguousarray(priorities, np.float32)))

    def evict(self) -> int:
        return int(self.native.evict(self.config.capacity))

    def stats(self) -> ReplayStats:
        return ReplayStats(**self.native.statistics())

    def room(self) -> int:
        c = self.config
        kept = [_ring_bytes(c, self.fields) / packed for packed in self.native.packed_row_bytes() if packed]
        rows = int(min([c.rows, *kept])) - c.window - c.n_step - c.block
        return min(c.capacity, max(0, rows) * c.histories // c.period)

    def held_bytes(self) -> int:
        return os.fstat(self.segment.fd).st_blocks * 512


def _native_config(config: ReplayConfig, fields: dict[str, ReplayField]) -> Any:
    result = native.Config()
    for name in ("histories", "rows", "n_step", "alpha", "floor", "seed", "codec_level", "block"):
        setattr(result, name, getattr(config, name))
    result.evict_alpha = config.evict_alpha or 0.0
    result.codec = getattr(native.Codec, config.codec)
    result.ring_bytes = _ring_bytes(config, fields)
    for f in fields.values():
        result.add_field(f.nbytes, f.stack, f.compressed)
    return result


def _ring_bytes(config: ReplayConfig, fields: Mapping[str, ReplayField]) -> int:
    """Memory for the packed rows of one field of one history."""
    row = max((f.nbytes for f in fields.values() if f.compressed), default=0)
    block = row * config.block
    # Room for a few blocks that do not compress, however small the history.
    return max(math.ceil(config.rows * config.packed_share * row), 4 * (block + block // 128 + 1024))


def _codec_libraries(codec: str) -> list[str]:
    if codec == "zstd":
        return ["libzstd.so.1", "libzstd.1.dylib"]
    if codec == "lz4":
        # The package's extension module exports LZ4's functions.
        spec = importlib.util.find_spec("lz4")
        folders = spec.submodule_search_locations if spec else None
        packaged = [str(p) for folder in folders or [] for p in Path(folder, "block").glob("_block*.so")]
        return ["liblz4.so.1", "liblz4.1.dylib", *packaged]
    return []
