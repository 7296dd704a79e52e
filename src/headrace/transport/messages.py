"""Messages: JSON for handshakes, and for everything else named arrays in a fixed binary layout behind a header of 8 bytes.

The header is the message's kind (uint32) and a sequence number (uint32), which an answer repeats. All numbers are little-endian.
The arrays follow one after the other, each at a multiple of 8 bytes. Both sides know the layout, so messages of a kind have one
size and carry no offsets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.arrays import ArrayLayout, ArraySpec

HEADER = struct.Struct("<II")  # kind, sequence number
LARGEST_JSON = 1 << 20  # most bytes of a handshake message
LARGEST_MESSAGE = 256 << 20  # most bytes of any message


class ProtocolError(Exception):
    """The other side violated the protocol."""


class Refused(Exception):
    """One side rejects the other; the message is the reason."""


def header(message: bytes) -> tuple[int, int]:
    """(kind, sequence number) of a message. Raises `ProtocolError` if it is too short."""
    if len(message) < HEADER.size:
        raise ProtocolError(f"a message of {len(message)} bytes")
    return HEADER.unpack_from(message)


class MessageLayout(ArrayLayout):
    def __init__(self, arrays: Mapping[str, ArraySpec]) -> None:
        little_endian = {name: replace(array, dtype=array.dtype.newbyteorder("<")) for name, array in arrays.items()}
        super().__init__(little_endian, alignment=8, start=HEADER.size)

    def schema(self) -> list[list[Any]]:
        """[name, dtype, shape] of every array in order, as JSON types: layouts with equal schemas are equal."""
        return [[name, array.dtype.str, list(array.shape)] for name, array in self.arrays.items()]

    def write(self, kind: int, sequence: int, arrays: Mapping[str, Any]) -> bytes:
        """A message with copies of these arrays."""
        message = bytearray(self.nbytes)
        HEADER.pack_into(message, 0, kind, sequence)
        for name, view in self.views(message).items():
            view[...] = arrays[name]
        return bytes(message)

    def read(self, message: bytes) -> dict[str, np.ndarray]:
        """The arrays of a message by name, as views. Bools are copies, in which every byte other than 0 is True.

        Raises `ProtocolError` for a message of another size.
        """
        if len(message) != self.nbytes:
            raise ProtocolError(f"a message of {len(message)} bytes, where {self.nbytes} were expected")
        views = self.views(message)
        return {name: view.view(np.uint8) != 0 if view.dtype == bool else view for name, view in views.items()}


def read_json(message: bytes) -> dict[str, Any]:
    """A JSON object. Raises `ProtocolError` for anything else."""
    if len(message) > LARGEST_JSON:
        raise ProtocolError(f"a handshake of {len(message):,} bytes")
    try:
        content = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a handshake that is no JSON") from error
    if not isinstance(content, dict):
        raise ProtocolError("a handshake that is no JSON object")
    return content
