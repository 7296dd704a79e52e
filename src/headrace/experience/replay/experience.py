"""The experience of a learner on replay: finished trajectories go into the replay, batches are sampled from it."""

from __future__ import annotations

import math
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.accelerator.graphs import Marker
from headrace.accelerator.staging import to_device, to_host
from headrace.config import Config
from headrace.experience.batch import Arrivals, Batch, Experience, Filling
from headrace.experience.replay import state as replay_state
from headrace.experience.replay.buffer import LearnerReplay, Replay, ReplayBatch
from headrace.experience.replay.layout import OBSERVATION, Sequences, sequences_of
from headrace.experience.replay.writer import SlotWriter
from headrace.shm.primitives import Closed
from headrace.shm.run_control import POLL_INTERVAL, RunControl
from headrace.shm.trajectory_store import TrajectoryStore

REPLAY_FOLDER = "replay"  # beside a checkpoint's own files


def replay_metrics(size: int, inserts: int, samples: int, seconds: float, nbytes: float) -> dict[str, float]:
    """Of any replay: the transitions that it holds and the bytes of one, and what came in and was drawn in so many seconds."""
    seconds = max(1e-9, seconds)
    return {
        "replay/size": float(size),
        "replay/inserts_per_second": inserts / seconds,
        "replay/samples_per_second": samples / seconds,
        "replay/ratio": samples / inserts if inserts else math.nan,
        "replay/bytes_per_transition": nbytes,
    }


