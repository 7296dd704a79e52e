"""A Ray cluster of several raylets on this machine, in a program of its own, which obeys lines of standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

MARK = "HEADRACE_RAY_TEST"


class Machines:
    """A Ray cluster; each raylet is a machine for Ray, with two CPUs."""

    def __init__(self, count: int, folder: Path):
        self.mark = uuid.uuid4().hex
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2}
        busy = {"RAY_worker_register_timeout_seconds": "600", "RAY_worker_niceness": "0"}  # on a busy machine
        self._out = (folder / "ray.out").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(__file__), str(count), "2"],  # room for two nodes on each
            env=os.environ | token | busy | {MARK: self.mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._out,
            text=True,
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        assert address, (folder / "ray.out").read_text()
        self.variables = token | {"RAY_ADDRESS": address}

    def ask(self, what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def nodes(self) -> list[int]:
        """Pids of sampling nodes, wherever Ray has started them."""
        return self.running("headrace.cluster")

    def running(self, module: str) -> list[int]:
        """Pids of the processes on the machines that were started as `python -m` this module."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            started, variables = process.info["cmdline"] or (), process.info["environ"] or {}
            if module in started and variables.get(MARK) == self.mark:
                found.append(process.pid)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._out.close()


def main(count: int, cpus: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=cpus) for _ in range(count - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        what, *arguments = line.split()
        if what == "kill":
            cluster.remove_node(others.pop(), allow_graceful=False)
        elif what == "add":  # NAME=VALUE: variables of the machine
            variables = dict(argument.split("=", 1) for argument in arguments)
            others.append(cluster.add_node(num_cpus=cpus, env_vars=variables))
        elif what == "behead":
            (server,) = cluster.head_node.all_processes["gcs_server"]
            os.kill(server.process.pid, signal.SIGKILL)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
