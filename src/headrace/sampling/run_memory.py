"""All the memory that the processes of a run share: per policy its trajectories and weights, and over all of them the requests
for actions and the run control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.accelerator.device_observations import DeviceObservations
from headrace.config import Config
from headrace.envs.contract import EnvSpec
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.population_memory import PopulationMemory
from headrace.shm.run_control import RunControl
from headrace.shm.trajectory_store import TrajectoryStore
from headrace.shm.weight_store import WeightStore

if TYPE_CHECKING:
    from torch import nn

    from headrace.experience.replay.buffer import Replay

Agent = tuple[Any, "nn.Module"]
"""An algorithm (`headrace.learning.algorithm.Algorithm`) and its model."""
MakeAgent = Callable[[Config, EnvSpec], Agent]
"""How every process makes its agent; a module's function, since processes are given it by name."""


@dataclass
class PolicyMemory:
    """What belongs to one policy."""

    trajectories: TrajectoryStore
    weights: WeightStore
    device_observations: DeviceObservations | None = None
    """A second copy of the observations on the device that acting and learning share."""
    replay: Replay | None = None
    """Where experience goes through a replay, which outlives the learner's process."""


class RunMemory:
    """Made by the parent, passed to every child."""

    def __init__(self, policies: Sequence[PolicyMemory], requests: InferenceRequests, control: RunControl):
        self.policies, self.requests, self.control = list(policies), requests, control
        self.population: PopulationMemory | None = None
        """Where policies learn from each other."""

    @property
    def T(self) -> int:
        """Steps of a trajectory."""
        return self.policies[0].trajectories.T

    @property
    def C(self) -> int:
        """Agents of a lane."""
        return self.requests.C

    def stop(self) -> None:
        """End the run: every waiting process wakes up and returns."""
        self.control.stop()
        self.requests.close()
        for policy in self.policies:
            policy.trajectories.close()


def make_run_memory(configs: Sequence[Config], spec: EnvSpec, agents: Sequence[Agent]) -> RunMemory:
    """The memory of a run with these policies. A group is one lane; group g is acted for by policy g modulo P. `configs`: the
    settings of each policy.

    Raises `MemoryError` where there is too little.
    """
    from headrace.accelerator.weights import weights_nbytes

    config, P = configs[0], len(agents)
    s = config.sampling
    models = [model for _, model in agents]
    core_widths: list[int] = [model.core_width for model in models]  # type: ignore[misc]
    requests = InferenceRequests(s.num_workers, s.num_groups, 1, config.envs_per_group, core_widths)
    requests.policy[:] = [lane % P for lane in range(requests.L)]
    policies = []
    for p, (algorithm, model) in enumerate(agents):
        asked = config.pbt.on and config.pbt.objective == "true_objective"
        fields = trajectory_fields(spec, core_widths[p], algorithm.extra_fields(spec), asked)
        lanes = int((requests.policy == p).sum())
        store = TrajectoryStore(fields, configs[p].slots_for(lanes), s.rollout, config.envs_per_group)
        on_device = DeviceObservations(store, configs[p].device) if configs[p].one_transfer else None
        policies.append(PolicyMemory(store, WeightStore(weights_nbytes(model)), on_device))
    control = RunControl({"rollout": s.num_workers, "policy": P * s.num_policy_workers, "learner": P}, P)
    memory = RunMemory(policies, requests, control)
    if config.pbt.on:
        sizes = [_copy_nbytes(algorithm, model) for algorithm, model in agents]
        memory.population = PopulationMemory(sizes, list(config.envs.reward_weights))
    return memory


def _copy_nbytes(algorithm: Any, model: nn.Module) -> int:
    """Bytes that a copy of a policy takes at most: the model, what the algorithm remembers, up to three moments of the optimizer
    for each parameter, and the numbers beside them. Memory that is never written takes none."""
    from headrace.runs import checkpoint

    state = len(checkpoint.tree_to_bytes({"model": model.state_dict(), "learner": algorithm.state_dict(model)}))
    moments = sum(3 * p.numel() * p.element_size() + 4096 for p in model.parameters())
    return state + moments + (1 << 16)
