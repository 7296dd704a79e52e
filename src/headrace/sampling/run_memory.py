"""All the memory that the processes of a run share: per policy its trajectories and weights, and over all of them the requests
for actions and the run control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.accelerator.device_observations import DeviceObservations
from headrace.config import Config
from headrace.envs.contract import EnvSpec
from headrace.sampling.seating import Crew
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.population_memory import PopulationMemory
from headrace.shm.run_control import RunControl
from headrace.shm.standings import Standings
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
    learns: bool = True
    """Whether it has a learner. The trajectories of one that has none are nobody's."""
    family: int = 0
    """The policy that learns whose policy workers act with this one: itself, where it learns."""
    acts: bool = True
    """False: a scripted opponent, for whom the rollout worker itself computes the actions."""


class RunMemory:
    """Made by the parent, passed to every child."""

    def __init__(self, policies: Sequence[PolicyMemory], requests: InferenceRequests, control: RunControl):
        self.policies, self.requests, self.control = list(policies), requests, control
        self.population: PopulationMemory | None = None
        """Where policies learn from each other."""
        self.standings: Standings | None = None
        """Multi-agent environments: who plays whom."""

    @property
    def learners(self) -> int:
        """P: the policies that learn, which come first."""
        return sum(policy.learns for policy in self.policies)

    @property
    def families(self) -> list[int] | None:
        """By member, whose queue it shares; None in environments of one agent."""
        return None if self.standings is None else [policy.family for policy in self.policies]

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


def make_run_memory(
    configs: Sequence[Config], spec: EnvSpec, agents: Sequence[Agent | None], crew: Crew | None = None
) -> RunMemory:
    """The memory of a run with these policies. With one agent per environment a group is one lane, and group g is acted for by
    policy g modulo P. In a multi-agent environment every agent is a lane, and every match decides which policy acts for it.
    `configs`: the settings of each policy that learns. `agents`: those of these policies, and then of the `crew`'s members; None
    for scripted ones.

    Raises `MemoryError` where there is too little.
    """
    from headrace.accelerator.weights import weights_nbytes

    config, P = configs[0], len(configs)
    frozen = crew.frozen if crew is not None else []
    families = [*range(P), *(member.family for member in frozen)]
    s = config.sampling
    core_widths: list[int] = [0 if agent is None else agent[1].core_width for agent in agents]  # type: ignore[misc]
    requests = InferenceRequests(s.num_workers, s.num_groups, config.lanes_per_group, config.lane_size, core_widths, families)
    requests.policy[:] = [lane % P for lane in range(requests.L)]
    policies = []
    asked = config.pbt.on and config.pbt.objective == "true_objective"
    for p, agent in enumerate(agents):
        its = spec.of_policy(families[p])
        fields = trajectory_fields(its, core_widths[p], None if agent is None else agent[0].extra_fields(its), asked)
        own = configs[families[p]]
        lanes = config.total_lanes if spec.agents else int((requests.policy == p).sum())
        store = TrajectoryStore(fields, own.slots_for(lanes), s.rollout, config.lane_size)
        on_device = DeviceObservations(store, own.device) if own.one_transfer and p < P else None
        weights = WeightStore(1 if agent is None else weights_nbytes(agent[1]))
        acts = agent is not None
        policies.append(PolicyMemory(store, weights, on_device, learns=p < P, family=families[p], acts=acts))
    control = RunControl({"rollout": s.num_workers, "policy": P * s.num_policy_workers, "learner": P}, P)
    memory = RunMemory(policies, requests, control)
    if config.pbt.on:
        sizes = [_copy_nbytes(*agent) for agent in agents[:P] if agent is not None]
        memory.population = PopulationMemory(sizes, config.envs.reward_weights)
    if crew is not None:
        opponents = len(frozen) - P * crew.num_past
        memory.standings = Standings(s.num_workers, P, crew.num_past, opponents, config.matches.initial_elo)
    return memory


def _copy_nbytes(algorithm: Any, model: nn.Module) -> int:
    """Bytes that a copy of a policy takes at most: the model, what the algorithm remembers, up to three moments of the optimizer
    for each parameter, and the numbers beside them. Memory that is never written takes none."""
    from headrace.runs import state_tree

    state = len(state_tree.to_bytes({"model": model.state_dict(), "learner": algorithm.state_dict(model)}))
    moments = sum(3 * p.numel() * p.element_size() + 4096 for p in model.parameters())
    return state + moments + (1 << 16)
