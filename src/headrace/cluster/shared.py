"""What the main process of the learner's side and its receivers share: who is admitted, where receivers listen, what arrives."""

from __future__ import annotations

import numpy as np

from headrace.cluster.protocol import TRAJECTORIES
from headrace.shm.primitives import Words
from headrace.shm.segment import Mapped, Segment
from headrace.transport.credentials import Credentials
from headrace.transport.messages import LARGEST_MESSAGE
from headrace.transport.streams import Endpoint

COUNTS = ("steps", "trajectories", "bytes", "seconds", "lag", "weights", "weight_bytes")
"""Totals of each node, as `Shared.counts` has them: steps that arrived, trajectories, their bytes as they were sent, processor
time of its receiver (seconds), the sum of the policy lag of the trajectories' last rows (updates), versions of the weights that
were sent to it, and their bytes."""


class Shared(Mapped):
    """Tables by node; made by the parent, passed to every receiver."""

    def __init__(self, nodes: int, listen: str, own: Credentials, learners: int = 1) -> None:
        """`listen`: address at which this rank's machine listens; its receivers have the ports that follow, or free ones."""
        self.nodes, self.learners, self._listen, self._own = nodes, learners, listen, own
        self.generation = Words(nodes)  # the generation of each node; trajectories of an older one are refused
        self.port = Words(nodes)  # where the receiver of each node listens; 0: it does not yet
        self.user_generation = Words(nodes)
        """The generation of each node whose receiver is a user of past versions (`headrace.cluster.population_codec`)."""
        self._segment = Segment(8 * nodes * len(COUNTS))
        self._map()

    def endpoint(self, node: int) -> Endpoint:
        """Where the receiver of a node listens; one that replaces another, where that one did."""
        host, _, first = self._listen.rpartition(":")
        port = self.port.load(node) or (int(first) + 1 + node if int(first) else 0)
        return Endpoint(TRAJECTORIES, f"{host}:{port}", self._own, LARGEST_MESSAGE)

    def _map(self) -> None:
        self.counts = self._segment.ndarray(np.float64, (self.nodes, len(COUNTS)))
        """float64 [nodes, COUNTS]; each receiver writes its own row."""
