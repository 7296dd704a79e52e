"""Trajectories that are on the learner's device already: batches are views of the sampler's memory."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.experience.batch import Arrivals, Batch, ConsumedOnce

COUNTED = ("valid", "version", "episode_return", "episode_length")
"""Fields that the host counts."""


class DeviceExperience(ConsumedOnce):
    """`collect()` steps the environments until there is a batch, and gives its fields: [T+1, B, ...], [T, B, ...], `core` [B, S].

    Where the fields are in host memory and the device is not the CPU they are copied there.
    """

    def __init__(self, collect: Callable[[], dict[str, Tensor]], device: str):
        self._collect, self._device = collect, device

    def next(self, timeout: float | None = None) -> Batch:
        """The next batch; takes as long as that takes."""
        fields = self._collect()
        host = {name: fields[name].cpu() for name in COUNTED}
        arrivals = Arrivals.of(*(host[name].numpy() for name in ("valid", "episode_return", "episode_length")))
        data = {name: x.to(self._device, non_blocking=True) for name, x in fields.items()}
        return Batch(data, host["version"].clone(), host["valid"], None, arrivals)

    def release(self) -> None:
        """The next call of `next` overwrites the batch; nothing else waits for it."""
