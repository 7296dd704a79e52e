"""Compression of messages between nodes and the learner's machine (`cluster.compression`)."""

from __future__ import annotations

import struct
from typing import Any

from headrace.config import ConfigError
from headrace.transport.messages import HEADER, ProtocolError


class Packing:
    """Packs messages, all but their headers. `name`: `cluster.compression`. Raises `ConfigError` where lz4 is not installed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lz4: Any = None
        if name == "lz4":
            try:
                import lz4.block
            except ImportError as error:
                raise ConfigError("cluster.compression lz4 needs a package that is not installed: pip install lz4") from error
            self._lz4 = lz4.block

    def __reduce__(self) -> tuple[type[Packing], tuple[str]]:
        return type(self), (self.name,)  # without the module

    def pack(self, message: bytearray) -> bytes:
        """The bytes to send for a message, compressed if that is on."""
        if self._lz4 is None:
            return bytes(message)
        return bytes(message[: HEADER.size]) + struct.pack("<I", len(message)) + self._lz4.compress(message, store_size=False)

    def unpack(self, packed: bytes, largest: int) -> memoryview:
        """The message that was packed, of at most `largest` bytes. Raises `ProtocolError` for anything else."""
        if self._lz4 is None:
            return memoryview(packed)
        start = HEADER.size + 4
        if len(packed) < start:
            raise ProtocolError(f"a compressed message of {len(packed)} bytes")
        (size,) = struct.unpack_from("<I", packed, HEADER.size)
        if not HEADER.size <= size <= largest:
            raise ProtocolError(f"a compressed message that stands for {size} bytes")
        try:
            return memoryview(self._lz4.decompress(memoryview(packed)[start:], uncompressed_size=size))
        except self._lz4.LZ4BlockError as error:
            raise ProtocolError(f"a message that cannot be decompressed: {error}") from error
