"""Runs on a Ray cluster whose machines have addresses, links and processes of their own: `ray start` in each namespace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from machine_runs import KILLS, MachineRun, table
from namespaces import Inside, Machine, Network

pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3600)]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
SIZE = ["--object-store-memory", "100000000"]


class RayMachines:
    """A Ray cluster with a token of its own, whose head is on `first` at this port."""

    def __init__(self, first: Machine, folder: Path, port: int = 6379, cpus: int = 0, **variables: str) -> None:
        busy = {"RAY_worker_register_timeout_seconds": "600", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2, **busy, **variables}
        self.address, self._folder = f"{first.address}:{port}", folder
        self.head = self._start(first, ["--head", "--port", str(port), "--include-dashboard", "false"], cpus)
        while "Ray runtime started" not in self._out(first).read_text():
            assert self.head.poll() is None
            time.sleep(0.5)

    def add(self, machine: Machine) -> Inside:
        """Have a machine belong to it, with one CPU."""
        return self._start(machine, ["--address", self.address], 1)

    def _start(self, machine: Machine, flags: list[str], cpus: int) -> Inside:
        start = [*RAY, "start", "--block", "--num-cpus", str(cpus), *SIZE, *flags]
        command = ["sh", "-c", 'until "$@"; do sleep 1; done', "sh", *start]  # a raylet gives up after 30 s
        with self._out(machine).open("w") as out:
            return machine.popen(command, env=os.environ | self.variables, stdout=out, stderr=out, start_new_session=True)

    def _out(self, machine: Machine) -> Path:
        return self._folder / f"ray-{self.address.rpartition(':')[2]}-{machine.name}.out"


def ray_run(network: Network, folder: Path, nodes: int | str) -> tuple[MachineRun, RayMachines]:
    """A run that was not started, and its Ray cluster, which is a head without CPUs."""
    run = MachineRun(network, folder, nodes, **{"cluster.engine": "ray", "learning.total_steps": 10**9, "cluster.wait": 900})
    cluster = RayMachines(run.first, folder)
    run.environ |= {**cluster.variables, "RAY_ADDRESS": cluster.address}
    return run, cluster


def test_machines_that_come_and_vanish(network: Network, tmp_path: Path) -> None:
    run, cluster = ray_run(network, tmp_path, "1-2")
    machines = [network.add()]
    cluster.add(machines[0])
    with run:
        run.wait_for("a node", lambda: "1 of 2 are there" in run.output and run.step() > 1000, 280)
        assert f"({machines[0].name}) takes part" in run.output
        out, back, began = [], [], time.monotonic()
        machines.append(network.add())
        cluster.add(machines[1])
        for lost in range(KILLS + 1):
            run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == lost + 1, 280)  # noqa: B023
            back.append(time.monotonic() - began)
            print(f"{machines[-1].name} was used after {back[-1]:.1f} s", flush=True)
            run.learns_on()
            if lost < KILLS:
                began = time.monotonic()
                machines.pop(0).lose_power()
                run.wait_for("its loss", lambda: run.output.count(" is gone (") == lost + 1, 100)  # noqa: B023
                out.append(time.monotonic() - began)
                print(f"out after {out[-1]:.1f} s", flush=True)
                run.learns_on()
                began = time.monotonic()
                machines.append(network.add())
                cluster.add(machines[-1])
        table("Ray's machine that lost power: out", out)
        table("Ray's machine that came: used", back)
        run.interrupt(120)
    assert not [pid for machine in machines for pid in machine.running("headrace.cluster")]
    assert cluster.head.poll() is None


def test_the_ray_cluster_of_somebody_else_on_the_same_machine_is_left_alone(network: Network, tmp_path: Path) -> None:
    """It was there first, has room for the nodes, another token, other ports and another folder."""
    run = MachineRun(network, tmp_path, 1, **{"cluster.engine": "ray", "learning.total_steps": 20_000, "cluster.wait": 900})
    run.first.run("mkdir", "/tmp/others")
    others = RayMachines(run.first, tmp_path, port=6400, cpus=4, RAY_TMPDIR="/tmp/others")
    there = {process.pid for process in run.first.processes()}
    cluster = RayMachines(run.first, tmp_path)
    run.environ |= {**cluster.variables, "RAY_ADDRESS": cluster.address}
    machine = network.add()
    cluster.add(machine)
    with run:
        run.wait_for("the node", lambda: "1 of 1 are there" in run.output, 280)
        assert machine.running("headrace.cluster")
        assert not run.first.running("headrace.cluster")
        assert run.end(280) == 0, run.story
        run.assert_nothing_left()
    servers = {process.pid for process in run.first.processes() if process.name() in ("gcs_server", "raylet")}
    assert len(servers & there) == 2
    assert len(servers) == 4
    ask = "import ray; ray.init('auto', logging_level='ERROR'); print(len(ray.nodes()), ray.cluster_resources()['CPU'])"
    asked = run.first.popen(
        [sys.executable, "-c", ask], env=os.environ | others.variables | {"RAY_ADDRESS": others.address},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert asked.communicate(timeout=200)[0].split() == ["1", "4.0"]
