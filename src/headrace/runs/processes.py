"""Starting child processes from whatever the user runs: a script, a notebook, a test.

Children come from a fork server: they start from a small clean process, not from a copy of this one with its threads and locks.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from headrace.runs.interrupt import SIGNALS

_preloaded = ["headrace.sampling.preload"]
"""Imported by the fork server."""


def preload(*modules: str) -> None:
    """Have the fork server import these modules, by name, once for all children. Without effect after the first child."""
    _preloaded.extend(module for module in modules if module not in _preloaded)


def start_fork_server() -> None:
    """Start the fork server, unless it runs. It imports while this process goes on, so that the first child starts sooner."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(_preloaded)
    # Ctrl-C, `timeout` and a closed terminal signal the whole process group. The fork server must outlive them, or this process
    # would believe that all its children are dead; it inherits what is blocked here.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_child(main: Callable[..., None], arguments: tuple[Any, ...], name: str, daemon: bool = True) -> BaseProcess:
    """Start `main(*arguments)` in a child process (by default a daemon, in multiprocessing's sense) and return it.

    Functions and arguments are pickled; none may be defined in the user's script. The child gets this process's environment
    variables, working directory and `sys.path` as they are now; it ignores Ctrl-C, SIGTERM and SIGHUP.
    """
    start_fork_server()
    process = multiprocessing.get_context("forkserver").Process(
        target=_with_environment, args=(dict(os.environ), main, arguments), name=name, daemon=daemon
    )
    with without_main_module():
        process.start()
    return process


def _with_environment(environment: dict[str, str], main: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the fork server's is that of its start
    for number in SIGNALS:  # the signals that ask for the end of a run are the parent's to answer
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    main(*arguments)


@contextmanager
def without_main_module() -> Iterator[None]:
    """Children would run the user's script once more, for its definitions. Ours need none of them, so that training works from
    a notebook, from standard input and from a script without `if __name__ == "__main__"`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def die_with_parent() -> None:
    """Have the kernel kill this process when the parent ends in whatever way, also while it is stuck in an emulator.

    PR_SET_PDEATHSIG would watch the fork server, which in turn lives as long as any child does. The parent holds one end of a
    pipe; when that is closed a signal is raised.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    fd = parent.sentinel
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if connection.wait([fd], 0):  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)
