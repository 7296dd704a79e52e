"""The actor: computes the actions of groups. Policy workers have one, inline rollout workers have one, serial runs have one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headrace.accelerator.graphs import CudaRecorder, Recorded, Recorder, Tensors
from headrace.accelerator.staging import Staging
from headrace.policies.policy import convert_weights
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

    Args:
        graphs: on CUDA, record a graph for each batch size; batches are padded, so that these are few.
        say: gets messages for the user.
        recorder: what records; for tests.
    """

    def __init__(
        self,
        model: nn.Module,
        act: Act,
        exchange: Exchange,
        device: str,
        seed: int,
        clock: np.ndarray | None = None,
        graphs: bool = True,
        say: Callable[[str], None] = warnings.warn,
        recorder: Recorder | None = None,
    ):
        self.model, self._act, self.exchange, self.device = model.to(device).eval(), act, exchange, device
        self._say = say
        self.generator = torch.Generator(device).manual_seed(seed)
        if device != "cpu":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            recorder = recorder or (CudaRecorder(device, (self.generator,)) if graphs else None)
        self.weights = FlatWeights(self.model)
        convert_weights(self.model)  # behind the line above: on the board all are float32
        self._padded = recorder is not None
        self._forward = Recorded("acting", self._compute, recorder, say, fixed=True)
        self._updates = 0
        self.version = 0
        self.clock = Clock(np.zeros(len(POLICY_PHASES) + 2) if clock is None else clock, POLICY_PHASES, perf_counter())
        self._staging = Staging(device, exchange.G)
        slab = exchange.slab
        # One row of one slot is one block of memory, so a batch is n blocks picked by one number each.
        self._inputs = {
            name: slab.arrays[name].reshape(slab.num_slots * (slab.T + 1), slab.E, *field.shape)
            for name, field in slab.fields.items()
            if name == "first" or name.startswith("obs/")
        }
        self._envs = np.arange(exchange.G * exchange.E).reshape(exchange.G, exchange.E)

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
        pad = min(x.G, 1 << (n - 1).bit_length()) if self._padded else n
        batch = {name: self._staging.take(name, array, blocks, pad) for name, array in self._inputs.items()}
        batch["core"] = self._staging.take("core", x.cores, groups, pad)
        batch["envs"] = self._staging.take("envs", self._envs, groups, pad)
        self.clock.spent("gather", perf_counter())
        packed = self._forward(batch)
        stamp = 0
        if x.device_slab is not None:
            left = {name: tensor[: n * E].unflatten(0, (n, E)) for name, tensor in batch.items() if name.startswith("obs/")}
            stamp = x.device_slab.leave(slots, rows, left, self._say)
        out = self._staging.fetch(packed, n * E)
        if x.device_slab is not None:
            x.device_slab.mark(slots, rows, stamp)  # not before the device is done with it
        self.clock.spent("forward", perf_counter())
        cores = out.pop("core").reshape(n, E, -1)
        for name, value in out.items():
            arrays[name][slots, rows] = value.reshape(n, E, *value.shape[1:])
        arrays["version"][slots, rows] = self.version
        if x.cores.shape[-1]:
            start = rows == 0  # the slot's core state is the one before its first row
            arrays["core"][slots[start]] = x.cores[groups[start]]
            x.next_cores[groups] = cores  # to be `cores` when the group's worker takes the action
        self.clock.count(n * E)
        self.clock.spent("scatter", perf_counter())

    def _compute(self, batch: Tensors) -> Tensors:
        """From one batch of observations to everything the slab wants to know."""
        obs = {name.removeprefix("obs/"): tensor for name, tensor in batch.items() if name.startswith("obs/")}
        fields, core = self._act(self.model, obs, batch["core"], batch["first"], batch["envs"], self.generator)
        return self._staging.pack({**fields, "core": core})
