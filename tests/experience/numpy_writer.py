"""From trajectories to the replay, one environment after the other in NumPy: what `TrajectoryWriter` must write, to the last bit.

This is how the replay was written before; docs/ape-x-results.md compares the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from history_writer import HistoryWriter

from headrace.experience.replay.buffer import Replay
from headrace.experience.replay.layout import Sequences

Rows = dict[str, np.ndarray]
NAMES = ("reward", "discount", "last", "final", "q", "value")
ETA = 0.9


class NumpyWriter:
    """As `TrajectoryWriter`, but `write` takes the arrays of one slot, [rows, C, ...] each."""

    def __init__(self, replay: Replay, gamma: float, copies: int = 1, sequences: Sequences | None = None) -> None:
        self.copies = copies
        self.histories = [History(replay, n, gamma, sequences) for n in range(replay.config.histories)]

    def write(self, slot: Mapping[str, np.ndarray]) -> None:
        T = len(slot["reward"])
        for e, env in enumerate(slot["env_index"][0].tolist()):
            columns = {name: array[:T, e] for name, array in slot.items() if name != "core"}
            if "core" in slot:
                core = slot["core"][e]
                width = -(-len(core) // T)
                columns["core"] = np.pad(core, (0, T * width - len(core))).reshape(T, width)
            for copy in range(self.copies):
                self.histories[env * self.copies + copy].add(columns)


class History:
    """One environment's rows on their way into its history."""

    def __init__(self, replay: Replay, number: int, gamma: float, sequences: Sequences | None) -> None:
        self.replay, self.number, self.gamma, self.sequences = replay, number, gamma, sequences
        self.rescaled = sequences is not None and sequences.rescaled
        self.stacks = {name: f.stack for name, f in replay.fields.items() if f.stack > 1}
        self.writer: HistoryWriter | None = None
        self.ended = True  # the row before was the last of its episode

    def reset(self) -> None:
        """A history without rows, or that of a rollout worker that died."""
        self.writer = HistoryWriter(self.replay, self.number)
        self.before: Rows = {}  # stacks of the row before
        self.waiting = np.empty((6, 0))  # rows without an error yet, oldest first, as NAMES
        self.errors, self.known = np.empty(0, np.float32), self.replay.native.span(self.number)[1]
        self.starts_at: deque[int] = deque()  # of sequences that are not whole yet

    def add(self, slot: Rows) -> None:
        """T rows of the slot, [T, ...] each."""
        if self.writer is None or (slot["first"][0] and not self.ended):
            self.reset()
        assert self.writer is not None
        rows = {n: slot[n][:, -f.shape[0] :] if f.stack > 1 else slot[n] for n, f in self.replay.fields.items()}
        rows |= {name: slot[name] for name in ("reward", "q", "value")}
        rows["discount"] = np.where(slot["terminated"], 0.0, self.gamma).astype(np.float32)
        rows["final"] = ~slot["valid"]
        rows["last"] = (slot["terminated"] | slot["truncated"]) & slot["valid"]
        rows["start"], rows["zeros"], added = self.stack_starts(slot)
        self.ended = bool(rows["final"][-1] or (rows["last"][-1] and slot["terminated"][-1]))
        if any(name.startswith("final_obs/") for name in slot):
            self.ended, added = bool(rows["last"][-1]), added + self.final_rows(slot, rows)
        # From behind, so that earlier positions stay what they are; of equal positions the first in the list comes last.
        for t, row in sorted(added, key=lambda pair: -pair[0]):
            rows = {name: np.insert(column, t, row[name], axis=0) for name, column in rows.items()}
        flags = (rows[name] for name in ("last", "final", "start", "zeros"))
        time = self.writer.append(rows, rows["reward"], rows["discount"], *flags)
        errors = self.n_step_errors(rows)
        if self.sequences is None:
            self.writer.ready(errors)
        else:
            self.starts_at.append(time + sum(t == 0 for t, _ in added))
            self.finish_sequences(self.sequences, errors, time + len(rows["reward"]))

    def n_step_errors(self, new: Rows) -> np.ndarray:
        """Of the oldest rows that had none yet, float32 [m]; -1 for rows without an action."""
        rows = np.concatenate([self.waiting, np.stack([np.asarray(new[name], np.float64) for name in NAMES])], 1)
        r, d, is_last, is_final, q_taken, v = rows
        count, n_step = rows.shape[1], self.replay.config.n_step
        total, product = np.zeros(count), np.ones(count)
        running, known = np.ones(count, bool), np.ones(count, bool)  # the episode goes on; all that is needed is there
        bootstrap = np.zeros(count)
        padded_v, padded_final = np.append(v, np.nan), np.append(is_final, 0.0)
        for k in range(n_step):
            at = np.minimum(np.arange(count) + k, count - 1)
            known &= ~running | (np.arange(count) + k < count)
            total += np.where(running, product * r[at], 0.0)
            product = np.where(running, product * d[at], product)
            ends = running & (is_last[at] != 0)
            # The last observation is needed only where the episode was truncated; after termination its value is zero.
            truncated = ends & (d[at] != 0)
            bootstrap = np.where(truncated, padded_v[at + 1], bootstrap)
            known &= ~truncated | (padded_final[at + 1] != 0)
            running &= ~ends
        after = np.arange(count) + n_step
        known &= ~running | (after < count)
        bootstrap = np.where(running, v[np.minimum(after, count - 1)], bootstrap)
        known |= is_final != 0
        ready = count if known.all() else int(np.argmin(known))
        self.waiting = rows[:, ready:]
        bootstrap = np.nan_to_num(bootstrap)
        target = total + product * (unscale(bootstrap) if self.rescaled else bootstrap)
        target = rescale(target) if self.rescaled else target
        return np.where(is_final != 0, -1.0, np.abs(target - q_taken))[:ready].astype(np.float32)

    def finish_sequences(self, s: Sequences, errors: np.ndarray, head: int) -> None:
        """Give those sequences a priority of which all rows are there: eta max + (1 - eta) mean of its errors (R2D2)."""
        assert self.writer is not None
        self.errors = np.concatenate([self.errors, errors])
        while self.starts_at and head >= self.starts_at[0] + s.rows:
            at = self.starts_at[0] - self.known
            here = self.errors[at + s.burn_in : at + s.burn_in + s.length]
            if len(here) < s.length:  # the value after a time limit is still to come
                return
            here = here[here >= 0]
            priorities = np.full(at + 1, -1.0, np.float32)
            priorities[at] = ETA * here.max() + (1 - ETA) * here.mean() if len(here) else 0.0
            self.writer.ready(priorities)
            self.errors, self.known = self.errors[at + 1 :], self.known + at + 1
            self.starts_at.popleft()

    def stack_starts(self, slot: Rows) -> tuple[np.ndarray, np.ndarray, list[tuple[int, Rows]]]:
        """Where stacks begin anew, where with zeros, and rows to insert so that they come out as acting saw them.

        A stack may go on across the end of an episode (after a lost life), begin with copies of its first frame or with zeros,
        or with other frames of its own: these become rows without an action.
        """
        starts, added = slot["first"].copy(), []
        zeros = np.zeros_like(starts)
        starts[0] |= not self.before and bool(self.stacks)
        for t in np.flatnonzero(starts).tolist():
            before = self.newest_stacks(slot, t - 1) if t else self.before
            frames = {n: slot[n][t].reshape(s, -1, *slot[n].shape[2:]) for n, s in self.stacks.items()}
            if before and all(np.array_equal(slot[n][t][: -len(f[0])], before[n][len(f[0]) :]) for n, f in frames.items()):
                starts[t] = False
            elif frames and all(not f[:-1].any() for f in frames.values()):
                zeros[t] = True
            elif any((f[:-1] != f[-1]).any() for f in frames.values()):
                for age in reversed(range(max(self.stacks.values()) - 1)):
                    added.append((t, self.added_row(slot, t, age == 0, {n: f[min(age, len(f) - 1)] for n, f in frames.items()})))
                starts[t] = False
        self.before = {n: stack.copy() for n, stack in self.newest_stacks(slot, -1).items()}
        return starts, zeros, added

    def newest_stacks(self, slot: Rows, t: int) -> Rows:
        """What a new episode's first stack would go on from: behind an episode's end the stack of its true last observation."""
        ended = slot["valid"][t] and (slot["terminated"][t] or slot["truncated"][t])
        return {n: slot["final_" + n][t] if ended and "final_" + n in slot else slot[n][t] for n in self.stacks}

    def added_row(self, slot: Rows, t: int, start: bool, observation: Rows, value: float = 0.0) -> Rows:
        """A row of no action: `observation` by field name, everything else of row t."""
        row = {name: observation.get(name, slot[name][t]) for name in self.replay.fields}
        row |= {name: np.asarray(0) for name in ("reward", "q", "discount", "last", "zeros")}
        return row | {"value": np.asarray(value), "final": np.asarray(True), "start": np.asarray(start)}

    def final_rows(self, slot: Rows, rows: Rows) -> list[tuple[int, Rows]]:
        """Same-step environments have an episode's true last observation aside: it gets a row of its own. Acting never saw it,
        so for the first priority its value is taken to be that of the observation before."""
        result = []
        for t in np.flatnonzero(rows["last"]).tolist():
            observation = {}
            for name, f in self.replay.fields.items():
                if f.stack:
                    array = slot["final_" + name][t]
                    observation[name] = array[-f.shape[0] :] if f.stack > 1 else array
            result.append((t + 1, self.added_row(slot, t, False, observation, float(slot["value"][t]))))
        return result


def rescale(x: np.ndarray, epsilon: float = 1e-3) -> np.ndarray:
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x


def unscale(x: np.ndarray, epsilon: float = 1e-3) -> np.ndarray:
    root = np.sqrt(1 + 4 * epsilon * (np.abs(x) + 1 + epsilon))
    return np.sign(x) * (((root - 1) / (2 * epsilon)) ** 2 - 1)
