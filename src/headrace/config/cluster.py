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
    """Number of sampling nodes, or a range such as 2-8: the run begins with as many as there are, fails if there are fewer than 2
    `cluster.wait` seconds after its start, and uses up to 8 that join at any time. `auto` is 1-16. Each has
    `sampling.num_workers` rollout workers, and, in the `served` placement, `sampling.num_policy_workers` policy workers. None:
    this process samples and learns, without a cluster."""
    learners: Annotated[int, Range(1, 64)] = 1
    """Number of learner ranks R, which learn the policy together: each has a machine or a GPU of its own, batches of
    `learning.batch_size`, and the trajectories of every R-th node. The first is this process, and has the run folder. When one is
    lost, all learners start again from the newest checkpoint."""
    engine: Engine = "ray"
    """What starts sampling nodes. `ray`: a Ray cluster, with one actor on each machine. `static`: the same command on every
    machine, with the variables of torchrun, Slurm or SkyPilot. The first `learners` machines learn, every other is a sampling
    node; learner ranks and nodes that no other machine provides are processes of the first."""
    listen: str | None = None
    """Address at which the learner's machine listens for nodes, as HOST:PORT; the nodes' trajectories arrive at the ports that
    follow, one for each node. None: free ports of 127.0.0.1 if no other machine can have a node; else free ports of the address
    by which Ray knows this machine, or, with engine `static`, all its addresses from port 7780 on."""
    wait: Timeout = 300.0
    """Longest time (seconds) that the run waits for the fewest nodes at its start, and that a node waits for the
    learner."""
    window: Annotated[int, Range(1, 1024)] = 1
    """Number of trajectories of each policy that may be under way from a node to its learner. More make up for a network with a
    long delay, and add to the policy lag."""
    compression: Literal["none", "lz4"] = "none"
    """Compression of trajectories and samples between nodes and learner. `lz4` needs the package lz4; it saves bytes of images
    and costs processor time."""
    token_file: str | None = None
    """File with the token that nodes and the learner prove themselves with. None: the environment variable HEADRACE_TOKEN, if it
    is set; else one that the run makes and gives to the nodes that it starts itself."""
    ca: str | None = None
    """File with the certificate that signed the learner's; nodes then connect with TLS. None: no TLS."""
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
