"""Reading files that may be damaged or replaced by something else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MOST_JSON = 1 << 28  # bytes of a JSON file; larger ones are refused before they are read


class Unreadable(ValueError):
    """A file that cannot be read, or does not hold what it should. The message names it; `reason` is only why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.reason = reason


def shortened(text: str, most: int = 300) -> str:
    """`text` as one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `OSError`, also if it is not a regular file: reading a pipe may block, and a device may
    have no end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, "it is no regular file", str(path))
    return open(fd, "rb")


def read_bytes(path: Path, most: int = MOST_JSON) -> bytes:
    """The contents of a file of at most `most` bytes. Raises `Unreadable`."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise Unreadable(path, f"it has {size:,} bytes, and at most {most:,} are possible")
            data = file.read(size)
    except OSError as error:
        raise Unreadable(path, str(error.strerror)) from error
    except MemoryError as error:
        raise Unreadable(path, f"there is not enough memory for its {size:,} bytes") from error
    return data


def parse_json(data: bytes, path: Path) -> Any:
    """The value of a JSON text that was read from `path`. Raises `Unreadable`."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise Unreadable(path, "it is nested too deeply") from error
    except ValueError as error:  # no text, no JSON, or a number with thousands of digits
        raise Unreadable(path, shortened(str(error))) from error


def read_json(path: Path) -> Any:
    """The value of a JSON file. Raises `Unreadable`."""
    return parse_json(read_bytes(path), path)
