"""Ranks: processes that learn one policy together, each with a device and environments of its own (torch.distributed).

Every rank computes gradients of its own batch; they are combined between the backward pass and clipping, so all ranks make the
same optimizer step and their weights stay equal without being sent. Collective operations happen in the same order on every
rank: one exchange of counts per round of the training loop, then the operations of an update, then the agreement whether to end.

Numbers of a rank travel by gloo in host memory, gradients by NCCL where the device is a GPU. Nothing is pickled.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headrace.config import hardware
from headrace.config.errors import RANK_LOST, UserError

TIMEOUT = float(os.environ.get("HEADRACE_RANK_TIMEOUT", 600))
"""Seconds that a rank waits for the others, which may be writing a checkpoint."""
MEETING = 7 * 24 * 3600.0
"""The same until all have met where they do at a host and port: in a cluster, whose supervisor knows whether some are missing."""


class RankLost(UserError, RuntimeError):
    """Another rank has ended or did not answer. The run goes on from its newest checkpoint when all ranks are started again."""

    exit_code = RANK_LOST


class Ranks:
    """This process among the ranks of the run; a run without `torchrun` has one rank, and nothing here does anything.

    Raises `RankLost` in every method if another rank is gone.
    """

    def __init__(self, device: str):
        here = hardware.rank()
        self.index, self.size = here.index, here.size
        if self.size == 1:
            return
        with self._others():
            meeting = os.environ.get(hardware.RANK_STORE, "")
            address = re.fullmatch(r"tcp://(.+):(\d+)", meeting)
            dist.init_process_group(
                "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
                init_method=None if address else f"file://{meeting}" if meeting else "env://",
                store=self._store(address[1], int(address[2])) if address else None,
                rank=self.index,
                world_size=self.size,
                timeout=timedelta(seconds=TIMEOUT),
            )

    def _store(self, host: str, port: int) -> dist.Store:
        """A store at the first rank, which listens at this address alone."""
        host, family = host.strip("[]"), socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        fd = socket.create_server((host, port), family=family).detach() if self.index == 0 else None
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        store = dist.TCPStore(near, port, self.size, self.index == 0, timedelta(seconds=MEETING), master_listen_fd=fd)
        store.set_timeout(timedelta(seconds=TIMEOUT))
        return store

    @contextmanager
    def _others(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            again = "When all ranks are started again, the run goes on from its newest checkpoint"
            raise RankLost(f"rank {self.index} of {self.size} lost the others ({said}). {again}") from error

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        if self.size > 1:
            with self._others():
                dist.all_reduce(tensor)

    def count(self, *numbers: int) -> list[int]:
        """The sums of these numbers over all ranks."""
        counts = torch.tensor(numbers, dtype=torch.int64)
        self.sum(counts)
        return counts.tolist()

    def largest(self, number: int) -> int:
        if self.size == 1:
            return number
        tensor = torch.tensor(number)
        with self._others():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def join(self, array: np.ndarray) -> np.ndarray:
        """The ranks' arrays [k], each of another length, one behind the other in the order of ranks."""
        if self.size == 1:
            return array
        longest = self.largest(len(array))
        padded = torch.zeros(longest + 1, dtype=torch.float64)
        padded[0] = len(array)
        padded[1 : len(array) + 1] = torch.from_numpy(array.astype(np.float64))
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with self._others():
            dist.all_gather(parts, padded)
        return np.concatenate([part[1 : int(part[0]) + 1].numpy() for part in parts]).astype(array.dtype)

    def from_first(self, data: bytes | None) -> bytes | None:
        """What rank 0 gave to this method; None stays None."""
        if self.size == 1:
            return data
        length = torch.tensor(-1 if data is None else len(data))
        with self._others():
            dist.broadcast(length, 0)
            if int(length) < 0:
                return None
            content = torch.empty(int(length), dtype=torch.uint8)
            if data is not None and self.index == 0:
                content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(content, 0)
        return content.numpy().tobytes()

    @torch.no_grad()
    def combine_gradients(self, model: nn.Module, samples: Tensor | None) -> None:
        """Replace `parameter.grad` of every parameter by its sum over all ranks, or its mean over the samples of all ranks.
        `samples`: the number of samples, [], that this rank's gradients are the mean of; None for the sum. One operation for all
        gradients and the number of samples."""
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        weight = torch.ones(1, device=grads[0].device) if samples is None else samples.to(grads[0]).reshape(1)
        flat = torch.cat([*(grad.reshape(-1) for grad in grads), torch.ones_like(weight)]) * weight
        self.sum(flat)
        if samples is not None:
            flat /= flat[-1:].clamp_min(1)
        for grad, combined in zip(grads, flat[:-1].split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(combined.view_as(grad))
