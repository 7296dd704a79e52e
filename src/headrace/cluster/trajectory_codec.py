"""Trajectories as messages: a slot of a trajectory store on one machine becomes a slot of one on another.

A frame crosses the network once. A row of stacked frames that is the row before, moved by one frame, is sent as its newest frame
alone and stacked again at the other side. That is found by comparing the frames, so what arrives is what was there, whatever an
environment does. Last observations of episodes (`final_obs/`) are sent for the rows that have one.
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

NEWEST, WHOLE = "newest/", "whole/"
"""Prefixes of what a stack of frames becomes: the newest frame of every row, and which rows are sent whole."""
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
        self._stacks: list[str] = []
        """Fields of stacked frames, [T+1, C, S, bytes of a frame] as the codec sees them."""
        self._finals: list[str] = []
        arrays, largest_tail = {}, 0
        for name, array in self._arrays.items():
            shape, image = array.shape[1:], store.fields[name].is_image
            if name.startswith(FINAL):
                self._finals.append(name)
                largest_tail += array[0].nbytes
            elif name.startswith("obs/") and image and frame_stack > 1 and shape[2] % frame_stack == 0:
                self._stacks.append(name)
                rows, frame = shape[:2], array[0].nbytes // (shape[0] * shape[1] * frame_stack)
                arrays[NEWEST + name] = ArraySpec((*rows, frame), np.dtype(np.uint8))
                arrays[WHOLE + name] = ArraySpec(rows, np.dtype(bool))
                largest_tail += array[0].nbytes // frame_stack * (frame_stack - 1)
            else:
                arrays[name] = ArraySpec(shape, array.dtype)
        self._layout = MessageLayout(arrays)
        self.largest = self._layout.nbytes + largest_tail
        """Most bytes of a message, before compression."""
        if self.largest > LARGEST_MESSAGE:
            raise ConfigError(
                f"a trajectory of {self.largest / 2**20:,.0f} MiB is too large to be sent ({LARGEST_MESSAGE / 2**20:,.0f} MiB): "
                "use a shorter sampling.rollout, or fewer environments in a group (envs_per_worker / num_groups)"
            )

    def schema(self) -> list[Any]:
        """What both sides must agree about, as JSON types."""
        slot = [[name, array.dtype.str, list(array.shape[1:])] for name, array in self._arrays.items()]
        return [slot, self._S, self._packing.name]

    def encode(self, slot: int) -> bytes:
        """The trajectory in a slot, with its number among those of its lane in the header."""
        arrays = {name: array[slot] for name, array in self._arrays.items()}
        tail = []
        for name in self._stacks:
            frames = self._frames(arrays[name])
            whole = np.ones(frames.shape[:2], bool)
            whole[1:] = (_words(frames)[1:, :, :-1] != _words(frames)[:-1, :, 1:]).any((2, 3))
            arrays[NEWEST + name], arrays[WHOLE + name] = frames[:, :, -1], whole
            tail.append(frames[:, :, :-1][whole])
        ended = arrays["terminated"] | arrays["truncated"]
        tail += [arrays[name][ended] for name in self._finals]
        message = bytearray(self._layout.nbytes + sum(array.nbytes for array in tail))
        HEADER.pack_into(message, 0, TRAJECTORY, int(self._store.order[slot]))
        for name, view in self._layout.views(message).items():
            view[...] = arrays[name]
        at = self._layout.nbytes
        for array in tail:
            message[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            at += array.nbytes
        return self._packing.pack(message)

    def decode(self, message: bytes, slot: int) -> None:
        """Write a message's trajectory into a slot. Raises `ProtocolError` for one that is no trajectory of these fields."""
        content = self._packing.unpack(message, self.largest)
        at = self._layout.nbytes
        if len(content) < at:
            raise ProtocolError(f"a trajectory of {len(content)} bytes, where at least {at} were expected")
        sent = self._layout.read(content[:at])  # type: ignore[arg-type]
        arrays = {name: array[slot] for name, array in self._arrays.items()}
        for name in self._layout.arrays.keys() & arrays.keys():
            arrays[name][...] = sent[name]
        for name in self._stacks:
            frames, whole = self._frames(arrays[name]), sent[WHOLE + name]
            if not whole[0].all():
                raise ProtocolError("a trajectory that does not begin with whole stacks")
            older = frames[:, :, :-1]
            part, at = _taken(content, at, (int(whole.sum()), *older.shape[2:]), np.dtype(np.uint8))
            older[whole] = part
            frames[:, :, -1] = sent[NEWEST + name]
            for t in range(1, len(frames)):
                if (moved := ~whole[t]).all():
                    older[t] = frames[t - 1, :, 1:]
                elif moved.any():
                    older[t, moved] = frames[t - 1, moved, 1:]
        ended = arrays["terminated"] | arrays["truncated"]
        for name in self._finals:
            shape = (int(ended.sum()), *arrays[name].shape[2:])
            arrays[name][ended], at = _taken(content, at, shape, arrays[name].dtype)
        if at != len(content):
            raise ProtocolError(f"a trajectory of {len(content)} bytes, where {at} were expected")

    def _frames(self, array: np.ndarray) -> np.ndarray:
        """A view of stacked frames, uint8 [T+1, C, S, bytes of a frame]."""
        return array.reshape(*array.shape[:2], self._S, -1)


def _words(frames: np.ndarray) -> np.ndarray:
    """The same bytes as words of 8 where that is possible: eight times fewer to compare."""
    return frames.view(np.uint64) if frames.shape[-1] % 8 == 0 else frames


def _taken(content: memoryview, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, int]:
    """An array at byte `at`, and the byte behind it. Raises `ProtocolError` if there are too few."""
    end = at + int(np.prod(shape)) * dtype.itemsize
    if end > len(content):
        raise ProtocolError(f"a trajectory of {len(content)} bytes, where at least {end} were expected")
    return np.frombuffer(content[at:end], dtype.newbyteorder("<")).reshape(shape), end
