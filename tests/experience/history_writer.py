"""Rows into a replay one history at a time, as `TrajectoryWriter` writes them from trajectories: for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace._native.replay as native
from headrace.experience.replay.buffer import Replay


class HistoryWriter:
    """Adds rows to one history, of any process. Never waits and never locks. If the history had another writer before, its
    unfinished episode ends."""

    def __init__(self, replay: Replay, history: int) -> None:
        self._replay, self._native, self.history = replay, replay.native, history
        self._native.open(history)
        self._ended = True

    def append(
        self,
        fields: Mapping[str, npt.NDArray[Any]],
        reward: npt.ArrayLike,
        discount: npt.ArrayLike,
        last: npt.ArrayLike,
        final: npt.ArrayLike | None = None,
        first: npt.ArrayLike | None = None,
        zeros: npt.ArrayLike | None = None,
    ) -> int:
        """Add T rows; returns the time of the first.

        Args:
            fields: every field, [T, *shape].
            reward: float32 [T], produced by the row's action.
            discount: float32 [T]: gamma, or 0 if the action terminated the episode.
            last: bool [T], the episode ended with this action.
            final: bool [T], no action was taken on the row's observation. An episode's last observation is such a row; it
                must follow a `last` row that was truncated (discount not 0), for it is bootstrapped from.
            first: bool [T], stacks do not reach before this row; copies of its observation stand for what was before. None: so
                at the first row of every episode.
            zeros: bool [T], at `first` rows: zeros stand for what was before.
        """
        last = np.asarray(last, bool)
        final = np.zeros(len(last), bool) if final is None else np.asarray(final, bool)
        if first is None:
            ended = last | final  # before the row: a final row still belongs to the episode that ended
            first = np.concatenate(([self._ended], ended[:-1])) & ~final if len(last) else ended
            self._ended = bool(ended[-1]) if len(last) else self._ended
        flags = last * np.uint8(native.LAST) + final * np.uint8(native.FINAL) + np.asarray(first, bool) * np.uint8(native.FIRST)
        if zeros is not None:
            flags += np.asarray(zeros, bool) * np.uint8(native.ZEROS)
        columns = []
        for name, f in self._replay.fields.items():
            column = np.ascontiguousarray(fields[name], dtype=f.dtype)
            if column.shape != (len(flags), *f.shape):
                raise ValueError(f"field {name!r}: {column.shape}, expected {(len(flags), *f.shape)}")
            columns.append(column)
        reward, discount = np.ascontiguousarray(reward, np.float32), np.ascontiguousarray(discount, np.float32)
        if not (np.isfinite(reward).all() and np.isfinite(discount).all()):
            raise ValueError(f"history {self.history}: a reward or discount is not finite")
        return int(self._native.append(self.history, columns, reward, discount, flags))

    def ready(self, priorities: npt.ArrayLike) -> None:
        """Priorities (float32 [m], not negative) of the oldest m rows that have none yet; they can be sampled from now on.

        The row n steps later, or the episode's end, must have been added. A negative number: no transition starts here.
        """
        self._native.ready(self.history, np.ascontiguousarray(priorities, np.float32))
