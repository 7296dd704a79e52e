"""The memory that the processes of a run share: trajectories and weights of every policy, the requests for actions, and the run
control."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.accelerator.device_observations import DeviceObservations
from headrace.config import Config
from headrace.envs.core.contract import EnvSpec
from headrace.sampling.match_protocols import Members
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.population import PopulationMemory, Standings
from headrace.shm.run_control import RunControl
from headrace.shm.trajectory_store import TrajectoryStore
from headrace.shm.weight_store import WeightStore

if TYPE_CHECKING:
    from torch import nn

    from headrace.experience.replay.buffer import LearnerReplay

Agent = tuple[Any, "nn.Module"]  # an algorithm (`headrace.learning.algorithm.Algorithm`) and its model
MakeAgent = Callable[[Config, EnvSpec], Agent]
"""Makes the agent in every process; a function of a module, since it is pickled by name."""


@dataclass
class PolicyMemory:
    """The memory of one policy, or of a static member."""

    trajectories: TrajectoryStore
    weights: WeightStore
    device_observations: DeviceObservations | None = None
    """A second copy of the observations on the device that acting and learning share."""
    replay: LearnerReplay | None = None  # the replay, if there is one; it outlives the learner's process
    learns: bool = True  # whether it has a learner. Without one its trajectories are discarded.
    queue: int = 0
    """Number of its request queue: the learning policy whose policy workers compute its actions (itself if it learns)."""
    acts: bool = True  # False: a scripted opponent, whose actions the rollout worker computes


class RunMemory:
    """The parent makes it and passes it to every child."""

    def __init__(self, policies: Sequence[PolicyMemory], requests: InferenceRequests, control: RunControl):
        self.policies, self.requests, self.control = list(policies), requests, control
        self.population: PopulationMemory | None = None  # Population-based training; None without it
        self.standings: Standings | None = None
        """Multi-agent environments: members, results and ratings; None in environments of one agent."""

    @property
    def learners(self) -> int:
        """P, the number of policies that learn; they come first in `policies`."""
        return sum(policy.learns for policy in self.policies)

    @property
    def queue_of(self) -> list[int] | None:
        """The number of every member's request queue; None in environments of one agent."""
        return None if self.standings is None else [policy.queue for policy in self.policies]

    @property
    def T(self) -> int:
        """Steps of a trajectory."""
        return self.policies[0].trajectories.T

    def stop(self) -> None:
        """End the run: every waiting process wakes up."""
        self.control.stop()
        self.requests.close()
        for policy in self.policies:
            policy.trajectories.close()


def make_run_memory(
    configs: Sequence[Config],
    spec: EnvSpec,
    agents: Sequence[Agent | None],
    members: Members | None = None,
    kept: Collection[str] | None = None,
) -> RunMemory:
    """Allocate the memory of a run. With one agent per environment a group is one lane, of the policy `policy_of_group`.
    In a multi-agent environment every agent is a lane, and the matchmaker chooses the member that acts for it.

    `configs`: the settings of each policy that learns. `agents`: of these policies, then of the static `members`; None for
    scripted opponents. `kept`: names of the fields that trajectories have; None: all that acting and learning know of.

    Raises `MemoryError` where there is too little memory.
    """
    from headrace.accelerator.weights import weights_nbytes

    config, P = configs[0], len(configs)
    s = config.sampling
    standings, queue_of = None, list(range(P))
    if members is not None:
        opponents = len(members.static) - P * members.num_past
        standings = Standings(s.num_workers, P, members.num_past, opponents, config.matches.initial_elo)
        queue_of = [standings.policy_of(member) for member in range(standings.N)]
    core_widths: list[int] = [0 if agent is None else agent[1].core_width for agent in agents]  # type: ignore[misc]
    requests = InferenceRequests(s.num_workers, s.num_groups, config.lanes_per_group, config.lane_size, core_widths, queue_of)
    requests.policy[:] = [config.policy_of_group(lane // config.lanes_per_group) for lane in range(requests.L)]
    policies = []
    for p, agent in enumerate(agents):
        its = spec.of_policy(queue_of[p])
        own = configs[queue_of[p]]
        extra = None if agent is None else agent[0].extra_fields(its)
        fields = trajectory_fields(its, core_widths[p], extra, behind=not own.uses_replay)
        if kept is not None:
            fields = {name: field for name, field in fields.items() if name in kept}
        lanes = config.total_lanes if spec.agents else int((requests.policy == p).sum())
        store = TrajectoryStore(fields, own.slots_for(lanes), s.rollout, config.lane_size)
        on_device = DeviceObservations(store, own.device) if own.one_transfer and p < P else None
        weights = WeightStore(1 if agent is None else weights_nbytes(agent[1]))
        acts = agent is not None
        policies.append(PolicyMemory(store, weights, on_device, learns=p < P, queue=queue_of[p], acts=acts))
    control = RunControl({"rollout": s.num_workers, "policy": P * s.num_policy_workers, "learner": P}, P)
    memory = RunMemory(policies, requests, control)
    memory.standings = standings
    if config.pbt.on:
        sizes = [_copy_nbytes(*agent) for agent in agents[:P] if agent is not None]
        memory.population = PopulationMemory(sizes, config.envs.reward_weights)
    return memory


def _copy_nbytes(algorithm: Any, model: nn.Module) -> int:
    """Most bytes that a copy of a policy takes: the model, the algorithm's state, up to three optimizer moments per parameter,
    and the numbers beside them. Memory that is never written takes no space."""
    from headrace.runs import state_tree

    state = len(state_tree.to_bytes({"model": model.state_dict(), "learner": algorithm.state_dict(model)}))
    moments = sum(3 * p.numel() * p.element_size() + 4096 for p in model.parameters())
    return state + moments + (1 << 16)
