"""Trajectories as messages: a slot of a trajectory store on one machine becomes a slot of one on another.

A frame crosses the network once. Only the newest frame of a stack is sent if the stack is that of the row before, moved by one
frame, or if its older frames are empty, as where an episode begins; the receiver stacks the frames again. Row 0 is not sent if it
equals the last row of the lane's previous trajectory, which both sides remember while a stream lasts. All this is found by
comparing frames, so the received trajectory equals the one that was sent, whatever an environment does. Last observations of
episodes (`final_obs/`) are sent for the rows that have one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from headrace.arrays import ArraySpec
from headrace.cluster.packing import Packing
from headrace.cluster.protocol import TRAJECTORY
from headrace.config import ConfigError
from headrace.shm.trajectory_store import TrajectoryStore
from headrace.transport.messages import HEADER, LARGEST_MESSAGE, MessageLayout, ProtocolError

KINDS = "kinds/"  # prefix of the array that says what is sent of each row of a stack: uint8 [T+1, C]
MOVED, FIRST, WHOLE, AGAIN = range(4)
"""What is sent of a row: the newest frame, where the others are those of the row before; the newest, where the others are zero;
all; nothing, where it is the last row of the trajectory before."""
LANE = "lane"  # the number of the lane among those of the node
FINAL = "final_obs/"


class TrajectoryCodec:
    """Writes slots of `store` as messages, and messages into its slots.

    Args:
        frame_stack: S, frames that images are stacked of (`EnvSpec.frame_stack`).
        compression: `cluster.compression`.
        kept: names of the fields that are sent; None: all.

    Raises `ConfigError` where lz4 is not installed, or a trajectory is too large for a message.
    """

    def __init__(
        self, store: TrajectoryStore, frame_stack: int, compression: str = "none", kept: Collection[str] | None = None
    ) -> None:
        self._store, self._S, self._packing = store, frame_stack, Packing(compression)
        self._arrays = {name: array for name, array in store.arrays.items() if kept is None or name in kept}
        self._stacks: list[str] = []  # fields of stacked frames, [T+1, C, S, bytes of a frame] as the codec sees them
        self._last: dict[tuple[str, int], np.ndarray] = {}
        """By field and lane, the last row of the newest trajectory that this stream has carried: [C, S, bytes of a frame]."""
        self._finals: list[str] = []
        arrays, largest_tail = {LANE: ArraySpec((), np.dtype(np.int32))}, 0
        for name, array in self._arrays.items():
            shape, image = array.shape[1:], store.fields[name].is_image
            if name.startswith(FINAL):
                self._finals.append(name)
                largest_tail += array[0].nbytes
            elif name.startswith("obs/") and image and frame_stack > 1 and shape[2] % frame_stack == 0:
                self._stacks.append(name)
                arrays[KINDS + name] = ArraySpec(shape[:2], np.dtype(np.uint8))
                largest_tail += array[0].nbytes
            else:
                arrays[name] = ArraySpec(shape, array.dtype)
        self._layout = MessageLayout(arrays)
        self.largest = self._layout.nbytes + largest_tail  # most bytes of a message, before compression
        if self.largest > LARGEST_MESSAGE:
            raise ConfigError(
                f"a trajectory of {self.largest / 2**20:,.0f} MiB is too large to be sent ({LARGEST_MESSAGE / 2**20:,.0f} MiB): "
                "use a shorter sampling.rollout, or fewer environments in a group (envs_per_worker / num_groups)"
            )

    def schema(self) -> list[Any]:
        """What both sides must agree about, as JSON types."""
        slot = [[name, array.dtype.str, list(array.shape[1:])] for name, array in self._arrays.items()]
        return [slot, self._S, self._packing.name]

    def begin(self) -> None:
        """Another stream, whose other side remembers nothing."""
        self._last.clear()

    def encode(self, slot: int) -> bytes:
        """The trajectory in a slot, with its number among those of its lane in the header. The messages of a stream must be
        decoded in the order in which they were made."""
        lane = int(self._store.lane[slot])
        arrays: dict[str, Any] = {name: array[slot] for name, array in self._arrays.items()} | {LANE: lane}
        tail = []
        for name in self._stacks:
            frames = self._frames(arrays[name])
            arrays[KINDS + name] = kinds = _kinds(frames, self._last.get((name, lane)))
            self._remember(name, lane, frames[-1])
            tail += [frames[0, :, -1][kinds[0] != AGAIN], frames[1:, :, -1], frames[:, :, :-1][kinds == WHOLE]]
        ended = arrays["terminated"] | arrays["truncated"]
        tail += [arrays[name][ended] for name in self._finals]
        message = bytearray(self._layout.nbytes + sum(array.nbytes for array in tail))
        HEADER.pack_into(message, 0, TRAJECTORY, int(self._store.order[slot]))
        for name, view in self._layout.views(message).items():
            view[...] = arrays[name]
        at = self._layout.nbytes
        for array in tail:
            np.frombuffer(message, array.dtype, array.size, at).reshape(array.shape)[...] = array
            at += array.nbytes
        return self._packing.pack(message)

    def decode(self, message: bytes, slot: int) -> None:
        """Write a message's trajectory into a slot. Raises `ProtocolError` for one that is no trajectory of these fields."""
        content = self._packing.unpack(message, self.largest)
        at = self._layout.nbytes
        if len(content) < at:
            raise ProtocolError(f"a trajectory of {len(content)} bytes, where at least {at} were expected")
        sent = self._layout.read(content[:at])  # type: ignore[arg-type]
        arrays, lane = {name: array[slot] for name, array in self._arrays.items()}, int(sent[LANE])
        for name in self._layout.arrays.keys() & arrays.keys():
            arrays[name][...] = sent[name]
        for name in self._stacks:
            frames, kinds = self._frames(arrays[name]), sent[KINDS + name]
            before, again = self._last.get((name, lane)), kinds[0] == AGAIN
            impossible = (kinds > AGAIN).any() or (kinds[0] == MOVED).any() or (kinds[1:] == AGAIN).any()
            if impossible or (again.any() and before is None):
                raise ProtocolError("a trajectory whose frames do not follow from each other")
            older, newest = frames[:, :, :-1], frames[:, :, -1]
            newest[0, ~again], at = _taken(content, at, (int((~again).sum()), frames.shape[-1]), frames.dtype)
            newest[1:], at = _taken(content, at, newest[1:].shape, frames.dtype)
            whole = kinds == WHOLE
            older[whole], at = _taken(content, at, (int(whole.sum()), *older.shape[2:]), frames.dtype)
            older[kinds == FIRST] = 0
            if before is not None:
                np.copyto(frames[0], before, where=again[:, None, None])
            for t in range(1, len(frames)):
                if (moved := kinds[t] == MOVED).all():
                    older[t] = frames[t - 1, :, 1:]
                elif moved.any():
                    older[t, moved] = frames[t - 1, moved, 1:]
            self._remember(name, lane, frames[-1])
        ended = arrays["terminated"] | arrays["truncated"]
        for name in self._finals:
            shape = (int(ended.sum()), *arrays[name].shape[2:])
            arrays[name][ended], at = _taken(content, at, shape, arrays[name].dtype)
        if at != len(content):
            raise ProtocolError(f"a trajectory of {len(content)} bytes, where {at} were expected")

    def _remember(self, name: str, lane: int, row: np.ndarray) -> None:
        """Keep the last row of a lane's trajectory, in the memory of that before: pages of new memory cost more than the copy."""
        if (kept := self._last.get((name, lane))) is None:
            self._last[name, lane] = row.copy()
        else:
            kept[...] = row

    def _frames(self, array: np.ndarray) -> np.ndarray:
        """A view of stacked frames, uint8 [T+1, C, S, bytes of a frame]."""
        return array.reshape(*array.shape[:2], self._S, -1)


def _kinds(frames: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """What is to be sent of every row."""
    words = _words(frames)
    kinds = np.full(frames.shape[:2], WHOLE, np.uint8)
    kinds[1:][(words[1:, :, :-1] == words[:-1, :, 1:]).all((2, 3))] = MOVED
    if before is not None:
        kinds[0, (words[0] == _words(before)).all((1, 2))] = AGAIN
    whole = kinds == WHOLE
    kinds[whole] = np.where(words[:, :, :-1][whole].any((1, 2)), WHOLE, FIRST)
    return kinds


def _words(frames: np.ndarray) -> np.ndarray:
    """The same bytes as words of 8 where that is possible: eight times fewer to compare."""
    return frames.view(np.uint64) if frames.shape[-1] % 8 == 0 else frames


def _taken(content: memoryview, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, int]:
    """An array at byte `at`, and the byte behind it. Raises `ProtocolError` if there are too few."""
    end = at + int(np.prod(shape)) * dtype.itemsize
    if end > len(content):
        raise ProtocolError(f"a trajectory of {len(content)} bytes, where at least {end} were expected")
    return np.frombuffer(content[at:end], dtype.newbyteorder("<")).reshape(shape), end
