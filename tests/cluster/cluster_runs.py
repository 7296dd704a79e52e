"""Real runs with sampling nodes on this machine, whose parts can be found and killed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

# Behind the folders of other tests, which have modules of the same names.
sys.path.append(str(Path(__file__).parents[1] / "faults"))
from harness import COUNTING, PATIENCE, Run

TRIES = pytest.mark.parametrize("attempt", range(int(os.environ.get("HEADRACE_TRIES", 1))))
"""For a test of one fault: how often it is tried."""
LIMITED = {
    "cluster.engine": "static", "cluster.wait": 300 * PATIENCE, "sampling.num_workers": 1, "sampling.placement": "inline"
}  # fmt: skip


class ClusterRun(Run):
    """A run with `nodes` sampling nodes, processes of this machine."""

    def __init__(
        self, folder: Path, nodes: int | str = 2, env: str = "counting", imports: Path | None = COUNTING, **settings: Any
    ):
        counting = {"learning.algorithm": "counting"} if env == "counting" else {}
        super().__init__(folder, env=env, imports=imports, **{"cluster.nodes": nodes, **LIMITED, **counting, **settings})

    def nodes(self) -> list[int]:
        """Pids of the nodes' main processes."""
        return self._running("headrace.cluster")

    def ranks(self) -> list[int]:
        """Pids of the main processes of learner ranks but the first."""
        return self._running("headrace.cli.rank")

    def ranks_gone(self) -> list[str]:
        """Lines that tell of learner ranks that were lost."""
        return [line for line in self.output.splitlines() if line.startswith("Learner rank") and ") is gone (" in line]

    def _running(self, module: str) -> list[int]:
        found = []
        for pid in self.pids():
            with suppress(psutil.Error):
                if module in psutil.Process(pid).cmdline():
                    found.append(pid)
        return sorted(found)

    def parts(self, node: int, role: str) -> list[int]:
        """Processes of a node by the beginning of their name, as in `rollout-`; its uplink is `learner-0`."""
        with suppress(psutil.Error):
            below = psutil.Process(node).children(recursive=True)
            return [process.pid for process in below if process.pid in self.pids(role)]
        return []

    def learner_parts(self, role: str) -> list[int]:
        """The same on the learner's side, where receivers are `rollout-`."""
        others = {pid for member in self.nodes() + self.ranks() for pid in self.parts(member, role)}
        return [pid for pid in self.pids(role) if pid not in others]


def free_ports() -> int:
    """The first of a few ports side by side that nobody listens at."""
    for first in range(21_000, 30_000, 10):
        with contextlib.ExitStack() as opened:
            try:
                for port in range(first, first + 5):
                    opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def machine_of(
    run: ClusterRun, index: int, host: str = "127.0.0.1", token: str = "the-token-of-tests", machines: int = 2
) -> dict[str, str]:
    """Variables of one of several machines, as torchrun sets them."""
    here = {"RANK": str(index), "WORLD_SIZE": str(machines), "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": host}
    return {**run.environ, **here, "HEADRACE_TOKEN": token}


def start_node(run: ClusterRun, index: int = 1, **place: Any) -> subprocess.Popen[str]:
    """The run's command on another machine."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen(run.command, env=machine_of(run, index, **place), **how)


def assert_ends_with_the_command(run: ClusterRun, member: subprocess.Popen[str], code: int) -> None:
    """The run's command is killed: this process of another machine says so and ends with `code`."""
    assert run.process is not None
    run.process.kill()
    began = time.monotonic()
    assert "cannot be reached" in member.communicate(timeout=120)[0]
    print(f"it ended {time.monotonic() - began:.1f} s later", flush=True)
    assert member.returncode == code
