"""Temporary folders that a process left behind because it was killed with all that clean up behind it: a later run removes them.

A process marks the folders that it makes. The mark names the process by its number and its start time, so that another process
which has got its number is not taken for it. What has no mark, or a mark of another machine, container or boot, stays.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

MARK = ".headrace-owner"
"""A file in every folder that may be removed: boot, pid namespace, pid, start time (clock ticks since the boot)."""
SHARED_MEMORY = "shared-memory"
"""A file in such a folder, if there is one: paths in /dev/shm, one a line, that go with the folder."""
FOLDERS = ("pymp-*", "headrace-*")


def mark(folder: str | os.PathLike[str]) -> None:
    """This process has made the folder. Nothing happens where the file system is full or there is no /proc."""
    with suppress(OSError):
        Path(folder, MARK).write_text(_identity(os.getpid()))


def make_folder(prefix: str) -> Path:
    """A new marked temporary folder. The caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-{prefix}-"))
    mark(folder)
    return folder


def remove_at_end(folder: Path) -> None:
    """Have a folder removed when this process has ended, in whatever way: by a shell that reads a pipe of which only this process
    has the other end. It waits a second more, for the end of programs that die with this process."""
    reading, _ = os.pipe()
    script = 'exec 3<&0; (cat; sleep 1; rm -rf "$0") <&3 >/dev/null 2>&1 &'
    subprocess.run(["sh", "-c", script, str(folder)], stdin=reading, start_new_session=True, check=True)
    os.close(reading)


@cache
def sweep(temporary: str) -> None:
    """Remove the marked folders of ended processes among the temporary folders; once in a process."""
    for pattern in FOLDERS:
        for folder in Path(temporary).glob(pattern):
            with suppress(OSError, ValueError):
                if _is_private(folder) and _has_ended((folder / MARK).read_text()):
                    _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for path in map(Path, (folder / SHARED_MEMORY).read_text().splitlines()):
            if path.parent == Path("/dev/shm"):
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _is_private(folder: Path) -> bool:
    """Whether it is a folder of this user into which nobody else can write a mark."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _has_ended(owner: str) -> bool:
    """Whether the process that wrote a mark was one of this boot and pid namespace, and has ended."""
    boot, namespace, pid, _ = owner.split()
    if [boot, namespace] != _identity(os.getpid()).split()[:2]:
        return False
    try:
        return _identity(int(pid)) != owner
    except (FileNotFoundError, ProcessLookupError):
        return True


def _identity(pid: int) -> str:
    """The content of the mark of a process; raises `ProcessLookupError` for one that has ended and that nobody has waited for."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state, *numbers = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    if state == b"Z":
        raise ProcessLookupError(pid)
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {pid} {int(numbers[18])}"