class ReplayExperience(Experience):
    """Writes finished trajectories to the replay and samples batches from it. See `Experience`. A replay that is not in this
    machine's memory is written by those who finish the trajectories; their slots say what arrived.

    With `collect` None two threads work ahead from the first `next` on: one writes finished slots, one samples up to
    `replay.prefetch` batches and copies them to the device, on a stream of its own. Both release the interpreter lock while they
    copy and decode. Slots are free again as soon as they are written, so rollout workers do not wait for the learner.

    With `collect` nothing is done before it is asked for: `collect(n)` steps the environments until n slots are finished.

    Args:
        reported_envs: the environments whose episodes are reported; None: all.
        envs: the numbers of the policy's environments; None: all from 0 on.
    """

    def __init__(
        self,
        config: Config,
        store: TrajectoryStore,
        control: RunControl,
        replay: LearnerReplay,
        collect: Callable[[int], None] | None = None,
        reported_envs: range | None = None,
        envs: Sequence[int] | None = None,
    ):
        self._settings, self._size, self._device = config.replay, config.learning.batch_size, config.device
        self._gamma = config.learning.gamma
        self._store, self._control, self._replay, self._collect = store, control, replay, collect
        self._sequences = sequences_of(config)
        self._here = replay if isinstance(replay, Replay) else None  # the replay, if it is in this machine's memory
        self._writer = None if self._here is None else SlotWriter(self._here, store, config, envs)
        self._reported = reported_envs or range(config.num_envs)
        self._arrived, self._lock = list[Arrivals](), threading.Lock()
        self._updates = 0
        self._largest = 1.0  # the largest priority so far: that of new transitions whose error acting did not compute
        self._arriving: tuple[np.ndarray, Tensor] | None = None
        """Keys, and priorities that are on their way from the device until `_priorities_arrived` is passed."""
        self._stream = None if self._device == "cpu" else torch.cuda.Stream(self._device)
        self._copied, self._priorities_arrived = Marker(self._device), Marker(self._device)
        self._said_room = False
        self._before = (perf_counter(), replay.stats())
        self._failure: BaseException | None = None
        count = config.replay.prefetch + 1 if collect is None else 1
        self._free: queue.SimpleQueue[ReplayBatch | None] = queue.SimpleQueue()
        self._sampled: queue.SimpleQueue[_Sampled | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None if self._sequences else replay.empty_batch(self._size, self._device != "cpu"))
        self._current: _Sampled | None = None
        self._threads: list[threading.Thread] = []

    def next(self, timeout: float | None = None) -> Batch | Filling | None:
        """The next batch. Waits for the minimum and for the samples-per-insert limit up to `timeout` seconds (serial: until one
        more trajectory is there); without a batch it gives at least what arrived meanwhile. None at the end of the run."""
        self._current = self._take_sampled(timeout) if self._collect is None else self._sample_in_turn(self._collect)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            arrived, self._arrived = self._arrived, []
        arrivals = Arrivals.sum(arrived)
        if self._current is None:  # what is in the replay counts, also at the end of the run
            return None if self._control.stopped and not arrived else Filling(arrivals)
        if self._stream is not None:
            for x in self._current.fields.values():  # their memory must not be used again before this stream is done with it
                x.record_stream(torch.cuda.current_stream(self._device))
        return Batch(self._current.fields, self._current.version, None, self._current.keys, arrivals)

    def update_priorities(self, keys: np.ndarray, priorities: Tensor) -> None:
        """New priorities, float [B], of what the batch with these keys (uint64 [B]) held. Every `replay.evict_period`
        calls the transitions above the capacity are evicted. From a GPU priorities are on their way until the next call, which
        enters them, so that nobody waits.

        Raises `ValueError` for a priority that is negative or not finite.
        """
        self._enter_priorities()
        self._arriving = keys, to_host(priorities.float())
        self._priorities_arrived.set()
        if self._device == "cpu":
            self._enter_priorities()

    def _enter_priorities(self) -> None:
        if self._arriving is None:
            return
        (keys, priorities), self._arriving = self._arriving, None
        self._priorities_arrived.wait()
        new = priorities.numpy()
        self._replay.update(keys, new)
        self._largest = max(self._largest, float(new.max()))
        self._updates += 1
        if self._updates % self._settings.evict_period == 0:
            self._replay.evict()

    def release(self) -> None:
        """The learner has finished with the batch: its memory may be filled again."""
        if self._current is not None:
            self._free.put(self._current.memory)
            self._current = None

    def metrics(self) -> dict[str, float]:
        """The replay's own numbers; rates since the last call."""
        (since, before), now, stats = self._before, perf_counter(), self._replay.stats()
        self._before = (now, stats)
        nbytes = self._replay.held_bytes() / stats.size if stats.size else math.nan
        counts = (stats.inserts - before.inserts, stats.samples - before.samples)
        return replay_metrics(stats.size, *counts, now - since, nbytes) | {
            "replay/late_priorities": float(stats.late),
            "replay/overwritten": float(stats.overwritten),
            "replay/evicted": float(stats.evicted),
            **self._replay.metrics(),
        }

    def save(self, folder: Path) -> None:
        """Write the replay's counters and, if asked for, its contents into `folder`; nothing of one that is elsewhere."""
        self._enter_priorities()
        if self._here is not None:
            replay_state.save(self._here, folder / REPLAY_FOLDER, self._settings.checkpoint_contents)

    def get_state(self) -> dict[str, Any] | None:
        """What goes with the replay's contents, where everything stands still (serial). None: the contents are all there is."""
        if self._collect is None or self._writer is None or not self._settings.checkpoint_contents:
            return None
        self._enter_priorities()
        return {"updates": self._updates, "largest": self._largest, "writer": self._writer.get_state()}

    def restore(self, folder: Path, state: dict[str, Any] | None) -> list[str]:
        """Go on from what `save` wrote and `get_state` gave, before the first batch; returns what the user should know. A replay
        that outlived its learner is newer than any checkpoint and stays as it is."""
        if self._here is None or not (folder / REPLAY_FOLDER).exists():
            return []
        if (there := self._here.stats()).inserts:
            if not replay_state.restored_in_part(self._here, folder / REPLAY_FOLDER):
                return []
            part = f"The replay holds {there.size:,} transitions, a part of the checkpoint's"
            return [f"{part}: its learner ended while it restored them; it is filled again"]
        try:
            if not replay_state.restore(self._here, folder / REPLAY_FOLDER, self._gamma):
                return []
        except (ValueError, OSError) as error:
            return [f"{error}: the replay is filled again"]
        if state is not None and self._collect is not None and self._writer is not None:
            self._updates, self._largest = state["updates"], state.get("largest", 1.0)
            self._writer.set_state(state["writer"])
        self._before = (perf_counter(), self._replay.stats())
        return [f"The replay goes on with {self._before[1].size:,} transitions"]

    # -- from the trajectory store to the replay, and out of it ------------------------------------------------------------

    def _write_slot(self, timeout: float) -> bool | None:
        """Write one finished slot; True if there was one, False if not within `timeout` seconds, None at the end of the run."""
        try:
            slot = self._store.take(timeout=timeout)
        except Closed:
            return None
        if slot is None:
            return False
        if self._writer is not None:
            self._writer.write(slot, self._largest)
        fields = {name: array[slot] for name, array in self._store.arrays.items()}
        env = fields["env_index"]
        arrivals = Arrivals.of(fields, (env >= self._reported.start) & (env < self._reported.stop))
        self._store.release(slot)
        with self._lock:
            self._arrived.append(arrivals)
        return True

    def _sample(self, memory: ReplayBatch | None) -> _Sampled | None:
        """A batch of transitions in `memory`, or one of sequences; None below the minimum."""
        if not self._said_room and self._replay.stats().size >= self._replay.config.minimum:
            self._said_room = True
            self._say_room()
        if self._sequences is not None:
            sampled = _sample_sequences(self._replay, self._sequences, self._size, self._settings.threads)
        else:
            b = self._replay.sample(self._size, memory, threads=self._settings.threads)
            sampled = None if b is None else _of_transitions(b)
        if sampled is not None and self._stream is not None:
            with torch.cuda.stream(self._stream):
                sampled.fields = {name: to_device(x, self._device) for name, x in sampled.fields.items()}
                self._copied.set()
            self._copied.wait()
        return sampled

    def _say_room(self) -> None:
        """Warn where images pack so badly that the replay will hold less than its capacity."""
        room, c = self._replay.room(), self._replay.config
        if room < c.capacity:
            warnings.warn(
                f"The replay has room for {room * c.period:,} of {c.capacity * c.period:,} transitions (replay.capacity): images "
                f"pack to more than the {c.packed_share:.0%} of their size for which there is memory (replay.packed_share)",
                stacklevel=2,
            )

    def _say_unreachable(self) -> None:
        """Warn, once, where transitions are lost while the minimum is not there: learning would never begin."""
        stats, c = self._replay.stats(), self._replay.config
        if self._said_room or stats.size >= c.minimum or not stats.overwritten:
            return
        # Histories that fill faster than others lose some; the minimum is then a matter of time.
        room = self._replay.room()
        if room < c.minimum or stats.overwritten >= c.minimum:
            self._said_room = True
            warnings.warn(
                f"The replay has room for about {min(room, stats.size) * c.period:,} transitions, fewer than replay.minimum "
                f"({c.minimum * c.period:,}), and has overwritten {stats.overwritten * c.period:,}: learning may never begin. "
                "Lower replay.minimum, or raise replay.slack, or replay.packed_share where images pack badly",
                stacklevel=2,
            )

    def _sample_in_turn(self, collect: Callable[[int], None]) -> _Sampled | None:
        if self._control.stopped:
            return None
        # One update per trajectory, unless a samples-per-insert limit says how many.
        if self._replay.config.samples_per_insert is None or not self._replay.may_sample(self._size):
            collect(1)
            while self._write_slot(timeout=0):
                pass
        if not self._replay.may_sample(self._size):
            self._say_unreachable()
            return None
        memory = self._free.get()
        sampled = self._sample(memory)
        if sampled is None:
            self._free.put(memory)
        return sampled

    # -- the two threads ---------------------------------------------------------------------------------------------------

    def _take_sampled(self, timeout: float | None) -> _Sampled | None:
        if not self._threads:
            for work in (self._write_slots, self._sample_ahead):
                self._threads.append(threading.Thread(target=self._run, args=(work,), name=f"replay{work.__name__}", daemon=True))
                self._threads[-1].start()
        try:
            # A thread that ends wakes the learner, once.
            ended = self._control.stopped or self._failure is not None
            return self._sampled.get(timeout=0 if ended else timeout)
        except queue.Empty:
            return None

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as failure:  # handed to the learner, which raises it
            self._failure = failure
        self._sampled.put(None)

    def _write_slots(self) -> None:
        while True:
            # The limit holds rollout workers back by not freeing their slots.
            if not self._replay.may_insert() and not self._control.stopped:
                self._control.wait_for_stop(0.002)
                continue
            if self._write_slot(timeout=POLL_INTERVAL) is None:
                return

    def _sample_ahead(self) -> None:
        while not self._control.stopped:
            try:
                memory = self._free.get(timeout=POLL_INTERVAL)
            except queue.Empty:
                continue
            while not self._control.stopped:
                sampled = self._sample(memory) if self._replay.wait(self._size, timeout=POLL_INTERVAL) else None
                if sampled is not None:
                    self._sampled.put(sampled)
                    break
                self._say_unreachable()


