"""Sampling where environment and policy are in one process: every step acts for all environments at once.

Rows are written once, into memory of the device, and stay there until the learner has used them. The environments are divided
into G parts, whose trajectories of T steps end one after the other, T / G steps apart; each end gives one batch:

    steps   0         T/G       2T/G      ...       T         T + T/G
    part 0  |---------------- trajectory -----------|---- next ...          first batch
    part 1            |---------------- trajectory -----------|---- next    second batch

With G = 1 a batch holds T steps of all environments, and the current weights chose all actions (on-policy). With more parts an
update needs fewer steps, and weights up to G - 1 updates old chose the first actions of a trajectory (CuLE, Dalton et al. 2020,
section 5: multi-batching; V-trace corrects for that).
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn

from headrace.accelerator.graphs import CudaRecorder, Marker, Recorded, Tensors
from headrace.accelerator.staging import to_device, torch_dtype
from headrace.config import Config
from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.groups.base import Completion
from headrace.policies.acting import prepare_for_acting
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.run_control import PhaseClock

KEPT = 4  # trajectories that the memory holds. When it is full, the last one moves to its beginning.


class Span(NamedTuple):
    """The trajectories of one part: views of the sampler's memory, valid until the next call of `collect`."""

    fields: Tensors  # every field, [T+1, B, ...] or [T, B, ...] by its number of rows; `core` [B, S]
    envs: range  # the indices of the part's B environments


