"""Placements: where the policy acts. What `train` and the learner know of processes, devices and loops is this one object.

start(learn)                begin to sample, and run `learn(placement, p)` for every policy p wherever its learner lives
batches(p, reported_envs)   the experience that policy p learns from            (called by `learn`)
publish(p, model, version)  new weights for whoever acts with policy p          (called by `learn`)
messages(timeout)           what the learners and the placement report          (called by `train`)
stop()                      end the run, with a last checkpoint; yields the last messages
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.config import Config, policy_configs
from headrace.config.errors import RANK_LOST, UserError
from headrace.envs.contract import EnvSpec
from headrace.sampling.run_memory import Agent, MakeAgent, RunMemory, make_run_memory
from headrace.sampling.seating import Crew, Frozen
from headrace.shm.run_control import PhaseClock

if TYPE_CHECKING:
    from torch import nn

    from headrace.accelerator.weights import Publisher


class RunFailed(UserError, RuntimeError):
    """A part of the run failed for good; the message holds its error."""


class LearnerLost(RunFailed):
    """One of several learners of a policy was killed; the run may be started again."""

    exit_code = RANK_LOST


@dataclass
class Message:
    """One report of a learner, or of the placement itself."""

    kind: Literal["message", "start", "curve", "metrics", "saved", "done", "failed", "population", "standings", "eval"]
    """message: a text for people. start: the global step at which training goes on. curve: points of the learning curve, see
    `TrainingLog.curve`. metrics: {name: value}. saved: the global step of a new checkpoint. done: {reason, global_step,
    mean_return}. failed: the traceback that ended a process. population: what became of the policy in population-based
    training (`headrace.runs.lineage`). standings: who has won how often against whom (`headrace.runs.standings`). eval: the
    metrics of an evaluation beside training."""
    content: Any
    policy: int = 0


Copy = Callable[[], bytes]
"""Makes a copy of a policy and of what its learner remembers."""
Learn = Callable[["Placement", int], Iterator[Message | None]]
"""The training loop of one policy; a module's function, since processes are given it by name."""


