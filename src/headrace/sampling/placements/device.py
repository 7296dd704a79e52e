"""The device placement: environments, policy and learner share the accelerator, or all cores of the CPU, in one process (CuLE).

Every step acts for all environments at once. Sampling and learning take turns, each with the whole device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import Config
from headrace.sampling.placements.in_process import InProcess
from headrace.sampling.run_memory import Agent, RunMemory
from headrace.sampling.worker_process import actor_seed, environment_seed
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.run_control import RunControl

if TYPE_CHECKING:
    from torch import Tensor, nn

    from headrace.accelerator.threads import LearnerThreads
    from headrace.sampling.device_sampler import DeviceSampler


class Device(InProcess):
    """See the module."""

    deterministic = True
    """On the CPU with an unchanged number of threads; on a GPU as far as its kernels are deterministic."""
    _sampler: DeviceSampler | None = None
    _threads: LearnerThreads | None = None

    def allocate(self, agents: list[Agent]) -> RunMemory:
        """Only a run control: the sampler has its trajectories in its own memory."""
        control = RunControl({"rollout": 1, "policy": 1, "learner": 1})
        return RunMemory([], InferenceRequests(1, 1, 1, 1, []), control)

    def make_sampler(self) -> None:
        """See `InProcess.make_sampler`."""
        from headrace.accelerator.cpu_allocator import keep_freed_memory
        from headrace.accelerator.graphs import set_up
        from headrace.accelerator.threads import LearnerThreads
        from headrace.envs.make import make_group
        from headrace.sampling.device_sampler import DeviceSampler

        config = self.config
        set_up(config.device)
        keep_freed_memory()
        threads = config.learner_threads if config.learner_threads > 1 else None
        group = make_group(config.env, config.envs, config.num_envs, threads=threads, device=config.device)
        algorithm, model = self.make_agent(config, self.spec)
        self._sampler = DeviceSampler(config, self.spec, algorithm, model, group, actor_seed(config, 0))
        self._notices.append(_summary(config))
        self._threads = LearnerThreads(config)
        self._sampler.env_clock = self.memory.control.clock("rollout", 0)
        self._sampler.act_clock = self.memory.control.clock("policy", 0)

    def between_rounds(self) -> str | None:
        """See `InProcess.between_rounds`."""
        return None if self._threads is None else self._threads.adapt()

    def close_sampler(self) -> None:
        """See `InProcess.close_sampler`."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def batches(self, p: int, reported_envs: range) -> Any:
        """See `Placement.batches`."""
        from headrace.experience.on_device import DeviceExperience, DeviceReplayExperience

        if self.config.uses_replay:
            return DeviceReplayExperience(self.config, self.spec, self._collect, reported_envs)
        return DeviceExperience(self._collect, self.config.device, reported_envs)

    def _collect(self) -> tuple[dict[str, Tensor], range]:
        assert self._sampler is not None
        return self._sampler.collect()

    def publish(self, p: int, model: nn.Module, version: int) -> None:
        """See `Placement.publish`: a copy on the device."""
        assert self._sampler is not None
        self._sampler.take_weights(model, version)
        if not self.memory.control.ready:
            if not self._sampler.started:
                self._sampler.start(environment_seed(self.config, 0, version=version))
            self.memory.control.set_ready(p)

    def version(self, p: int) -> int:
        """See `Placement.version`."""
        return 0 if self._sampler is None else self._sampler.version

    def get_state(self) -> dict[str, Any] | None:
        """See `Placement.get_state`."""
        return None if self._sampler is None else self._sampler.get_state()

    def set_state(self, state: dict[str, Any]) -> str | None:
        """See `Placement.set_state`."""
        assert self._sampler is not None
        return self._sampler.set_state(state)


def _summary(config: Config) -> str:
    """The sampling settings as a line for the log."""
    if config.uses_replay:
        return (
            f"Device placement on {config.device}: {config.num_envs:,} environments, trajectories of {config.sampling.rollout} "
            f"steps, which go into a replay of {config.replay.capacity:,} transitions in the memory of the device"
        )
    parts = f"{config.parts} parts" if config.parts > 1 else "1 part"
    return (
        f"Device placement on {config.device}: {config.num_envs:,} environments in {parts}, trajectories of "
        f"{config.sampling.rollout} steps; an update with {config.learning.batch_size:,} steps of experience follows every "
        f"{config.update_period} steps"
    )
