"""Settings of a run on many machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from headrace.config.ranges import Range, Timeout

Nodes = Annotated[int, Range(1, 1024)]
Engine = Literal["ray", "static"]


@dataclass
class ClusterConfig:
    """Several machines: sampling nodes step environments and act, each with its own workers; one machine learns."""

    nodes: Nodes | None = None
    """Number of sampling nodes. Each has `sampling.num_workers` rollout workers, and, in the `served` placement,
    `sampling.num_policy_workers` policy workers. None: this process samples and learns, without a cluster."""
    min_nodes: Nodes | None = None
    """Fewest nodes: the run ends if fewer are there `cluster.wait` seconds after its start. Later it goes on with those that are
    there, and others may join at any time. None: all of `cluster.nodes`."""
    engine: Engine = "ray"
    """What starts sampling nodes. `ray`: a Ray cluster, with one actor on each machine. `static`: the same command on every
    machine, with the variables of torchrun, Slurm or SkyPilot. The first machine learns, every other is a sampling node; nodes
    that no other machine provides are processes of the first."""
    listen: str | None = None
    """Address at which the learner's machine listens for nodes, as HOST:PORT; the nodes' trajectories arrive at the ports that
    follow, one for each node. None: free ports of 127.0.0.1 if all nodes are on this machine; else all addresses of it, with
    engine `static` from port 7780 on."""
    wait: Timeout = 300.0
    """Longest time (seconds) that the run waits for `cluster.min_nodes` nodes at its start, and that a node waits for the
    learner."""
    window: Annotated[int, Range(1, 1024)] = 1
    """Number of trajectories that may be under way from each node to the learner. More make up for a network with a long delay,
    and add to the policy lag."""
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
