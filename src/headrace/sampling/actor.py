"""The actor: computes the actions of groups. Policy workers have one, inline rollout workers have one, serial runs have one."""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headrace.sampling.exchange import POLICY_PHASES, Clock, Exchange
from headrace.sampling.weights import FlatWeights


class Act(Protocol):
    """How an algorithm's model chooses actions."""

    def __call__(
        self, model: nn.Module, obs: dict[str, Tensor], core: Tensor, first: Tensor, envs: Tensor, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """`obs` {name: [N, ...]}, `core` [N, S] (to be zeroed where `first` [N]), `envs` int64 [N]: the environments' numbers
        0, 1, ... of the whole run (exploration may depend on them). Returns {field of the slab: [N, ...]} and the core state
        after the row, [N, S]."""
        ...


class Actor:
    """Reads observations of the groups' current rows from the slab and writes the actions there.

    The model's weights are replaced by the newest on the board.
    """

    def __init__(self, model: nn.Module, act: Act, exchange: Exchange, device: str, seed: int, clock: np.ndarray | None = None):
        self.model, self._act, self.exchange, self.device = model.to(device).eval(), act, exchange, device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.weights = FlatWeights(self.model)
        self._updates = 0
        self.version = 0
        self.clock = Clock(np.zeros(len(POLICY_PHASES) + 2) if clock is None else clock, POLICY_PHASES, perf_counter())
        self._to = _Staging(device)
        self._from = _Staging(device)
        slab = exchange.slab
        # One row of one slot is one block of memory, so a batch is n blocks picked by one number each.
        self._inputs = {
            name: slab.arrays[name].reshape(slab.num_slots * (slab.T + 1), slab.E, *field.shape)
            for name, field in slab.fields.items()
            if name == "first" or name.startswith("obs/")
        }

    def refresh(self) -> None:
        """Take the newest weights from the board if there are newer ones than ours."""
        board = self.exchange.board
        updates = board.updates
        if updates != self._updates:
            self.version, self._updates = self.weights.read(board), updates
        self.clock.spent("weights", perf_counter())

    @torch.inference_mode()
    def act(self, groups: np.ndarray) -> None:
        """Compute actions for the current rows of `groups` (int array [n]); all groups at once are one batch of n E rows."""
        x, arrays = self.exchange, self.exchange.slab.arrays
        E, n = x.E, len(groups)
        slots, rows = x.cursor[groups].T
        blocks = slots * (x.T + 1) + rows
        batch = {name: self._to.take(name, array, blocks) for name, array in self._inputs.items()}
        first = batch.pop("first")
        obs = {name.removeprefix("obs/"): tensor for name, tensor in batch.items()}
        core = self._to.take("core", x.cores, groups)
        envs = self._to.take("envs", np.arange(x.G * E).reshape(x.G, E), groups)
        self.clock.spent("gather", perf_counter())
        fields, core_after = self._act(self.model, obs, core, first, envs, self.generator)
        out = self._from.fetch({**fields, "core": core_after})
        self.clock.spent("forward", perf_counter())
        cores = out.pop("core").reshape(n, E, -1)
        for name, value in out.items():
            arrays[name][slots, rows] = value.reshape(n, E, *value.shape[1:])
        arrays["version"][slots, rows] = self.version
        if x.cores.shape[-1]:
            start = rows == 0  # the slot's core state is the one before its first row
            arrays["core"][slots[start]] = x.cores[groups[start]]
            x.cores[groups] = cores
        self.clock.count(n * E)
        self.clock.spent("scatter", perf_counter())


class _Staging:
    """Memory of our own between the slab and the device, allocated once: page-locked for CUDA, so that copies are asynchronous,
    and never given back to the system, which would make every batch pay for its pages again."""

    def __init__(self, device: str):
        self._device = device
        self._memory: dict[str, Tensor] = {}

    def _rows(self, name: str, n: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        memory = self._memory.get(name)
        if memory is None or len(memory) < n:
            memory = torch.empty((n, *shape), dtype=dtype, pin_memory=self._device != "cpu")
            self._memory[name] = memory
        return memory[:n]

    def take(self, name: str, array: np.ndarray, index: np.ndarray) -> Tensor:
        """`array[index]` with its first two axes joined, on the device: [k, E, ...] and [n] give [n E, ...]."""
        rows = self._rows(name, len(index), array.shape[1:], torch.from_numpy(array[:0]).dtype)
        np.take(array, index, axis=0, out=rows.numpy(), mode="clip")  # the other modes copy once more
        return rows.flatten(0, 1).to(self._device, non_blocking=True)

    def fetch(self, tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """The tensors as arrays on the host; waits for the device once."""
        if self._device == "cpu":
            return {name: tensor.numpy() for name, tensor in tensors.items()}
        host = {name: self._rows(name, len(t), t.shape[1:], t.dtype) for name, t in tensors.items()}
        for name, tensor in tensors.items():
            host[name].copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        return {name: tensor.numpy() for name, tensor in host.items()}
