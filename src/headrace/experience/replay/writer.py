"""From trajectories to the replay: finished slots of the slab become rows of the environments' histories."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.config import Config, ConfigError
from headrace.envs.contract import EnvSpec
from headrace.experience.batch import Arrivals
from headrace.experience.replay.buffer import Field, HistoryWriter, Replay, ReplayConfig
from headrace.experience.replay.priorities import NStepPriorities
from headrace.shm.primitives import Closed
from headrace.shm.trajectory_store import TrajectoryStore

OBSERVATION = "obs/"
PRIORITY_ETA = 0.9
"""Weight of the largest error in a sequence's priority (R2D2)."""


def frame_stack(config: Config) -> int:
    """How many successive frames an image observation of this environment holds."""
    return config.envs.frame_stack or (4 if config.env.startswith("atari/") else 1)


@dataclass(frozen=True)
class Sequences:
    """What is replayed where the network is recurrent (R2D2)."""

    period: int
    """Rows between two starts: those of a trajectory, whose first row has the core state."""
    burn_in: int
    length: int
    n_step: int
    rescaled: bool

    @property
    def rows(self) -> int:
        """Of one sequence, with the rows that its last targets need."""
        return self.burn_in + self.length + self.n_step


def sequences_of(config: Config) -> Sequences | None:
    """None: single transitions are replayed."""
    if config.policy.core == "none":
        return None
    return Sequences(config.sampling.rollout, config.q.burn_in, config.q.sequence, config.replay.n_step, config.q.rescale)


