"""Writing files so that a crash or a full disk leaves nothing torn and loses nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.config.file_reading import open_regular, read_bytes

MOST_DATA = 1 << 44  # bytes of a file of arrays; larger ones are refused before they are read


def free_space(path: Path) -> str:
    """The free megabytes on the device of `path`, for a message. The path need not exist, and may have an impossible name."""
    try:
        there = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
        return f"{shutil.disk_usage(there).free / 1e6:,.1f} MB free"
    except OSError:  # the working directory was deleted, say
        return "free space unknown"


def write_synced(path: Path, data: bytes) -> str:
    """Write a file and have it on the device on return. Returns its SHA-256, in hexadecimal digits."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return sha256(data)


def read_synced(path: Path, digest: Any) -> bytes:
    """What `write_synced` wrote, which gave this digest. Raises `ValueError` where the file cannot be read or holds something
    else."""
    data = read_bytes(path, MOST_DATA)
    if sha256(data) != digest:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one of what was written")
    return data


def end_of(path: Path, most: int) -> bytes:
    """The last bytes of a file, `most` at most. Raises `OSError`."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read()


def sha256(data: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def replaceable(path: Path) -> Path:
    """The file that a path names, links followed, which need not exist. Raises `OSError` where something is there that is no
    regular file: a device, a pipe or a folder must not be replaced."""
    real = Path(os.path.realpath(path))
    if os.path.lexists(real) and not real.is_file():
        raise OSError(None, "it is no regular file", str(path))
    return real


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file. After a crash there is either the old or the new one. Raises `OSError`, also as `replaceable`."""
    write_together({path: content})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """As `write_whole`, for files of which none is replaced before all are on the disk."""
    places: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            real = replaceable(path)
            aside = real.with_name(f".tmp-{real.name}")
            aside.unlink(missing_ok=True)
            places[aside] = real
            try:
                write_synced(aside, content.encode() if isinstance(content, str) else content)
            except OSError as error:
                error.filename = error.filename or str(path)  # a full disk is noticed without a name
                raise
        for aside, real in places.items():
            os.replace(aside, real)
    except BaseException:
        for aside in places:
            aside.unlink(missing_ok=True)
        raise


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # error numbers of a disk that may have room again


def is_open(fd: int, file: os.stat_result) -> bool:
    """Whether a descriptor still belongs to this file. An environment in this process may have closed it, and its number may
    belong to another file by now."""
    try:
        return os.path.samestat(os.fstat(fd), file)
    except OSError:
        return False


def close_own(fd: int, file: os.stat_result) -> None:
    """Close a descriptor if it still belongs to this file."""
    if is_open(fd, file):
        os.close(fd)


def occupy_standard_streams() -> None:
    """Open the null device where standard input, output or error were closed. Otherwise the next file that is opened would get
    that number, and printed text would be written to it. Where Python began without one to print to, it gets one."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    sys.stdout, sys.stderr = (stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") for stream in (sys.stdout, sys.stderr))


class AppendFile:
    """A file to which whole pieces are appended. A piece that cannot be written (a full disk, a network drive that is away) is
    kept and written with the next one. A descriptor that was closed by others is opened again.

    Raises `OSError` if the file cannot be opened, or is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._open()
        self._pending = b""
        self._unwanted: list[Callable[[Any], bool]] = []  # what `keep_lines` has been asked for and is not done
        self._failing = False

    def _open(self) -> int:
        # Without O_NONBLOCK the opening of a pipe would wait for a reader.
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        file = os.fstat(fd)
        if not stat.S_ISREG(file.st_mode):
            os.close(fd)
            raise OSError(None, "it is no regular file", str(self.path))
        self._file = file
        return fd

    def append(self, piece: bytes) -> str | None:
        """Append one piece. Returns None, or a message for the user: when pieces cannot be written from now on, and when they can
        be again."""
        self._pending += piece
        try:
            self._write()
        except OSError as error:
            known, self._failing = self._failing, True
            problem = f"{self.path} cannot be written now ({error.strerror}). The data is kept and written as soon as possible"
            return None if known else problem
        before, self._failing = self._failing, False
        return f"{self.path} is written again, with all that was kept" if before else None

    def _write(self) -> None:
        while self._unwanted:
            self._rewrite(self._unwanted[0])
            self._unwanted.pop(0)
        if not is_open(self._fd, self._file):
            occupy_standard_streams()
            self._fd = self._open()
        end, left = os.fstat(self._fd).st_size, memoryview(self._pending)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            with suppress(OSError):  # no torn piece
                os.ftruncate(self._fd, end)
            raise
        self._pending = b""

    def _rewrite(self, wanted: Callable[[Any], bool]) -> None:
        """Replace the file by one with only the `wanted` JSON lines. After an error, or a crash, the old file is there."""
        there = read_json_lines(self.path) if os.path.lexists(self.path) else []
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in there if wanted(line)))
        before, file = self._fd, self._file
        self._fd = self._open()
        close_own(before, file)

    def lines(self) -> list[Any]:
        """The JSON lines in the file, and those that wait for room. Raises `OSError`."""
        return [*(read_json_lines(self.path) if os.path.lexists(self.path) else []), *_json_lines(self._pending)]

    def keep_lines(self, wanted: Callable[[Any], bool]) -> str | None:
        """Remove all but the `wanted` JSON lines; on a full disk when there is room, before anything else is written. Returns a
        message as `append` does. Raises `OSError` where the file cannot be read or replaced for another reason."""
        self._pending = b"".join(json.dumps(line).encode() + b"\n" for line in _json_lines(self._pending) if wanted(line))
        try:
            self._rewrite(wanted)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._unwanted.append(wanted)
        return self.append(b"")

    def close(self) -> None:
        """Write the data that a full disk has kept back, and close the file. Raises `OSError` if there is still no room."""
        self.append(b"")
        close_own(self._fd, self._file)
        if self._failing:
            raise OSError(errno.ENOSPC, "No space left on the disk for the last data", str(self.path))


def read_json_lines(path: Path) -> list[Any]:
    """What the lines of a file hold; those that a crash cut short or a power failure garbled are left out. Raises `OSError`."""
    with open_regular(path) as file:
        try:
            return _json_lines(file.read())
        except MemoryError as error:
            raise OSError(errno.ENOMEM, "not enough memory to read it", str(path)) from error


def _json_lines(data: bytes) -> list[Any]:
    lines = []
    for text in data.decode(errors="replace").split("\n"):
        with suppress(ValueError, RecursionError):
            lines.append(json.loads(text))
    return lines
