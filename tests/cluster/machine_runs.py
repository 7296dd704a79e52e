"""Runs whose learner and nodes are on machines of `namespaces`."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from cluster_runs import PATIENCE, ClusterRun, machine_of
from namespaces import Inside, Machine, Network

KILLS = int(os.environ.get("HEADRACE_KILLS", 2))
"""How often a link is cut, or a machine killed, in one run."""


class MachineRun(ClusterRun):
    """A run whose first learner is alone on the first machine. `node` starts the same command on another one, as rank `index`."""

    def __init__(self, network: Network, folder: Path, nodes: int | str = 2, **settings: Any) -> None:
        super().__init__(folder / "run", nodes=nodes, **settings)
        self.first = network.add(folder)
        self.launch = self.first.popen
        if settings.get("cluster.engine") != "ray":
            size = int(nodes) + settings.get("cluster.learners", 1)
            self.environ = machine_of(self, 0, self.first.address, machines=size)

    def node(self, machine: Machine, index: int, **variables: str) -> Inside:
        own = {"RANK": str(index), "TMPDIR": "/tmp", "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", **variables}
        with self.printed(machine).open("w") as out:
            return machine.popen(self.command, env={**self.environ, **own}, stdout=out, stderr=out, start_new_session=True)

    def printed(self, machine: Machine) -> Path:
        """What the command printed there."""
        return self.folder.with_name(f"{machine.name}.out")

    def assert_nothing_on(self, *machines: Machine) -> None:
        """No process and no temporary file of the run is left, on the first machine neither."""
        self.assert_nothing_left()
        for machine in (self.first, *machines):
            assert_no_trace(machine)

    def learns_on(self, steps: int = 2000) -> None:
        before = self.step()
        self.wait_for("progress", lambda: self.step() > before + steps)


def assert_no_trace(machine: Machine) -> None:
    """Nothing is left there; what ends by itself is waited for."""
    deadline = time.monotonic() + 10 * PATIENCE
    while (found := machine.traces()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not found, f"left on {machine.name}: {found}"


def table(name: str, seconds: list[float]) -> None:
    """Show what was measured."""
    print(f"{name}: median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s of {len(seconds)}", flush=True)
