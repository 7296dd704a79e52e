"""Placements: where the policy acts. This interface hides processes, devices and loops from `train` and from the learner.

start(learn)                begin to sample, and run `learn(placement, p)` for every policy p wherever its learner lives
batches(p, reported_envs)   the experience that policy p learns from            (called by `learn`)
publish(p, model, version)  new weights for the actors of policy p              (called by `learn`)
messages(timeout)           what the learners and the placement report          (called by `train`)
stop()                      end the run, with a last checkpoint; yields the last messages
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Self

from headrace.config import Config, override, policy_configs
from headrace.config.errors import RANK_LOST, UserError
from headrace.envs.core.contract import EnvSpec
from headrace.runs.messages import Message
from headrace.sampling.match_protocols import Members
from headrace.sampling.run_memory import Agent, MakeAgent, RunMemory, make_run_memory

if TYPE_CHECKING:
    from torch import nn

    from headrace.accelerator.weights import Publisher
    from headrace.experience.replay.buffer import LearnerReplay


class RunFailed(UserError, RuntimeError):
    """A part of the run failed for good; the message holds its error."""


class LearnerLost(RunFailed):
    """One of several learners of a policy was killed; the run may be started again."""

    exit_code = RANK_LOST


Learn = Callable[["Placement", int], Iterator[Message | None]]
"""The training loop of one policy; a function of a module, since it is pickled by name."""


class Placement(ABC):
    """See the module. `make_agent` makes an algorithm and its model, the same in every process.

    Raises `MemoryError` where there is too little memory, `ConfigError` for a replay that cannot hold these observations,
    `AgentFault` for a network, a core or an algorithm of the user's own that cannot act.
    """

    trajectory_fields: Collection[str] | None = None
    """Names of the fields that trajectories have here; None: all that acting and learning know of."""
    deterministic = False
    """Whether a resumed run goes on exactly: `get_state` holds the whole state, and all policies are saved at the same moment."""

    def __init__(self, config: Config, spec: EnvSpec, make_agent: MakeAgent, members: Members | None = None):
        self.config, self.spec, self.make_agent, self.members = config, spec, make_agent, members
        self._static = [] if members is None else members.static
        self.rollout_workers = range(config.sampling.num_workers)
        """The rollout workers that this placement starts, by their numbers among all of the run's."""
        self.role_names: dict[str, str] = {}
        """What log lines call the processes of a role where something else has taken their place."""
        self.reports_episodes = False  # whether learners report every episode
        self.savers: dict[int, Any] = {}
        """By policy whose learner runs in this process and has not ended: the object that saves it (`headrace.checkpointing`)."""
        self.moment = 0  # how often all policies were saved together
        self._publishers: dict[int, Publisher] = {}
        self.restarts = 0  # processes replaced so far
        self.waited = 0.0  # until when the learners had to wait for those of other machines (perf_counter)
        self.configs = policy_configs(config)  # the settings of each policy
        from headrace.sampling.trial import try_agent  # it imports torch

        agents = [make_agent(own, spec.of_policy(p)) for p, own in enumerate(self.configs)]
        for p, own in enumerate(self.configs):
            try_agent(*agents[p], own, spec.of_policy(p))
        self.memory = self.allocate(agents)

    def make_member(self, member: int, device: str) -> Agent:
        """The algorithm and the model of a member, which acts on `device`: precision `auto` is that of this device, and not of
        the learner's. Not for scripted opponents."""
        learns = member < len(self.configs)
        config = self.configs[member] if learns else self._static[member - len(self.configs)].config
        assert config is not None
        if device == "cpu":
            config = override(config, **{"learning.device": device})
        return self.make_agent(config, self.spec.of_policy(member) if learns else self.spec)

    def allocate(self, agents: list[Agent]) -> RunMemory:
        """The memory that the run's parts share."""
        from headrace.accelerator.weights import FlatWeights

        past = [] if self.members is None else [agent for agent in agents for _ in range(self.members.num_past)]
        opponents = self._static[len(past) :]
        theirs = [None if member.config is None else self.make_agent(member.config, self.spec) for member in opponents]
        memory = make_run_memory(self.configs, self.spec, [*agents, *past, *theirs], self.members, self.trajectory_fields)
        for member, agent, policy in zip(opponents, theirs, memory.policies[len(agents) + len(past) :], strict=True):
            if agent is not None:
                _, model = agent
                model.load_state_dict(member.weights)  # type: ignore[arg-type]
                FlatWeights(model).publish(policy.weights, 1)
                member.weights = None  # `members` is pickled into every process, which needs no second copy
        if self.config.uses_replay:
            for config, policy, (_, model) in zip(self.configs, memory.policies, agents, strict=True):
                policy.replay = self.make_replay(config, model.core_width)  # type: ignore[arg-type]
        return memory

    def make_replay(self, config: Config, core_width: int) -> LearnerReplay:
        """The replay of one policy, whose recurrent state has `core_width` numbers."""
        from headrace.experience.replay.layout import make_replay

        return make_replay(config, self.spec, core_width)

    # -- for `train` ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()  # also where something fails before `start`: others may have been started for it already

    @abstractmethod
    def start(self, learn: Learn) -> None:
        """Begin to sample, and run `learn` for every policy."""

    @abstractmethod
    def messages(self, timeout: float) -> Iterator[Message]:
        """Yield what learners and placement report within `timeout` seconds. Raises `RunFailed` when the run cannot go on."""

    @abstractmethod
    def stop(self) -> Iterator[Message]:
        """End the run: every learner writes its last checkpoint. Yields the last messages; nothing is alive afterwards."""

    @abstractmethod
    def kill(self) -> None:
        """End everything at once, without a checkpoint."""

    # -- for the learner --------------------------------------------------------------------------------------------------

    def batches(self, p: int, reported_envs: range) -> Any:
        """The experience that policy p learns from. `reported_envs`: the environments whose episodes are reported."""
        config, memory, collect = self.configs[p], self.memory.policies[p], self.collector(p)
        if memory.replay is None:
            from headrace.experience.on_policy import OnPolicyExperience

            slots, on_device = config.slots_per_batch, memory.device_observations
            return OnPolicyExperience(memory.trajectories, slots, config.device, collect, on_device, reported_envs)
        from headrace.experience.replay.experience import ReplayExperience

        envs = self._envs_of(p) if len(self.configs) > 1 else None
        return ReplayExperience(config, memory.trajectories, self.memory.control, memory.replay, collect, reported_envs, envs)

    def _envs_of(self, p: int) -> list[int]:
        """The numbers of the environments in which policy p acts, in environments of one agent."""
        from headrace.sampling.actor import environment_numbers

        requests = self.memory.requests
        return environment_numbers(requests.policy, requests.C)[requests.policy == p].ravel().tolist()

    def collector(self, p: int) -> Callable[[int], None] | None:
        """A function that steps the environments until n trajectories of policy p are finished; None: workers step them."""
        return None

    def publish(self, p: int, model: nn.Module, version: int) -> None:
        """Give the model's weights, under this version, to the actors of policy p. The first call lets sampling start. With
        a GPU, later calls return at once: a thread copies the weights."""
        from headrace.accelerator.weights import Publisher

        first = p not in self._publishers
        if first:
            self._publishers[p] = Publisher(model, self.memory.policies[p].weights, self.configs[p].device)
        self._publishers[p].publish(version)
        if first:
            self._publishers[p].wait()
            self.memory.control.set_ready(p)

    def version(self, p: int) -> int:
        """The newest version published of policy p; 0 before the first."""
        return self.memory.policies[p].weights.version

    def get_state(self) -> dict[str, Any] | None:
        """The state of sampling, for an exact resume; None with several processes."""
        return None

    def set_state(self, state: dict[str, Any]) -> str | None:
        """Go on from `get_state`. Returns a message for the user if not all of it can be restored."""
        return None
