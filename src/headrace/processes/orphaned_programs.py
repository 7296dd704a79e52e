"""Programs that child processes have started (`subprocess`, a game's launcher), and that outlive them: a process that is killed
cannot end its own.

They are found by a variable in their environment, which they inherit, whoever their parent is by now and whatever session or
process group they have made. A program that is started with another environment (`subprocess.Popen(..., env={})`) is not found.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

STARTED_BY = "HEADRACE_PROGRAM_OF"
"""The environment variable: the `origin` of the child process that started it, a colon and that child's pid."""
_unique = uuid.uuid4().hex
AGAIN = 1.0  # seconds for which programs are looked for again while some are found


def origin() -> str:
    """The name of this process in the variable `STARTED_BY` of the programs that its child processes start."""
    return f"{_unique}-{os.getpid()}"


def mark_programs(parent: str) -> None:
    """In a child process: have the programs that it starts carry its mark. `parent`: the origin of the process that wanted it."""
    os.environ[STARTED_BY] = f"{parent}:{os.getpid()}"


def end_programs(parent: str, children: Collection[int] | None = None, spared: Collection[int] = ()) -> int:
    """Kill the programs that child processes (pids; None: all) of the process with this origin have started, except those
    `spared`. Returns how many there were."""
    found: set[int] = set()
    deadline = time.monotonic() + AGAIN
    while children is None or children:
        living = _programs(parent, children).difference(spared)
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        found |= living
        if not living or time.monotonic() > deadline:
            break
        time.sleep(0.002)  # one of them may have started another in between
    return len(found)


def _programs(parent: str, children: Collection[int] | None) -> set[int]:
    """Pids of these programs that live."""
    beginning = f"{STARTED_BY}={parent}:".encode()
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            # That of the program's start, which neither it nor its parent can change; empty once it has ended.
            environ = Path("/proc", entry, "environ").read_bytes()
        except OSError:  # it ended, or is another user's
            continue
        if beginning not in environ:
            continue
        marks = [variable for variable in environ.split(b"\0") if variable.startswith(beginning)]
        if any(children is None or int(mark.rpartition(b":")[2]) in children for mark in marks):
            found.add(int(entry))
    return found - {os.getpid()}
