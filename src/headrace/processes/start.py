"""Starting child processes from whatever the user runs: a script, a notebook, a test.

Children come from a fork server: they start from a small clean process, not from a copy of this one with its threads and locks.
"""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, resource_tracker, util
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

import numpy as np
import psutil

from headrace.config.errors import ConfigError
from headrace.processes import leftovers, orphaned_programs
from headrace.processes.interrupt import SIGNALS

_preloaded = ["headrace.sampling.preload"]  # imported by the fork server, in this order
_imported: frozenset[str] = frozenset()  # what the running fork server has imported of these
STARTED_BY = "HEADRACE_FORK_SERVER_STARTED_BY"
"""An environment variable that is set only while the fork server is being started. It holds the id of the process that starts
it, that process's origin (`orphaned_programs.origin`) and its temporary folder with the fork server's socket ("" where another
process removes the folder)."""
SOCKET_PATH = 107  # bytes of the longest path that a Unix socket can have
CHILDREN_END = 2.0  # seconds that the fork server waits for the end of children whose parent was killed
FILES_OF_A_CHILD = 64  # files that starting one more child process may take, beside those that are open
WAITING = ("GOMP_SPINCOUNT", "10000")  # of libgomp's rounds of waiting; see `give_cores_up_soon`
_lock = threading.RLock()
_asked: float | None = None  # since when `start_child` waits for the fork server (monotonic); None: it does not


def preload(*modules: str) -> None:
    """Have the fork server import these modules, by name, once for all children that are started from now on. Without effect
    while it has children."""
    _preloaded.extend(module for module in modules if module not in _preloaded)


def give_cores_up_soon() -> None:
    """Called before torch is imported. Its threads wait for each other at the end of every operation, and keep their cores for
    libgomp's 300,000 rounds, some milliseconds. With another program on one of the cores an update then lasts seconds. With a
    thirtieth of that training is as fast where the cores are idle. What the user has set stays."""
    os.environ.setdefault(*WAITING)


def start_fork_server() -> None:
    """Start the fork server, unless it runs. It imports while this process goes on, so that the first child starts sooner."""
    global _imported
    with _lock:
        _forget_fork_server_of_another()
        if _imported < set(_preloaded):
            _end_idle_fork_server()
        multiprocessing.get_context("forkserver").set_forkserver_preload(_preloaded)
        # `forkserver.ensure_running` would start it, too, but behind the lines that block signals, and that unblocks two of them.
        resource_tracker.ensure_running()
        with folder_for_sockets("/pymp-01234567/listener-01234567"):
            folder = _own_folder()
            leftovers.sweep(tempfile.gettempdir())
        # Ctrl-C, `timeout` and a closed terminal signal the whole process group. The fork server must outlive them, or this
        # process would believe that all its children are dead; it inherits what is blocked here.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        os.environ[STARTED_BY] = f"{os.getpid()}:{orphaned_programs.origin()}:{folder}"
        running = _fork_server_pid()
        try:
            forkserver.ensure_running()
        finally:
            del os.environ[STARTED_BY]
            if _fork_server_pid() != running:
                _imported = frozenset(_preloaded)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork_server_pid() -> int | None:
    return getattr(forkserver._forkserver, "_forkserver_pid", None)  # type: ignore[attr-defined]


