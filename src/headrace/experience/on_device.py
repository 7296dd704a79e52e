"""Trajectories that are on the learner's device already: batches are views of the sampler's memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from headrace.experience.batch import Arrivals, Batch, ConsumedOnce

COUNTED = ("valid", "version", "episode_return", "episode_length")
"""Fields that the host counts."""


def counted(fields: dict[str, Tensor], envs: range, reported: range) -> tuple[dict[str, Tensor], Arrivals]:
    """The fields `COUNTED` in host memory, and what arrived with them.

    Args:
        fields: of the trajectories of B environments, [T+1, B] or [T, B] each.
        envs: their indices.
        reported: the environments whose episodes are reported.
    """
    host = {name: fields[name].cpu() for name in (*COUNTED, "task") if name in fields}
    index = np.arange(envs.start, envs.stop)
    of_reported = (index >= reported.start) & (index < reported.stop)
    return host, Arrivals.of({name: x.numpy() for name, x in host.items()}, of_reported)


class DeviceExperience(ConsumedOnce):
    """Batches of what `collect` gives.

    Args:
        collect: steps the environments until there is a batch; gives its fields, [T+1, B, ...], [T, B, ...] or `core` [B, S], and
            the indices of its B environments.
        device: fields that are not there are copied there.
        reported_envs: the environments whose episodes are reported.
    """

    def __init__(self, collect: Callable[[], tuple[dict[str, Tensor], range]], device: str, reported_envs: range):
        self._collect, self._device, self._reported = collect, device, reported_envs

    def next(self, timeout: float | None = None) -> Batch:
        """The next batch; takes as long as that takes."""
        fields, envs = self._collect()
        host, arrivals = counted(fields, envs, self._reported)
        data = {name: x.to(self._device, non_blocking=True) for name, x in fields.items()}
        return Batch(data, host["version"].clone(), host["valid"], None, arrivals)

    def release(self) -> None:
        """The next call of `next` overwrites the batch; nothing else waits for it."""
