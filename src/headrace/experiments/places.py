"""Where the runs of an experiment are trained: on shares of this machine's cores here, on other machines in `ray_nodes`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace.config import ConfigError
from headrace.processes.interrupt import SIGNALS, stops_with_this
from headrace.processes.ranks import die_with_starter

OUTPUT = "output.txt"  # in a run's folder: what the command printed
LOST = -1000  # in the place of an exit code: the run's machine is gone, and the run goes on elsewhere


class Training(Protocol):
    """A run that was started. `subprocess.Popen` satisfies this protocol."""

    def poll(self) -> int | None:
        """The run's exit code, `LOST`, or None while it is running."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal."""


class Places(ABC):
    """Room for a number of runs at a time, which several runners may share."""

    count: int  # number of runs at a time

    @property
    @abstractmethod
    def free(self) -> bool:
        """Whether there is room for one more."""

    @abstractmethod
    def start(self, arguments: Sequence[str], folder: Path) -> Training:
        """Start `headrace train` with these arguments, and with `folder` as the run's, which is there."""

    @abstractmethod
    def end(self, run: Any) -> None:
        """Free the place of a run that `start` returned, and kill the run if it is still running."""

    def look(self) -> list[str]:
        """What the user should know; to be called often."""
        return []

    def close(self) -> None:  # noqa: B027  there may be nothing to do
        """Every run has ended."""


class Cores(Places):
    """The cores of this process, divided among `count` runs. Raises `ConfigError` for more runs than cores."""

    def __init__(self, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if count > len(cores):
            raise ConfigError(f"--parallel {count}: each run needs a core of its own, and there are {len(cores)}")
        self.count = count
        self._shares = deque(cores[i::count] for i in range(count))
        self._taken: dict[subprocess.Popen[bytes], list[int]] = {}

    @property
    def free(self) -> bool:
        return bool(self._shares)

    def start(self, arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        process = start_run(arguments, folder, self._shares[0])
        self._taken[process] = self._shares.popleft()
        return process

    def end(self, run: subprocess.Popen[bytes]) -> None:
        run.kill()
        run.wait()
        self._shares.append(self._taken.pop(run))


def start_run(arguments: Sequence[str], folder: Path, cores: Sequence[int] = (), **how: Any) -> subprocess.Popen[bytes]:
    """Start `headrace train` on some cores (none: all) as a child that dies with this thread. `how`: more for `Popen`."""
    with open(folder / OUTPUT, "ab") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "train", *arguments, "--run.folder", str(folder)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,  # Ctrl-C reaches it once, through this process
            preexec_fn=partial(_begin, os.getpid(), cores), **how,
        )  # fmt: skip
    stops_with_this(run)
    return run


def _begin(parent: int, cores: Sequence[int]) -> None:
    """In the new process, before it becomes the command."""
    die_with_starter(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # Ray's processes block Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a command that a script starts in the background ignores it
    if cores:
        os.sched_setaffinity(0, cores)