def _forget_fork_server_of_another() -> None:
    """For a process that was forked, as multiprocessing does by default before Python 3.14. The fork server that it knows is a
    child of the process that it was forked from: that one needs it, and this one could not wait for its end."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    pid = _fork_server_pid()
    if pid is None:
        return
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        os.close(server._forkserver_alive_fd)
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def _end_idle_fork_server() -> None:
    """End a fork server without children, which lacks imports; `forkserver.ensure_running` then starts another. An environment
    that was described before the settings were known had none but the imports of rollout workers."""
    pid = _fork_server_pid()
    if pid is None or multiprocessing.active_children():
        return
    with suppress(ProcessLookupError, ChildProcessError):  # it has ended by itself
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # not reaped: `ensure_running` asks how it ended


@contextmanager
def folder_for_sockets(path: str) -> Iterator[None]:
    """Meanwhile the temporary directory is /tmp if that of the user (TMPDIR) leaves too little room for a socket with this `path`
    below it."""
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) > SOCKET_PATH - len(path):
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = before


def _own_folder() -> str:
    """The temporary folder of this process, in which the fork server has its socket. "" where the folder is not its own: a child
    of multiprocessing has that of its parent, which may live on."""
    if multiprocessing.parent_process() is not None:
        return ""
    if not multiprocessing.current_process()._config.get("tempdir"):  # type: ignore[attr-defined]
        leftovers.mark(util.get_temp_dir())  # else made by a parent, perhaps, from which this process was forked
    return util.get_temp_dir()


def become_fork_server() -> None:
    """Called in the fork server by what it imports first: at its end it removes the temporary folder of the process that started
    it, and ends the programs that its children started, if that process was killed and could not do so itself. In any other
    process nothing happens."""
    started_by = os.environ.pop(STARTED_BY, None)
    if started_by is not None:
        # Torch's threads, when it is imported here, are to sleep while they wait for each other. By default they keep their cores
        # meanwhile, which rollout workers want.
        if WAITING in os.environ.items():
            del os.environ[WAITING[0]]
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        parent, origin, folder = started_by.split(":", 2)
        atexit.register(_clean_up, os.getpid(), int(parent), origin, folder)


def _clean_up(server: int, parent: int, origin: str, folder: str) -> None:
    """Do so if the parent is dead. The fork server ends when the parent's files are closed; a moment later the kernel gives its
    children another parent."""
    deadline = time.monotonic() + 10
    while os.getpid() == server and time.monotonic() < deadline:
        if os.getppid() != parent:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            _end_children(time.monotonic() + CHILDREN_END)
            orphaned_programs.end_programs(origin)
            return
        time.sleep(0.005)


def _end_children(deadline: float) -> None:
    """In the fork server: wait for the end of the children, which die with the parent (`die_with_parent`) unless the user's
    program has started them."""
    with suppress(ChildProcessError):  # there is none any more
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)


def start_child(main: Callable[..., None], arguments: tuple[Any, ...], name: str, daemon: bool = True) -> BaseProcess:
    """Start `main(*arguments)` in a child process (by default a daemon, in multiprocessing's sense) and return it.

    Functions and arguments are pickled; none may be defined in the user's script. The child gets this process's environment
    variables, working directory and `sys.path` as they are now; it ignores Ctrl-C, SIGTERM and SIGHUP.

    Raises `ConfigError` in a daemonic process, and where so few files may be open that the child could not be started.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "this is a daemonic process of multiprocessing, which may have no child processes: start it with daemon=False, or "
            "train with sampling.placement serial, which needs none"
        )
    _allow_files()
    with _lock:  # threads that start children share the environment and the main module
        start_fork_server()
        process = multiprocessing.get_context("forkserver").Process(
            target=_with_environment,
            args=(dict(os.environ), orphaned_programs.origin(), main, arguments),
            name=name,
            daemon=daemon,
        )
        global _asked
        _asked = time.monotonic()
        try:
            with without_main_module():
                process.start()
        except ValueError as error:
            if "too many fds" not in str(error):  # multiprocessing sends 256 at most, one for each segment of shared memory
                raise
            raise ConfigError(
                f"the process {name!r} needs more segments of shared memory than can be handed over: fewer policies "
                "(population.size) or past versions (matches.window) take fewer"
            ) from error
        finally:
            _asked = None
    return process


def end_stuck_fork_server(seconds: float) -> bool:
    """End the fork server and the processes it has started, if another thread has waited longer than this for it in
    `start_child`, which then raises OSError or EOFError; the next child starts another. Returns whether that was so."""
    asked, pid = _asked, _fork_server_pid()
    if asked is None or pid is None or time.monotonic() < asked + seconds:
        return False
    with suppress(psutil.Error):
        server = psutil.Process(pid)
        server.suspend()  # it starts nobody any more
        for process in (*server.children(), server):
            with suppress(psutil.Error):
                process.kill()
    return True


def _allow_files() -> None:
    """Raise the soft limit of open files as far as it may be, if it is near. The children have most of this process's files open,
    and the fork server, where it lacks one, would end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = len(os.listdir("/proc/self/fd")) + FILES_OF_A_CHILD
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if need <= soft or soft == resource.RLIM_INFINITY:
        return
    if need > most:
        raise ConfigError(
            f"too few files may be open: ulimit -n is {hard}, and one more process needs {need}. Allow more, or use fewer "
            "sampling.num_workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, max(need, 2 * soft)), hard))


def _with_environment(environment: dict[str, str], origin: str, main: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the fork server's is that of its start
    orphaned_programs.mark_programs(origin)
    # A daemon may have no children, but environments may start some. This process is ended with its parent in any case.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    # Environments may draw from NumPy's global generator. That of the fork server would be the same in all of its children.
    np.random.seed()  # noqa: NPY002
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
    if (parent := multiprocessing.parent_process()) is not None:
        _die_when_closed(parent.sentinel)


def _die_when_closed(fd: int) -> None:
    """Have the kernel kill this process when the other end of the pipe is closed, of which it holds the reading end."""
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if connection.wait([fd], 0):  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def forked_children_die_too() -> None:
    """From now on, what this process forks without starting another program is killed by the kernel when this process ends.

    For environments that fork helpers of their own: a worker may be killed at any time, and cannot end them then. Each helper
    holds the reading end of a pipe whose other end only this process has.
    """
    reading, writing = os.pipe()

    os.register_at_fork(after_in_child=lambda: tie_forked(reading, writing))


def tie_forked(reading: int, writing: int) -> None:
    """In a process that was just forked: have the kernel kill it when the process that forked it closes the writing end of this
    pipe, or ends."""
    with suppress(OSError):  # a child of a child has closed it already
        os.close(writing)
    # Opened anew, since a file that is inherited has one owner for all who hold it.
    own = os.open(f"/proc/self/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK)
    _die_when_closed(own)
