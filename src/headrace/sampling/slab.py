"""The slab: one table describes a trajectory, one piece of shared memory holds all of them.

A *slot* is the trajectory of one group: T steps of E environments. Rollout workers write its observations and rewards,
policy workers read the observations and write actions, the learner reads it whole. Nobody sends arrays to anybody.

Row t of a slot holds observation t, the action chosen on it and what the behaviour policy said about it, and the reward and
the flags which that action led to. Fields with T+1 rows also have row T, which holds the observation to bootstrap from; it
is at the same time row 0 of the group's next slot. See `headrace.envs.contract` for what happens at the end of an episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.envs.contract import ArraySpec, EnvSpec, ObsRow, StepRow
from headrace.shm.primitives import Segment

Rows = Literal["T+1", "T", "once"]
_ALIGN = 64


@dataclass(frozen=True)
class Field:
    """One array of the slab: ``[slot, rows, E, *shape]``, without the rows for `once`."""

    rows: Rows
    shape: tuple[int, ...]
    dtype: np.dtype


def trajectory_fields(spec: EnvSpec, core_width: int, extra: dict[str, ArraySpec] | None = None) -> dict[str, Field]:
    """The table. `core_width` is S, the width of the policy's recurrent state; `extra` are an algorithm's own per-step
    outputs of the policy (Q-values for initial priorities, say)."""
    flag, number, count = np.dtype(bool), np.dtype(np.float32), np.dtype(np.int32)
    fields = {f"obs/{name}": Field("T+1", a.shape, a.dtype) for name, a in spec.observation.items()}
    fields |= {
        "first": Field("T+1", (), flag),  # the observation is the first of an episode: zero the core before it
        "valid": Field("T+1", (), flag),  # False: the observation is the last of an episode, no transition starts here
        "action": Field("T", (spec.action.width,), spec.action.dtype),
        "log_prob": Field("T", (), number),  # of the behaviour policy
        "value": Field("T", (), number),  # of the behaviour policy
        "version": Field("T", (), count),  # of the weights that chose the action
        "reward": Field("T", (), number),
        "terminated": Field("T", (), flag),
        "truncated": Field("T", (), flag),
        "episode_return": Field("T", (), number),  # NaN unless a game ended with this step
        "episode_length": Field("T", (), count),
        "core": Field("once", (core_width,), number),  # before row 0, not yet zeroed by `first`
    }
    if spec.autoreset == "same-step":
        fields |= {f"final_obs/{name}": Field("T", a.shape, a.dtype) for name, a in spec.observation.items()}
    return fields | {name: Field("T", a.shape, a.dtype) for name, a in (extra or {}).items()}


class Slab:
    """All slots in one shared segment. `arrays[name]` is ``[slot, rows, E, ...]``; may be passed to child processes."""

    def __init__(self, fields: dict[str, Field], num_slots: int, T: int, E: int):
        self.fields, self.num_slots, self.T, self.E = fields, num_slots, T, E
        purpose = f"the slab ({num_slots} slots of {T} x {E} steps; fewer of any needs less)"
        self._segment = Segment(self.nbytes(fields, num_slots, T, E), purpose=purpose)
        self._segment.prefault()  # memory that is not there is missed now, not in the middle of training
        self._map()

    @staticmethod
    def shape(field: Field, num_slots: int, T: int, E: int) -> tuple[int, ...]:
        """Shape of one field's array."""
        rows = {"T+1": (T + 1,), "T": (T,), "once": ()}[field.rows]
        return (num_slots, *rows, E, *field.shape)

    @classmethod
    def nbytes(cls, fields: dict[str, Field], num_slots: int, T: int, E: int) -> int:
        """Bytes of shared memory a slab takes."""
        return sum(_aligned(math.prod(cls.shape(f, num_slots, T, E)) * f.dtype.itemsize) for f in fields.values())

    def _map(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        offset = 0
        for name, field in self.fields.items():
            shape = self.shape(field, self.num_slots, self.T, self.E)
            self.arrays[name] = self._segment.ndarray(field.dtype, shape, offset)
            offset += _aligned(math.prod(shape) * field.dtype.itemsize)

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if k != "arrays"}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._segment.prefault()  # the memory is there, but every process has its own page table
        self._map()

    def _named(self, prefix: str, slot: int, t: int) -> dict[str, np.ndarray]:
        return {n[len(prefix) :]: a[slot, t] for n, a in self.arrays.items() if n.startswith(prefix)}

    def obs_row(self, slot: int, t: int) -> ObsRow:
        """Views of the observation of row t, 0 <= t <= T."""
        a = self.arrays
        return ObsRow(self._named("obs/", slot, t), a["first"][slot, t], a["valid"][slot, t])

    def step_row(self, slot: int, t: int) -> StepRow:
        """Views of the consequences of row t's actions, 0 <= t < T."""
        a = self.arrays
        return StepRow(
            a["reward"][slot, t],
            a["terminated"][slot, t],
            a["truncated"][slot, t],
            a["episode_return"][slot, t],
            a["episode_length"][slot, t],
            self._named("final_obs/", slot, t),
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
