"""A Ray cluster of several raylets on this machine, as a program: it prints its address, then obeys lines of standard input."""

from __future__ import annotations

import os
import signal
import sys

from ray.cluster_utils import Cluster


def main(count: int, cpus: int) -> None:
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
