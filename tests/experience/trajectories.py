"""Trajectories for tests of the replay: rows as a trajectory store has them, and environments that make them."""

from __future__ import annotations

from typing import Any

import numpy as np

ONE_MORE = ("obs/", "first", "valid")
"""Fields with T+1 rows."""
DTYPES = {
    "first": bool, "valid": bool, "terminated": bool, "truncated": bool, "reward": np.float32, "q": np.float32,
    "value": np.float32, "version": np.int32, "env_index": np.int32, "action": np.int32,
}  # fmt: skip
Row = dict[str, Any]


def arrays_of(envs: list[list[Row]], T: int) -> dict[str, np.ndarray]:
    """The arrays of a trajectory store, [slots, T or T+1, C, ...], of C environments with as many rows each: row k T of an
    environment is row 0 of slot k, and row T of the slot before. What is left over at the end is cut off."""
    slots = (len(envs[0]) - 1) // T
    arrays = {}
    for name in envs[0][0]:
        rows = T + name.startswith(ONE_MORE)
        columns = [np.stack([[env[k * T + t][name] for t in range(rows)] for k in range(slots)]) for env in envs]
        arrays[name] = np.ascontiguousarray(np.stack(columns, 2), DTYPES.get(name))
    return arrays


def plain_rows(count: int, seed: int, most: int = 8) -> list[Row]:
    """`count` rows of environment 0 with numbers but no observations: episodes of 1 to `most` steps that terminate or are
    truncated, each followed by its last observation, on which no action is taken."""
    rng, rows = np.random.default_rng(seed), list[Row]()
    while len(rows) < count:
        length, terminates = int(rng.integers(1, most + 1)), bool(rng.random() < 0.5)
        for t in range(length + 1):
            rows.append({"first": t == 0, "valid": t < length, "reward": rng.normal(0, 3) if t < length else 0.0,
                         "terminated": t == length - 1 and terminates, "truncated": t == length - 1 and not terminates,
                         "q": rng.normal(0, 2), "value": rng.normal(0, 2), "env_index": 0})  # fmt: skip
    return rows[:count]


class StackedEnv:
    """One environment that is observed as a stack of frames and as a vector, made up of random numbers.

    Args:
        styles: how the stack may look at an episode's start: "repeat" (copies of the first frame), "zeros" before it,
            "continue" (the frames before, as after a lost life), "noise".
        same_step: resets in the same step, with the last observation aside in `final_obs/`.
        dull: frames are often the same, all zero or all one.
    """

    SHAPE, DEPTH, CHANNELS = (3, 2), 3, 2

    def __init__(self, rng: np.random.Generator, number: int, styles: tuple[str, ...], same_step: bool, dull: bool) -> None:
        self.rng, self.number, self.styles, self.same_step, self.dull = rng, number, styles, same_step, dull
        self.image = np.zeros((self.DEPTH * self.CHANNELS, *self.SHAPE), np.uint8)
        self.begin()

    def frame(self) -> np.ndarray:
        shape = (self.CHANNELS, *self.SHAPE)
        if self.dull:
            return np.full(shape, self.rng.integers(0, 2), np.uint8)
        return self.rng.integers(1, 256, shape).astype(np.uint8)

    def push(self) -> None:
        self.image = np.concatenate([self.image[self.CHANNELS :], self.frame()])
        self.vector = self.rng.random(4).astype(np.float32)

    def begin(self) -> None:
        """The first observation of an episode."""
        style = self.rng.choice(self.styles)
        if style == "zeros":
            self.image = np.zeros_like(self.image)
        elif style == "noise":
            self.image = np.concatenate([self.frame() for _ in range(self.DEPTH)])
        self.push()
        if style == "repeat":
            self.image = np.tile(self.image[-self.CHANNELS :], (self.DEPTH, 1, 1))
        self.first, self.valid, self.left = True, True, int(self.rng.integers(1, 12))

    def row(self) -> Row:
        """The observation and what an action on it leads to; moves on."""
        rng = self.rng
        row = {"obs/image": self.image, "obs/vector": self.vector, "first": self.first, "valid": self.valid,
               "action": [rng.integers(9)], "version": rng.integers(99), "env_index": self.number,
               "reward": rng.normal(0, 3), "q": rng.normal(0, 2), "value": rng.normal(0, 2),
               "terminated": False, "truncated": False}  # fmt: skip
        final = {"final_obs/image": np.zeros_like(self.image), "final_obs/vector": np.zeros_like(self.vector)}
        self.left -= 1
        over = self.valid and self.left == 0
        if over:
            row["terminated" if rng.random() < 0.5 else "truncated"] = True
        if not self.valid:
            self.begin()
        elif over and self.same_step:
            self.push()
            final = {"final_obs/image": self.image, "final_obs/vector": self.vector}
            self.begin()
        else:
            self.push()
            self.first, self.valid = False, not over
        return row | (final if self.same_step else {})


def stacked_rows(env: StackedEnv, slots: int, T: int, deaths: float = 0.0) -> list[list[Row]]:
    """Slots of T+1 rows of one environment. With probability `deaths` its process dies between two slots, and another one begins
    with a new episode."""
    result, row = [], env.row()
    for _ in range(slots):
        rows = [row, *(env.row() for _ in range(T))]
        result.append(rows)
        row = rows[-1]
        if env.rng.random() < deaths:
            env.begin()
            row = env.row()
    return result


def arrays_of_slots(envs: list[list[list[Row]]], cores: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of a trajectory store of what `stacked_rows` gave for each environment; with core states of that width."""
    T = len(envs[0][0]) - 1
    parts = [arrays_of([env[k] for env in envs], T) for k in range(len(envs[0]))]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return arrays | {"core": np.random.default_rng(seed).random((len(parts), len(envs), cores)).astype(np.float32)}
