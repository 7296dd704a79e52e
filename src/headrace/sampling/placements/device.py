"""The device placement: environments, policy and learner share the accelerator, or all cores of the CPU, in one process (CuLE).

Every step acts for all environments at once; nobody waits for anybody, since whoever's turn it is has the whole device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError
from headrace.sampling.placements.in_process import InProcess
from headrace.sampling.run_memory import Agent, RunMemory
from headrace.sampling.worker_process import actor_seed, environment_seed
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.run_control import RunControl

if TYPE_CHECKING:
    from torch import Tensor, nn

    from headrace.sampling.device_sampler import DeviceSampler


class Device(InProcess):
    """See the module. Raises `ConfigError` for settings that it cannot work with."""

    _sampler: DeviceSampler | None = None

    def allocate(self, agents: list[Agent]) -> RunMemory:
        """Nothing is shared but the run control: trajectories are in the sampler's own memory."""
        _check(self)
        control = RunControl({"rollout": 1, "policy": 1, "learner": 1})
        return RunMemory([], InferenceRequests(1, 1, 1, 1, []), control)

    def make_sampler(self) -> None:
        """See `InProcess.make_sampler`."""
        from headrace.accelerator.graphs import set_up
        from headrace.accelerator.memory import keep_freed_memory
        from headrace.envs.registry import make_group
        from headrace.sampling.device_sampler import DeviceSampler

        config = self.config
        set_up(config.device)
        keep_freed_memory()
        threads = config.learner_threads if config.learner_threads > 1 else None
        group = make_group(config.env, config.envs, config.num_envs, threads=threads)
        algorithm, model = self.make_agent(config, self.spec)
        self._sampler = DeviceSampler(config, self.spec, algorithm, model, group, actor_seed(config, 0))
        self._sampler.env_clock = self.memory.control.clock("rollout", 0)
        self._sampler.act_clock = self.memory.control.clock("policy", 0)

    def close_sampler(self) -> None:
        """See `InProcess.close_sampler`."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def batches(self, p: int, reported_envs: range) -> Any:
        """See `Placement.batches`."""
        from headrace.experience.on_device import DeviceExperience

        return DeviceExperience(self._collect, self.config.device)

    def _collect(self) -> dict[str, Tensor]:
        assert self._sampler is not None
        return self._sampler.collect().fields

    def publish(self, p: int, model: nn.Module, version: int) -> None:
        """See `Placement.publish`: a copy on the device."""
        assert self._sampler is not None
        self._sampler.take_weights(model, version)
        if not self.memory.control.ready:
            self._sampler.start(environment_seed(self.config, 0, version=version))
            self.memory.control.set_ready(p)

    def version(self, p: int) -> int:
        """See `Placement.version`."""
        return 0 if self._sampler is None else self._sampler.version


def _check(placement: Device) -> None:
    """Refuse what the placement cannot do, with the numbers."""
    config = placement.config
    T, n, size = config.sampling.rollout, config.num_envs, config.learning.batch_size
    if config.uses_replay:
        raise ConfigError(f"--placement device learns from trajectories; {config.learning.algorithm} learns from a replay")
    if config.sampling.num_policies > 1:
        raise ConfigError(f"--placement device trains one policy; sampling.num_policies is {config.sampling.num_policies}")
    parts = T * n // size if size else 0
    if parts * size != T * n or T % parts or n % parts:
        raise ConfigError(
            f"--placement device: learning.batch_size ({size}) must be sampling.rollout x environments ({T} x {n} = {T * n}) "
            f"divided by a number that divides both; the largest is {T * n}, others are "
            + ", ".join(str(T * n // g) for g in range(2, min(T, n) + 1) if T % g == 0 and n % g == 0)
        )