class DeviceSampler:
    """Steps the environments of one group, and acts for them with the newest weights given.

    Args:
        model: acts; its weights are replaced by `take_weights`.
        algorithm: see `headrace.learning.algorithm.Algorithm`.
        group: all environments; its arrays are tensors of the device if it has the attribute `tensors` and that is True, else
            NumPy arrays in host memory.
        seed: of the actions.
    """

    def __init__(self, config: Config, spec: EnvSpec, algorithm: Any, model: nn.Module, group: EnvGroup, seed: int):
        self.device, self.T, self.B = config.device, config.sampling.rollout, config.num_envs
        self.parts, self.period = config.parts, config.update_period
        self._algorithm, self._group, self._completion = algorithm, group, Completion(group)
        self.model = model.to(self.device).eval()
        self._core_width: int = model.core_width  # type: ignore[assignment]
        self.generator = torch.Generator(self.device).manual_seed(seed)
        on_cuda = self.device != "cpu"
        if on_cuda:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        prepare_for_acting(self.model)
        recorder = CudaRecorder(self.device, (self.generator,)) if config.cuda_graphs else None
        self._forward = Recorded("acting", self._compute, recorder)
        self._envs = torch.arange(self.B, device=self.device)
        self.version = 0
        self.env_clock, self.act_clock = PhaseClock("rollout"), PhaseClock("policy")

        # Environments on the device write its tensors in place; others write page-locked memory, from which the device copies.
        in_place = bool(getattr(group, "tensors", False))
        self._acted = Marker("cpu" if in_place else self.device)  # behind it a step's actions are in host memory
        where: dict[str, Any] = {"device": self.device if in_place else "cpu", "pin_memory": on_cuda and not in_place}
        rows = KEPT * self.T + 1
        fields = trajectory_fields(spec, self._core_width, algorithm.extra_fields(spec))
        self._memory: Tensors = {
            name: torch.zeros((rows, self.B, *field.shape), dtype=torch_dtype(field.dtype), **where)
            for name, field in fields.items()
        }
        self._rows_of = {name: field.rows for name, field in fields.items()}
        arrays: dict[str, Any] = self._memory if in_place else {name: x.numpy() for name, x in self._memory.items()}
        self._views = [LaneRow.view(arrays, t, t + 1) for t in range(rows - 1)]
        self._first_row = ObsRow.view(arrays, 0)
        self._core = torch.zeros(self.B, self._core_width, device=self.device)
        self._t = self._steps = 0
        self.started = False  # whether the environments were reset or restored
        group.remember()

    @torch.no_grad()
    def take_weights(self, model: nn.Module, version: int) -> None:
        """Act with these weights, of this version, from now on."""
        for mine, new in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(new)
        self.version = version

    def start(self, seed: int) -> None:
        """Reset every environment; environment i has seed `seed` + i."""
        self._group.reset(seed, [self._first_row])
        self._completion.wait()
        self.started = True

    def collect(self) -> Span:
        """Step all environments until the next part has a trajectory."""
        while True:
            if self._t == len(self._views):
                self._rewind()
            self._act(self._t)
            self._step(self._t)
            self._t += 1
            self._steps += 1
            since_first = self._steps - self.T
            if since_first >= 0 and since_first % self.period == 0:
                return self._span(since_first // self.period % self.parts)

    def _rewind(self) -> None:
        """Move the rows that are still needed to the beginning of the memory."""
        last = self._t
        for x in self._memory.values():
            x[: self.T + 1].copy_(x[last - self.T : last + 1])
        self._t = self.T

    def _act(self, t: int) -> None:
        self.act_clock.spent("wait", perf_counter())  # while environments or learner had their turn
        seen = [name for name in self._memory if name.startswith("obs/") or name == "first"]
        batch = {name: to_device(self._memory[name][t], self.device) for name in seen}
        self._memory["core"][t].copy_(self._core, non_blocking=True)
        out = self._forward({**batch, "core": self._core})
        self._core = out.pop("core").clone() if self._core_width else self._core
        for name, value in out.items():
            self._memory[name][t].copy_(value, non_blocking=True)
        self._memory["version"][t].fill_(self.version)
        self._acted.catch_up()
        self.act_clock.count(self.B)
        self.act_clock.spent("forward", perf_counter())

    @torch.inference_mode()
    def _compute(self, batch: Tensors) -> Tensors:
        obs = {name[4:]: x for name, x in batch.items() if name.startswith("obs/")}
        fields, core = self._algorithm.act(self.model, obs, batch["core"], batch["first"], self._envs, self.generator)
        return {**fields, "core": core}

    def _step(self, t: int) -> None:
        self.env_clock.spent("wait_actions", perf_counter())
        self._group.send([self._views[t]])
        self._completion.wait()
        self.env_clock.count(self.B)
        self.env_clock.spent("step", perf_counter())

    def _span(self, part: int) -> Span:
        end, width = self._t, self.B // self.parts
        envs = range(part * width, (part + 1) * width)
        columns = slice(envs.start, envs.stop)
        fields = {}
        for name, x in self._memory.items():
            rows = {"T+1": slice(end - self.T, end + 1), "T": slice(end - self.T, end)}.get(self._rows_of[name])
            fields[name] = x[end - self.T, columns] if rows is None else x[rows, columns]
        return Span(fields, envs)

    # -- going on after a stop ------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The state between two calls of `collect`: generator, environments, and rows that were in no batch yet."""
        return {"generator": self.generator.get_state(), "world": self._world()}

    def _world(self) -> dict[str, Any] | None:
        """The state of environments and rows; None if the environments cannot give theirs."""
        envs = self._group.get_state() if self.started else None
        if envs is None:
            return None
        end = self._t
        begin = max(0, end - (self.T - self.period))  # the next batch begins here; all earlier rows were in a batch
        last = {name: end + (rows == "T+1") for name, rows in self._rows_of.items()}  # row `end` has only an observation so far
        rows = {name: x[begin : last[name]].to("cpu", copy=True) for name, x in self._memory.items()}
        return {"envs": envs, "rows": rows, "core": self._core.to("cpu", copy=True), "steps": self._steps}

    def set_state(self, state: dict[str, Any]) -> str | None:
        """Go on from `get_state`. If the environments cannot, their episodes begin anew and the reason is returned."""
        self.generator.set_state(state["generator"])
        world = state["world"]
        if world is None:
            return "Episodes begin anew: these environments cannot give their state"
        try:
            self._group.set_state(world["envs"])
        except EnvironmentFault as error:
            return f"Episodes begin anew: {error}"
        for name, rows in world["rows"].items():
            self._memory[name][: len(rows)].copy_(rows)
        self._core = world["core"].to(self.device)
        self._t, self._steps = len(world["rows"]["action"]), world["steps"]
        self.started = True
        return None

    def close(self) -> None:
        self._group.close()
