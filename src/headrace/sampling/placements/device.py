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
    from torch import nn

    from headrace.accelerator.threads import LearnerThreads
    from headrace.sampling.device_sampler import DeviceSampler


class Device(InProcess):
    """See the module. Deterministic on the CPU with an unchanged number of threads; on a GPU as far as its kernels are."""

    sampler: DeviceSampler
    _threads: LearnerThreads | None = None

    def allocate(self, agents: list[Agent]) -> RunMemory:
        """Only a run control: the sampler has its trajectories in its own memory."""
        control = RunControl({"rollout": 1, "policy": 1, "learner": 1})
        return RunMemory([], InferenceRequests(1, 1, 1, 1, []), control)

    def make_sampler(self) -> DeviceSampler:
        from headrace.accelerator.cpu_allocator import keep_freed_memory
        from headrace.accelerator.graphs import set_up
        from headrace.accelerator.threads import LearnerThreads
        from headrace.envs.core.last_step import last_step_names, remember_last_step, without_last_step
        from headrace.envs.make import make_group
        from headrace.sampling.device_sampler import DeviceSampler

        config = self.configs[0]  # the only policy may have settings of its own (population.overrides)
        set_up(config.device)
        keep_freed_memory()
        threads = config.learner_threads if config.learner_threads > 1 else None
        own = without_last_step(self.spec, names := last_step_names(config))
        group = make_group(config.env, config.envs, config.num_envs, threads=threads, device=config.device, spec=own)
        group = remember_last_step(group, names)
        algorithm, model = self.make_agent(config, self.spec)
        sampler = DeviceSampler(config, self.spec, algorithm, model, group, actor_seed(config, 0))
        sampler.env_clock, sampler.act_clock = (self.memory.control.clock(role, 0) for role in ("rollout", "policy"))
        self._notices.append(_summary(config))
        self._threads = LearnerThreads(config)
        return sampler

    def between_rounds(self) -> str | None:
        return None if self._threads is None else self._threads.adapt()

    def batches(self, p: int, reported_envs: range) -> Any:
        from headrace.experience.on_device import DeviceExperience, DeviceReplayExperience

        config = self.configs[p]
        if config.uses_replay:
            return DeviceReplayExperience(config, self.spec, self.sampler.collect, reported_envs)
        return DeviceExperience(self.sampler.collect, config.device, reported_envs)

    def publish(self, p: int, model: nn.Module, version: int) -> None:
        self.sampler.take_weights(model, version)
        if not self.memory.control.ready:
            if not self.sampler.started:
                self.sampler.start(environment_seed(self.config, 0, version=version))
            self.memory.control.set_ready(p)

    def version(self, p: int) -> int:
        return self.sampler.version

    @property
    def shape(self) -> dict[str, Any]:
        return super().shape | {"parts": self.configs[0].parts}


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
