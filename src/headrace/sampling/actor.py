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
        obs = {name[4:]: self._batch(a[slots, rows]) for name, a in arrays.items() if name.startswith("obs/")}
        first = self._batch(arrays["first"][slots, rows])
        core = self._batch(x.cores[groups])
        envs = self._batch(groups[:, None].astype(np.int64) * E + np.arange(E))
        self.clock.spent("gather", perf_counter())
        fields, core_after = self._act(self.model, obs, core, first, envs, self.generator)
        out = {name: value.to("cpu").numpy().reshape(n, E, *value.shape[1:]) for name, value in fields.items()}
        self.clock.spent("forward", perf_counter())
        for name, value in out.items():
            arrays[name][slots, rows] = value
        arrays["version"][slots, rows] = self.version
        if x.cores.shape[-1]:
            start = rows == 0  # the slot's core state is the one before its first row
            arrays["core"][slots[start]] = x.cores[groups[start]]
            x.cores[groups] = core_after.to("cpu").numpy().reshape(n, E, -1)
        self.clock.count(n * E)
        self.clock.spent("scatter", perf_counter())

    def _batch(self, array: np.ndarray) -> Tensor:
        """[n, E, ...] on the host to [n E, ...] on the device."""
        tensor = torch.from_numpy(array).flatten(0, 1)
        return tensor if self.device == "cpu" else tensor.to(self.device, non_blocking=True)
