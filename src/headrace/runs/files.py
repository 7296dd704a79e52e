"""Writing files so that a crash or a full disk leaves nothing torn and loses nothing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk or an exhausted quota."""


def free_space(path: Path) -> int:
    """Free bytes on the device of `path`, which need not exist and may have an impossible name."""
    return shutil.disk_usage(next(p for p in (path, *path.absolute().parents) if os.path.exists(p))).free


def write_whole(path: Path, text: str) -> None:
    """Replace a file. After a crash there is either the old or the new one."""
    aside = path.with_name(f".tmp-{path.name}")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


class AppendFile:
    """A file to which whole pieces are appended. A piece that does not fit on the disk is kept and written with the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pending = b""

    def append(self, piece: bytes) -> str | None:
        """Append one piece. Returns None, or a message for the user if the disk is full. Raises `OSError` for other failures."""
        self._pending += piece
        end = os.fstat(self._fd).st_size
        try:
            left = memoryview(self._pending)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.ftruncate(self._fd, end)
            return f"{self.path} cannot be written now ({error.strerror}). The data is kept and written when there is room"
        self._pending = b""
        return None

    def close(self) -> None:
        """Write what was kept, and close the file. Raises `OSError` if the disk is still full."""
        problem = self.append(b"")
        os.close(self._fd)
        if problem:
            raise OSError(errno.ENOSPC, "No space left on the disk for the last data", str(self.path))
