"""Which errors are explained to the user, so that no traceback is shown, and which are bugs."""

from __future__ import annotations

import errno
import resource

from headrace.config.errors import UserError
from headrace.config.reading import shortened

_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "ulimit -n", 1),
    errno.EAGAIN: ("RLIMIT_NPROC", "ulimit -u", 1),
    errno.ENOMEM: ("RLIMIT_AS", "ulimit -v", 1024),
    errno.EFBIG: ("RLIMIT_FSIZE", "ulimit -f", 1024),
}
"""Resource limits by the error that they lead to: name, the shell's command, bytes of the shell's unit."""
_MACHINE = {
    *_LIMITS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENFILE, errno.ENAMETOOLONG,
    errno.ESTALE, errno.ELOOP, errno.ENOENT, errno.ENOTDIR,
}  # fmt: skip
"""Error numbers that tell of the machine, its files and its limits, not of a mistake in the program."""
_NO_MEMORY = ("can't allocate memory", "out of memory")
"""What torch says when an array does not fit into the memory of the machine or of an accelerator."""
MAX_SHOWN = 2**60
"""Limits above this are none."""


def explain(error: BaseException) -> tuple[str, int] | None:
    """The text for the user and the exit code of the command line; None for a bug, whose traceback is to be shown."""
    if isinstance(error, UserError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        limit = _limit(errno.ENOMEM)
        return (str(error) or "there is not enough memory") + (f" ({limit})" if limit else ""), 2
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
        return shortened(f"there is not enough memory: {error}"), 2
    if isinstance(error, OSError) and error.errno in _MACHINE:
        where = f": {error.filename}" if error.filename else ""
        return f"the system refused something that the run needs: {reason(error)}{where}", 1
    return None


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