@dataclass
class _Sampled:
    """One batch on its way to the learner."""

    keys: np.ndarray
    fields: dict[str, Tensor]  # on the device
    version: Tensor  # one of the fields, on the host
    memory: ReplayBatch | None  # to be filled again when the learner has finished


def _of_transitions(b: ReplayBatch) -> _Sampled:
    fields = {"next/" + n.removeprefix(OBSERVATION): x for n, x in b.next.items()} | b.first
    return _Sampled(b.keys, fields | {"reward": b.reward, "discount": b.discount, "weights": b.weights}, fields["version"], b)


def _sample_sequences(replay: LearnerReplay, s: Sequences, size: int, threads: int) -> _Sampled | None:
    """Sequences of `s.rows` rows, [rows, B, ...], with the core state before each, `core` [B, S padded]."""
    w = replay.sample_sequences(size, s.rows, threads=threads)
    if w is None:
        return None
    arrays = {name: x for name, x in w.fields.items() if name != "core"}
    arrays |= {"reward": w.reward, "discount": w.discount, "last": w.last, "final": w.final}
    fields = {name: torch.from_numpy(np.moveaxis(x, 0, 1)) for name, x in arrays.items()}
    fields["core"] = torch.from_numpy(w.fields["core"][:, : s.period].reshape(size, -1))
    fields["weights"] = torch.from_numpy(w.weights)
    return _Sampled(w.keys, fields, fields["version"], None)
