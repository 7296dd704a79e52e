"""The actor: computes the actions of lanes. A policy worker has one; a rollout worker of the `inline` placement has one for each
policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.accelerator.graphs import CudaRecorder, Recorded, Recorder, Tensors
from headrace.accelerator.staging import Staging
from headrace.accelerator.weights import FlatWeights
from headrace.policies.acting import prepare_for_acting
from headrace.sampling.run_memory import RunMemory
from headrace.shm.run_control import PhaseClock

Act = Callable[[nn.Module, Tensors, Tensor, Tensor, Tensor, torch.Generator], tuple[Tensors, Tensor]]
"""`headrace.learning.algorithm.Algorithm.act`; `envs` are the environments' numbers (`environment_numbers`)."""


def environment_numbers(policies: np.ndarray, C: int) -> np.ndarray:
    """The environments' numbers for algorithms, whose exploration may depend on them: 0 to L C - 1. Each policy's environments
    are spread evenly over them, so that every policy of a population explores as much as a single policy would.

    Args:
        policies: int [L]: the policy of each lane.
        C: environments of a lane.

    Returns: int64 [L, C].
    """
    of = np.repeat(policies, C)
    place = np.zeros(len(of))
    for p in np.unique(of):
        own = of == p
        place[own] = (np.arange(own.sum()) + 0.5) / own.sum()
    numbers = np.zeros(len(of), np.int64)
    numbers[np.lexsort((of, place))] = np.arange(len(of))
    return numbers.reshape(-1, C)


class Actor:
    """Reads the observations of lanes' current rows from a policy's trajectory store and writes the actions there.

    Args:
        model: its weights are replaced by the newest in the policy's weight store.
        memory, policy: what the run shares, and the number of the policy that acts.
        graphs: on CUDA, record a graph for each batch size; batches are padded, so that there are few sizes.
        recorder: replaces the recorder of CUDA graphs; for tests.
    """

    def __init__(
        self,
        model: nn.Module,
        act: Act,
        memory: RunMemory,
        policy: int,
        device: str,
        seed: int = 0,
        clock: PhaseClock | None = None,
        graphs: bool = True,
        recorder: Recorder | None = None,
    ):
        self.policy, self.device, self._act = policy, device, act
        self.model = model.to(device).eval()
        self.generator = torch.Generator(device).manual_seed(seed)
        if device != "cpu":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            recorder = recorder or (CudaRecorder(device, (self.generator,)) if graphs else None)
        self.weights = FlatWeights(self.model)
        prepare_for_acting(self.model)  # after the line above: weights in the weight store are float32
        self._padded = recorder is not None
        self._forward = Recorded("acting", self._compute, recorder, fixed=True)
        self._updates = 0
        self.version = 0
        self.lagging = False
        """Whether the placement gives it older weights than the newest (`set_weights`); `refresh` leaves them alone."""
        self.clock = clock or PhaseClock("policy")
        requests, mine = memory.requests, memory.policies[policy]
        self._staging = Staging(device, requests.L)
        self._requests, self._weight_store, self._on_device = requests, mine.weights, mine.device_observations
        store = self._store = mine.trajectories
        self._tells_behind = "behind" in store.arrays
        # One row of one slot is one block of memory, so a batch is n blocks with one index each.
        self._inputs = {
            name: store.arrays[name].reshape(store.num_slots * (store.T + 1), store.C, *field.shape)
            for name, field in store.fields.items()
            if name == "first" or name.startswith("obs/")
        }
        self._cores, self._next_cores = requests.cores[policy], requests.next_cores[policy]
        self._recurrent = self._cores.shape[-1] > 0
        several = memory.standings is None  # in matches, lanes change their policy
        self._envs = environment_numbers(requests.policy if several else np.zeros(requests.L, int), requests.C)

    def refresh(self) -> None:
        """Take the newest weights from the weight store if they are newer."""
        updates = self._weight_store.updates
        if updates != self._updates and not self.lagging:
            self.version, self._updates = self.weights.read(self._weight_store), updates
        self.clock.spent("weights", perf_counter())

    def get_weights(self) -> dict[str, Any]:
        """The actor's weights, as bytes, and their version."""
        return {"version": self.version, "weights": self.weights.held()}

    def set_weights(self, state: dict[str, Any]) -> None:
        """Act with what `get_weights` gave until the next `refresh`."""
        self.version = state["version"]
        self.weights.hold(state["weights"])

    def act(self, lanes: np.ndarray) -> None:
        """Compute actions for the current rows of `lanes` (int array [n]); all lanes at once are one batch of n C rows."""
        # A policy worker never leaves inference mode: entering it takes as long as several operations of PyTorch.
        with nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode():
            self._act_for(lanes)

    def _act_for(self, lanes: np.ndarray) -> None:
        arrays, C, n = self._store.arrays, self._store.C, len(lanes)
        slots, rows = self._requests.cursor.take(lanes, 0).T
        blocks = slots * (self._store.T + 1) + rows
        pad = min(self._requests.L, 1 << (n - 1).bit_length()) if self._padded else n
        batch = {name: self._staging.take(name, array, blocks, pad) for name, array in self._inputs.items()}
        batch["core"] = self._staging.take("core", self._cores, lanes, pad)
        batch["envs"] = self._staging.take("envs", self._envs, lanes, pad)
        self.clock.spent("gather", perf_counter())
        packed = self._forward(batch)
        stamp = 0
        if self._on_device is not None:
            left = {name: tensor[: n * C].unflatten(0, (n, C)) for name, tensor in batch.items() if name.startswith("obs/")}
            stamp = self._on_device.leave(slots, rows, left)
        out = self._staging.fetch(packed, n * C)
        if self._on_device is not None:
            self._on_device.mark(slots, rows, stamp)  # `fetch` has waited for the device
        self.clock.spent("forward", perf_counter())
        if self._recurrent:
            start = rows == 0  # the slot's core state is the one before its first row
            arrays["core"][slots[start]] = self._cores[lanes[start]]
            self._next_cores[lanes] = out.pop("core").reshape(n, C, -1)  # become `cores` when the rollout worker takes the action
        for name, value in out.items():
            arrays[name][slots, rows] = value.reshape(n, C, *value.shape[1:])
        arrays["version"][slots, rows] = self.version
        if self._tells_behind:
            arrays["behind"][slots, rows] = self._weight_store.version - self.version
        self.clock.count(n * C)
        self.clock.spent("scatter", perf_counter())

    def _compute(self, batch: Tensors) -> Tensors:
        """From one batch of observations to the fields of the trajectory store."""
        obs = {name.removeprefix("obs/"): tensor for name, tensor in batch.items() if name.startswith("obs/")}
        fields, core = self._act(self.model, obs, batch["core"], batch["first"], batch["envs"], self.generator)
        return self._staging.pack({**fields, "core": core} if self._recurrent else fields)
