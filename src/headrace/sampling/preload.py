"""Imported once by the fork server, so that rollout workers start at once and share these modules' memory. No torch."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import stat
from pathlib import Path

import headrace.envs.registry
import headrace.sampling.rollout_worker  # noqa: F401


def _listening_at() -> Path | None:
    """The socket file at which this fork server is asked for processes."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as copy:
                    name = copy.getsockname()
                    if isinstance(name, str) and Path(name).name.startswith("listener-"):
                        return Path(name)
        except OSError:  # the descriptor that listed the folder, closed since
            continue
    return None


def _clean_up(listener: Path, parent: int) -> None:
    # Whoever started the fork server removes the folder with the socket, unless it was killed.
    if os.getppid() != parent:
        shutil.rmtree(listener.parent, ignore_errors=True)


if listener := _listening_at():
    # A SIGTERM to the whole group (`timeout`, service managers) is the parent's to answer; without the fork server it would
    # believe that all its children are dead. The fork server ends with its parent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit.register(_clean_up, listener, os.getppid())
