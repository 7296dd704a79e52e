"""Trajectories that are on the learner's device already: batches are views of the sampler's memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headrace.experience.batch import Arrivals, Batch

COUNTED = ("valid", "version", "episode_return", "episode_length")
"""Fields that the host counts."""


class DeviceExperience:
    """`collect()` steps the environments until there is a batch, and gives its fields: [T+1, B, ...], [T, B, ...], `core` [B, S].

    Where the fields are in host memory and the device is not the CPU they are copied there.
    """

    def __init__(self, collect: Callable[[], dict[str, Tensor]], device: str):
        self._collect, self._device = collect, device

    def next(self, timeout: float | None = None) -> Batch:
        """The next batch; takes as long as that takes."""
        fields = self._collect()
        host = {name: fields[name].cpu() for name in COUNTED}
        valid, returns = host["valid"], host["episode_return"]
        ended = ~returns.isnan()
        arrivals = Arrivals(int(valid[: len(returns)].sum()), returns[ended].numpy(), host["episode_length"][ended].numpy())
        data = {name: x.to(self._device, non_blocking=True) for name, x in fields.items()}
        return Batch(data, host["version"].clone(), valid, None, arrivals)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Trajectories have no priorities."""
        raise NotImplementedError("trajectories have no priorities")

    def release(self) -> None:
        """The next call of `next` overwrites the batch; nothing else waits for it."""

    def metrics(self) -> dict[str, float]:
        """None of its own."""
        return {}

    def save(self, folder: Path) -> None:
        """Trajectories are consumed at once: there is nothing to save."""

    def get_state(self) -> dict[str, Any] | None:
        """None: there is nothing to save."""
        return None

    def restore(self, folder: Path, state: Any) -> list[str]:
        """There is nothing to restore; episodes begin anew."""
        return []
