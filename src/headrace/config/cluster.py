"""Settings of a run on many machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from headrace.config.errors import ConfigError
from headrace.config.file_reading import shortened
from headrace.config.ranges import Range, Timeout

MOST_NODES = 1024
AUTO_NODES = 16  # largest number of nodes of `cluster.nodes auto`
Engine = Literal["ray", "static"]


@dataclass
class ClusterConfig:
    """Several machines: sampling nodes step environments and act, each with its own workers; one machine learns."""

    nodes: Annotated[int, Range(1, MOST_NODES)] | str | None = None
    """Number of sampling nodes, or a range such as 2-8: the run begins as soon as one node has joined, fails if fewer than 2 are
    there `cluster.wait` seconds after its start, and uses up to 8, which may join at any time. `auto` is 1-16. Each node has
    `sampling.num_workers` rollout workers, and, in the `served` placement, `sampling.num_policy_workers` policy workers. None:
    this process samples and learns, without a cluster."""
    learners: Annotated[int, Range(1, 64)] = 1
    """Number R of learner ranks, processes that learn one policy together. Each has its own machine or GPU, makes batches of
    `learning.batch_size` steps, and gets the trajectories of every R-th node. The first rank is this process, which writes the
    run folder. When a rank is lost, all learners start again from the newest checkpoint."""
    engine: Engine = "ray"
    """What starts sampling nodes. `ray`: a Ray cluster, with one actor on each machine. `static`: you start the same command on
    every machine, and the environment variables of torchrun, Slurm or SkyPilot tell which machine is which. The first `learners`
    machines learn, every other one is a sampling node. If there are too few machines, the first also runs the missing learner
    ranks and nodes."""
    listen: str | None = None
    """Address at which the learner's machine listens for nodes, as HOST:PORT; the nodes' trajectories arrive at the ports that
    follow, one for each node. None: free ports of 127.0.0.1 if no other machine can have a node; else with `ray` free ports of
    the address by which Ray knows this machine, and with `static` all addresses of this machine, from port 7780 on."""
    wait: Timeout = 300.0
    """Longest time (seconds) that the run waits at its start for the smallest allowed number of nodes, and that a node waits for
    the learner."""
    window: Annotated[int, Range(1, 1024)] = 1
    """Number of trajectories of each policy that may be under way from a node to its learner. A larger number hides the delay of
    the network, and adds to the policy lag."""
    compression: Literal["none", "lz4"] = "none"
    """Compression of trajectories and samples between nodes and learner. `lz4` needs the package lz4; it saves bytes of images
    and costs processor time."""
    token_file: str | None = None
    """File with the secret token that nodes and the learner share. None: the environment variable HEADRACE_TOKEN, if it is set;
    else a new token, which the run gives to the nodes that it starts itself."""
    ca: str | None = None
    """File with the certificate that signed the learner's TLS certificate; nodes then connect with TLS. None: no TLS."""
    tls_cert: str | None = None
    """File with the learner's TLS certificate. None: no TLS."""
    tls_key: str | None = None
    """File with the private key of `tls_cert`."""

    @property
    def node_range(self) -> tuple[int, int]:
        """The fewest nodes and the most that `nodes` allows; (1, 1) without a cluster. Raises `ConfigError` for other texts."""
        if not isinstance(self.nodes, str):
            return (self.nodes or 1,) * 2
        if self.nodes == "auto":
            return 1, AUTO_NODES
        numbers = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", self.nodes)
        least, most = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
        if not 1 <= least <= most <= MOST_NODES:
            raise ConfigError(
                f"cluster.nodes is {shortened(self.nodes, 100)!r}; it must be a number from 1 to {MOST_NODES}, two with the "
                "larger one last (2-8), or auto"
            )
        return least, most

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes, by which they and their workers are numbered."""
        return self.node_range[1]