class Placement(ABC):
    """See the module. `make_agent` makes an algorithm and its model, the same in every process.

    Raises `MemoryError` where there is too little memory, `ConfigError` for a replay that cannot hold these observations.
    """

    def __init__(self, config: Config, spec: EnvSpec, make_agent: MakeAgent, crew: Crew | None = None):
        self.config, self.spec, self.make_agent, self.crew = config, spec, make_agent, crew
        self.savers: dict[int, Any] = {}
        """Of the policies whose learners run in this process and have not ended, what saves them (`headrace.checkpointing`)."""
        self.moment = 0
        """How often all policies were saved together."""
        self._copies: dict[int, Copy] = {}
        self._publishers: dict[int, Publisher] = {}
        self.restarts = 0
        """Processes replaced so far."""
        self.configs = policy_configs(config)
        """The settings of each policy."""
        self.memory = self.allocate([make_agent(own, spec.of_policy(p)) for p, own in enumerate(self.configs)])

    def make_member(self, member: int) -> Agent:
        """The algorithm and the model of a policy that learns, or of a member of the crew, which is no scripted one."""
        if member < len(self.configs):
            return self.make_agent(self.configs[member], self.spec.of_policy(member))
        assert self.crew is not None
        return self.make_agent(self.crew.frozen[member - len(self.configs)].config, self.spec)

    def allocate(self, agents: list[Agent]) -> RunMemory:
        """The memory that the run's parts share."""
        from headrace.accelerator.weights import FlatWeights
        from headrace.experience.replay.layout import make_replay

        frozen = self.crew.frozen if self.crew is not None else []
        frozen_agents = [self._agent_of(member, agents) for member in frozen]
        memory = make_run_memory(self.configs, self.spec, [*agents, *frozen_agents], self.crew)
        for member, agent, policy in zip(frozen, frozen_agents, memory.policies[len(agents) :], strict=True):
            if member.weights is not None:
                assert agent is not None
                _, model = agent
                model.load_state_dict(member.weights)
                FlatWeights(model).publish(policy.weights, 1)
                member.weights = None  # every process is given the crew, and needs no second copy of them
        if self.config.uses_replay:
            for config, policy, (_, model) in zip(self.configs, memory.policies, agents, strict=True):
                policy.replay = make_replay(config, self.spec, model.core_width)  # type: ignore[arg-type]
        return memory

    def _agent_of(self, member: Frozen, agents: list[Agent]) -> Agent | None:
        """The algorithm and the model of a member that does not learn; None for a scripted opponent. `agents`: of the policies
        that learn. A past version is like its policy, so it is described by the same ones."""
        if member.config is None:
            return None
        same = (agent for config, agent in zip(self.configs, agents, strict=True) if config is member.config)
        return next(same, None) or self.make_agent(member.config, self.spec)

    # -- for `train` ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, learn: Learn) -> None:
        """Begin."""

    @abstractmethod
    def messages(self, timeout: float) -> Iterator[Message]:
        """What is reported within `timeout` seconds. Raises `RunFailed` when the run cannot go on."""

    @abstractmethod
    def stop(self) -> Iterator[Message]:
        """End the run: every learner writes its last checkpoint. Yields the last messages; nothing is alive afterwards."""

    @abstractmethod
    def kill(self) -> None:
        """End everything at once, without a checkpoint."""

    # -- for the learner --------------------------------------------------------------------------------------------------

    @abstractmethod
    def batches(self, p: int, reported_envs: range) -> Any:
        """The experience that policy p learns from. `reported_envs`: the environments whose episodes are reported."""

    def publish(self, p: int, model: nn.Module, version: int) -> None:
        """Give the model's weights, under this version, to whoever acts with policy p. The first call lets sampling start.
        Later ones do not wait for a GPU's weights: a thread does."""
        from headrace.accelerator.weights import Publisher

        first = p not in self._publishers
        if first:
            self._publishers[p] = Publisher(model, self.memory.policies[p].weights, self.configs[p].device)
        self._publishers[p].publish(version)
        if first:
            self._publishers[p].wait()
            self.memory.control.set_ready(p)

    # -- copies of policies, for population-based training -------------------------------------------------------------------

    def offer_copy(self, p: int, copy: Copy) -> None:
        """Policy p, whose learner runs in this process, can be copied."""
        self._copies[p] = copy

    def want_copy(self, p: int, asker: int) -> int:
        """Ask for a copy of policy p, for the policy `asker`; returns what `fetch_copy` wants to be given."""
        assert self.memory.population is not None
        return 0 if p in self._copies else self.memory.population.want(p, asker)

    def fetch_copy(self, p: int, asked: int) -> bytes | None:
        """The copy of policy p that was asked for, made at once where its learner is in this process; None: not yet."""
        assert self.memory.population is not None
        return self._copies[p]() if p in self._copies else self.memory.population.read(p, asked)

    def serve_copies(self, p: int, last: bool = False) -> None:
        """Give a copy of policy p, whose learner runs in this process, to those in other processes who asked for it. `last`: it
        learns no more."""
        assert self.memory.population is not None
        self.memory.population.serve(p, self._copies[p], last)

    def version(self, p: int) -> int:
        """The newest version published of policy p; 0 before the first."""
        return self.memory.policies[p].weights.version

    @property
    def deterministic(self) -> bool:
        """Whether a run goes on exactly where it was: `get_state` tells everything."""
        return False

    @property
    def stopped(self) -> bool:
        """Whether the run is ending."""
        return self.memory.control.stopped

    @property
    def hurried(self) -> bool:
        """Whether an update that takes long is to be cut short, since the end of the run was asked for."""
        return self.memory.control.hurried

    def clock(self, p: int) -> PhaseClock:
        """Adds up where the learner of policy p spends its time."""
        return self.memory.control.clock("learner", p)

    def get_state(self) -> dict[str, Any] | None:
        """What sampling needs to go on exactly where it is; None where it cannot (several processes)."""
        return None

    def set_state(self, state: dict[str, Any]) -> str | None:
        """Go on from `get_state`. Returns a sentence for the user where that is not wholly possible."""
        return None
