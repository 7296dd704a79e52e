"""What the main process of the learner's side and its receivers share: who is admitted, where receivers listen, what arrives."""

from __future__ import annotations

import numpy as np

from headrace.shm.primitives import Words
from headrace.shm.segment import Mapped, Segment

COUNTS = ("steps", "trajectories", "bytes", "seconds", "lag", "weights", "weight_bytes")
"""Totals of each node, as `Shared.counts` has them: steps that arrived, trajectories, their bytes, seconds that its receiver worked
(processor time of its process), the sum of the policy lag of the trajectories' last rows (updates), versions of the weights
that were sent to it, and their bytes."""


class Shared(Mapped):
    """Tables by node; made by the parent, passed to every receiver."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self.generation = Words(nodes)
        """The generation of each node; trajectories of an older one are refused."""
        self.port = Words(nodes)
        """Where the receiver of each node listens; 0: it does not yet."""
        self._segment = Segment(8 * nodes * len(COUNTS))
        self._map()

    def _map(self) -> None:
        self.counts = self._segment.ndarray(np.float64, (self._nodes, len(COUNTS)))
        """float64 [nodes, COUNTS]; each receiver writes its own row."""