def make_replay(config: Config, spec: EnvSpec, core_width: int = 0) -> Replay:
    """The replay of a run: one history per environment and copy, images one frame per row. With a core, the state before a
    trajectory is laid out over its rows, so that it takes no memory in the others.

    Raises `ConfigError` where images are no stack of `frame_stack` frames, `MemoryError` where there is not the memory.
    """
    r, stack = config.replay, frame_stack(config)
    per_slot = (r.samples_per_insert or 0) * config.sampling.rollout * config.envs_per_group * r.copies
    fields = []
    for name, array in spec.observation.items():
        depth, shape = 1, array.shape
        if array.is_image and stack > 1:
            if shape[0] % stack:
                raise ConfigError(f"{config.env}: {name!r} has {shape[0]} channels, which is no stack of {stack} frames")
            depth, shape = stack, (shape[0] // stack, *shape[1:])
        compressed = array.is_image and r.codec != "none"
        fields.append(Field(OBSERVATION + name, shape, array.dtype.name, depth, compressed))
    fields.append(Field("action", (spec.action.width,), spec.action.dtype.name))
    fields.append(Field("version", (), "int32"))
    sequences = sequences_of(config)
    period = sequences.period if sequences else 1
    if sequences:
        if spec.autoreset == "same-step":
            raise ConfigError(f"{config.env} resets in the same step; replay of sequences needs resets in the next step")
        fields += [Field("first", (), "bool"), Field("core", (-(-core_width // period),), "float32")]
    return Replay(
        ReplayConfig(
            histories=config.num_envs * r.copies, capacity=r.capacity // period, period=period, slack=r.slack, n_step=r.n_step,
            alpha=r.alpha, beta=r.beta,
            minimum=r.minimum // period, evict_alpha=r.evict_alpha, samples_per_insert=r.samples_per_insert,
            ratio_band=2 * max(config.learning.batch_size, per_slot),
            codec=r.codec, seed=config.seed,
        ),
        fields,
    )  # fmt: skip


def _over_rows(core: np.ndarray, T: int) -> np.ndarray:
    """A core state [S] laid out over T rows, [T, ceil(S / T)]."""
    width = -(-len(core) // T)
    return np.pad(core, (0, T * width - len(core))).reshape(T, width)


class ReplayFeeder:
    """Takes finished slots and writes them to the replay. One per run at a time, in the learner's process: the copy is small
    (one frame of a stack), and slots come back at once, so samplers wait for nobody.

    A transition's first priority comes from the action values that acting computed (`q` and `value` in the slab).
    Episodes of `reported_envs` are reported; see `Algorithm.reported_envs`.
    """

    def __init__(
        self,
        store: TrajectoryStore,
        replay: Replay,
        gamma: float,
        reported_envs: range,
        sequences: Sequences | None = None,
        copies: int = 1,
    ):
        self._store, self._gamma, self._reported, self._copies = store, gamma, reported_envs, copies
        self._histories = [HistoryFeed(replay, history, sequences) for history in range(replay.config.histories)]
        self._steps, self._episodes, self._lock = 0, list[tuple[float, int]](), threading.Lock()
        """What came in since `take_arrivals`."""

    def feed(self, timeout: float | None) -> bool | None:
        """Take one slot; True if there was one, False if not within `timeout` seconds, None at the end of the run."""
        try:
            slot = self._store.take(timeout=timeout)
        except Closed:
            return None
        if slot is None:
            return False
        self._take({name: array[slot] for name, array in self._store.arrays.items()})
        self._store.release(slot)
        return True

    def _take(self, slot: dict[str, np.ndarray]) -> None:
        T = len(slot["reward"])
        for e, history in enumerate(slot["env_index"][0].tolist()):
            columns = {name: array[:T, e] for name, array in slot.items() if name != "core"}
            columns["core"] = _over_rows(slot["core"][e], T)
            for copy in range(self._copies):
                self._histories[history * self._copies + copy].add(columns, self._gamma)
        env = slot["env_index"]
        ended = ~np.isnan(slot["episode_return"]) & (env >= self._reported.start) & (env < self._reported.stop)
        with self._lock:
            self._steps += int(slot["valid"][:T].sum())
            self._episodes += zip(slot["episode_return"][ended].tolist(), slot["episode_length"][ended].tolist(), strict=True)

    def get_state(self) -> list[dict[str, Any]]:
        """What of the histories' newest rows is not in the replay yet, to go on from with the same replay."""
        return [history.get_state() for history in self._histories]

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Go on from what `get_state` gave; the replay is restored first."""
        for history, of_history in zip(self._histories, state, strict=True):
            history.set_state(of_history)

    def take_arrivals(self) -> Arrivals:
        """What came in since the last call; from any thread."""
        with self._lock:
            steps, episodes, self._steps, self._episodes = self._steps, self._episodes, 0, []
        returns, lengths = zip(*episodes, strict=True) if episodes else ((), ())
        return Arrivals(steps, np.array(returns, np.float32), np.array(lengths, np.int32))


class HistoryFeed:
    """One environment's rows on their way into its history."""

    def __init__(self, replay: Replay, history: int, sequences: Sequences | None = None):
        self._replay, self._number, self._sequences = replay, history, sequences
        self._priorities = NStepPriorities(replay.config.n_step, rescaled=sequences is not None and sequences.rescaled)
        self._errors = np.empty(0, np.float32)
        """Sequences: errors of the rows from `_known` on, -1 where there is none."""
        self._known = 0
        self._starts_at: deque[int] = deque()
        """Sequences: times at which those start that are not whole yet."""
        self._stacked = {f.name: f.stack for f in replay.fields if f.stack > 1}
        self._writer: HistoryWriter | None = None
        self._ended = True
        """The row before was the last of its episode."""
        self._before: dict[str, np.ndarray] = {}
        """The stacked observations of the row before."""

    def get_state(self) -> dict[str, Any]:
        """Everything but the replay's rows; see `ReplayFeeder.get_state`."""
        return {
            "writes": self._writer is not None, "waiting": self._priorities.waiting, "errors": self._errors, "known": self._known,
            "starts_at": list(self._starts_at), "ended": self._ended, "before": self._before,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        self._writer = self._replay.writer(self._number, go_on=True) if state["writes"] else None
        self._priorities.waiting, self._errors, self._known = state["waiting"], state["errors"], state["known"]
        self._starts_at, self._ended, self._before = deque(state["starts_at"]), state["ended"], state["before"]

    def add(self, slab: dict[str, np.ndarray], gamma: float) -> None:
        """T rows of the slab, [T, ...] each."""
        first = slab["first"]
        if self._writer is None or (first[0] and not self._ended):  # nobody before us, or somebody who died
            self._writer = self._replay.writer(self._number)
            self._priorities.clear()
            self._before, self._errors = {}, np.empty(0, np.float32)
            self._starts_at.clear()
            self._known = self._replay.native.span(self._number)[1]
        rows = {f.name: slab[f.name][:, -f.shape[0] :] if f.stack > 1 else slab[f.name] for f in self._replay.fields}
        rows |= {name: slab[name] for name in ("reward", "q", "value")}
        rows["discount"] = np.where(slab["terminated"], 0.0, gamma).astype(np.float32)
        rows["final"] = ~slab["valid"]
        rows["last"] = (slab["terminated"] | slab["truncated"]) & slab["valid"]
        rows["start"], rows["zeros"], fillers = self._starts(slab)
        self._ended = bool(rows["final"][-1] or (rows["last"][-1] and slab["terminated"][-1]))
        if any(name.startswith("final_obs/") for name in slab):
            self._ended, fillers = bool(rows["last"][-1]), fillers + self._final_rows(slab, rows)
        # From behind, so that earlier positions stay what they are; of equal positions the first in the list comes last.
        for t, row in sorted(fillers, key=lambda filler: -filler[0]):
            rows = {name: np.insert(column, t, row[name], axis=0) for name, column in rows.items()}
        if self._sequences and fillers:
            raise ConfigError("replay of sequences needs stacks that begin with zeros or copies of the first frame")
        flags = (rows[name] for name in ("last", "final", "start", "zeros"))
        time = self._writer.append(rows, rows["reward"], rows["discount"], *flags)
        names = ("reward", "discount", "last", "final", "q", "value")
        errors = self._priorities.push(*(rows[name] for name in names))
        if self._sequences is None:
            self._writer.ready(errors)
        else:
            self._starts_at.append(time)
            self._finish_sequences(self._sequences, errors, time + len(rows["reward"]))

    def _finish_sequences(self, s: Sequences, errors: np.ndarray, head: int) -> None:
        """Give those sequences a priority of which all rows are there: eta max + (1 - eta) mean of its errors (R2D2)."""
        assert self._writer is not None
        self._errors = np.concatenate([self._errors, errors])
        while self._starts_at and head >= self._starts_at[0] + s.rows:
            at = self._starts_at[0] - self._known
            here = self._errors[at + s.burn_in : at + s.burn_in + s.length]
            if len(here) < s.length:  # the value after a time limit is still to come
                return
            here = here[here >= 0]
            priorities = np.full(at + 1, -1.0, np.float32)
            priorities[at] = PRIORITY_ETA * here.max() + (1 - PRIORITY_ETA) * here.mean() if len(here) else 0.0
            self._writer.ready(priorities)
            self._errors, self._known = self._errors[at + 1 :], self._known + at + 1
            self._starts_at.popleft()

    def _starts(self, slab: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, list[tuple[int, dict[str, np.ndarray]]]]:
        """Where stacks begin anew, where with zeros, and rows to insert so that they come out as acting saw them.

        A stack may go on across the end of an episode (after a lost life), begin with copies of its first frame or with zeros,
        or with other frames of its own: these become rows without an action.
        """
        starts, fillers = slab["first"].copy(), []
        zeros = np.zeros_like(starts)
        starts[0] |= not self._before and bool(self._stacked)
        for t in np.flatnonzero(starts).tolist():
            before = {n: slab[n][t - 1] for n in self._stacked} if t else self._before
            frames = {n: slab[n][t].reshape(s, -1, *slab[n].shape[2:]) for n, s in self._stacked.items()}
            if before and all(np.array_equal(slab[n][t][: -len(f[0])], before[n][len(f[0]) :]) for n, f in frames.items()):
                starts[t] = False
            elif frames and all(not f[:-1].any() for f in frames.values()):
                zeros[t] = True
            elif any((f[:-1] != f[-1]).any() for f in frames.values()):
                for age in reversed(range(max(self._stacked.values()) - 1)):
                    fillers.append((t, self._filler(slab, t, age == 0, {n: f[min(age, len(f) - 1)] for n, f in frames.items()})))
                starts[t] = False
        self._before = {n: slab[n][-1].copy() for n in self._stacked}
        return starts, zeros, fillers

    def _filler(
        self, slab: dict[str, np.ndarray], t: int, start: bool, observation: dict[str, np.ndarray], value: float = 0.0
    ) -> dict[str, np.ndarray]:
        """A row of no action: `observation` by field name, everything else of row t."""
        row = {f.name: observation.get(f.name, slab[f.name][t]) for f in self._replay.fields}
        row |= {name: np.asarray(0) for name in ("reward", "q", "discount", "last", "zeros")}
        return row | {"value": np.asarray(value), "final": np.asarray(True), "start": np.asarray(start)}

    def _final_rows(self, slab: dict[str, np.ndarray], rows: dict[str, np.ndarray]) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Same-step environments have an episode's true last observation aside: it gets a row of its own. Acting never saw it,
        so for the first priority its value is taken to be that of the observation before."""
        result = []
        for t in np.flatnonzero(rows["last"]).tolist():
            observation = {}
            for f in self._replay.fields:
                if f.stack:
                    array = slab["final_" + f.name][t]
                    observation[f.name] = array[-f.shape[0] :] if f.stack > 1 else array
            result.append((t + 1, self._filler(slab, t, False, observation, float(slab["value"][t]))))
        return result
