"""Which errors are explained to the user, so that no traceback is shown, and which are bugs."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Iterable
from pathlib import Path

from headrace.config.errors import UserError
from headrace.config.file_reading import shortened

_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "ulimit -n", 1),
    errno.EAGAIN: ("RLIMIT_NPROC", "ulimit -u", 1),
    errno.ENOMEM: ("RLIMIT_AS", "ulimit -v", 1024),
    errno.EFBIG: ("RLIMIT_FSIZE", "ulimit -f", 1024),
}
"""Resource limits by the error that they lead to: name, the shell's command, bytes of the shell's unit."""
_MACHINE = {*_LIMITS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENFILE, errno.ESTALE}
"""Error numbers that tell of the machine, its disks and its limits, whatever the program does."""
_PATH = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.ENOTDIR}
"""Error numbers that tell of one path: of the machine's state if the run needs the path, else of a mistake in the program, such
as an environment that opens a file by a wrong name."""
_NO_MEMORY = ("can't allocate memory", "out of memory")
"""What torch says when an array does not fit into the memory of the machine or of an accelerator."""
MAX_SHOWN = 2**60  # limits above this are none


def explain(error: BaseException, paths: Iterable[str | os.PathLike[str]] = ()) -> tuple[str, int] | None:
    """The text for the user and the exit code of the command line; None for a bug, whose traceback is to be shown.

    `paths`: files and folders that the run was given; what is in them and in folders for temporary files is the run's.
    """
    if isinstance(error, UserError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        limit = _limit(errno.ENOMEM)
        return (str(error) or "there is not enough memory") + (f" ({limit})" if limit else ""), 2
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
        return shortened(f"there is not enough memory: {error}"), 2
    if isinstance(error, OSError) and (error.errno in _MACHINE or (error.errno in _PATH and _is_the_runs(error, paths))):
        where = f": {error.filename}" if error.filename else ""
        return f"the system refused something that the run needs: {reason(error)}{where}", 1
    return None


def _is_the_runs(error: OSError, paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Whether the run needs the path of this error. True for an error without a path, which is about the machine: a deleted
    working directory, no folder for temporary files, a forbidden call."""
    named = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes | os.PathLike)]
    if not named or not os.path.exists(os.curdir):
        return True
    own = [Path(os.path.abspath(path)) for path in (*paths, tempfile.gettempdir(), "/dev/shm", "/proc") if os.fspath(path)]
    places = [Path(os.path.abspath(os.fsdecode(name))) for name in named]
    return any(place == root or root in place.parents or place in root.parents for place in places for root in own)


def reason(error: OSError) -> str:
    """What the system says, with the resource limit that may be the cause."""
    limit = _limit(error.errno) if error.errno else ""
    return f"{error.strerror or error}" + (f" ({limit})" if limit else "")


def _limit(number: int) -> str:
    """The resource limit that may have led to this error, as the shell shows it; "" where there is none."""
    name, command, unit = _LIMITS.get(number, ("", "", 1))
    if not name:
        return ""
    soft, _ = resource.getrlimit(getattr(resource, name))
    return "" if soft == resource.RLIM_INFINITY or soft > MAX_SHOWN else f"{command} is {soft // unit}"
