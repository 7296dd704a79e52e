"""One tree of typed, documented settings for a run.

The groups are named after the packages that they steer, and each has a file of that name beside this one (`replay` and `q` are
in `learning`, `pbt` and `matches` in `population`). The docstring under each field is its help text and its documentation; its
type has its range (`config.ranges`). A configuration is data: saved as JSON with the run, and a run is resumed from it
(`config.io`). `config.validation` refuses impossible combinations.

Units: a *step* is one decision of one agent; a *frame* is one frame of the simulator (steps x frameskip).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from headrace.config import hardware
from headrace.config.cluster import ClusterConfig
from headrace.config.envs import SEPARATOR, EnvConfig, tasks_of
from headrace.config.learning import LearningConfig, QConfig, ReplaySettings
from headrace.config.policy import PolicyConfig
from headrace.config.population import MatchesConfig, PbtConfig, PopulationConfig
from headrace.config.ranges import Range
from headrace.config.run import RunConfig
from headrace.config.sampling import SamplingConfig

Choices = tuple[str, str, str, Mapping[str, Any]]
LONGEST_NAME = 120  # characters of several tasks' ids in a file's name, of which there may be 255


@dataclass
class Config:
    """All settings of a run."""

    env: str = "atari/pong"
    """Environment, as family/name: gym/CartPole-v1, atari/pong, vizdoom/basic, dm_control/cartpole-swingup, or an id that an
    imported file registers. Several ids separated by commas are the tasks of one policy: atari/pong,atari/boxing."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of the environments, the initial weights, the sampling of actions and the order of minibatches."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files or modules to import first. They may register environments, networks, algorithms, matchmakers, opponents."""
    envs: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    q: QConfig = field(default_factory=QConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    matches: MatchesConfig = field(default_factory=MatchesConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    run: RunConfig = field(default_factory=RunConfig)
    defaults = cast("Mapping[str, Any] | None", None)  # no annotation: it is no setting
    """In a configuration from `headrace.make_config`: the settings that the caller did not give, by dotted names, with their
    values. A resumed run uses its saved values for these. None: all settings count as given."""
    made_for = cast("Choices | None", None)
    """What `defaults` were made for; see `choices`."""

    @property
    def choices(self) -> Choices:
        """What other settings have their defaults from: environment, algorithm, preset, settings of single policies."""
        return self.env, self.learning.algorithm, self.learning.preset, self.population.overrides

    # -- derived numbers, used everywhere instead of being computed again ----------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """The environments that the policy is trained on; one, unless `env` names several."""
        return tasks_of(self.env)

    def task_of_group(self, group: int) -> int | None:
        """The number of the task that all environments of this group play, if tasks have equal shares of compute; it is the same
        for all groups of a worker. None: the group plays all tasks in equal shares."""
        K = len(self.tasks)
        if K == 1 or self.envs.task_share == "samples":
            return None
        # Policies repeat every `workers_per_round` workers and tasks every K, so their pairs repeat every `rounds` workers.
        # From there on tasks are shifted by one, so that every policy gets every task.
        worker, rounds = self.turn_of_group(group) // self.sampling.num_groups, math.lcm(self.workers_per_round, K)
        return (worker + worker // rounds) % K

    def policy_of_group(self, group: int) -> int:
        """The policy that acts for this group in an environment of one agent."""
        return self.turn_of_group(group) % self.population.size

    def turn_of_group(self, group: int) -> int:
        """The group's number when groups are sorted by sampling node; without nodes, its own number. Policies and tasks are
        assigned in turn by this number, so each gets its share of every node's groups. `group` counts the groups of all nodes'
        workers."""
        worker, g = divmod(group, self.sampling.num_groups)
        place, node = divmod(worker, self.cluster.most_nodes)
        return (node * (self.sampling.num_workers // self.cluster.most_nodes) + place) * self.sampling.num_groups + g

    @property
    def workers_per_round(self) -> int:
        """Number of rollout workers after which the policies of the groups repeat: policy g modulo P acts for group g."""
        return self.population.size // math.gcd(self.population.size, self.sampling.num_groups)

    @property
    def envs_per_group(self) -> int:
        """E: environments stepped together."""
        return self.sampling.envs_per_worker // self.sampling.num_groups

    @property
    def total_groups(self) -> int:
        return self.sampling.num_workers * self.sampling.num_groups

    @property
    def lanes_per_group(self) -> int:
        """Lanes of a group: one of all its environments, or one for every agent of every match."""
        return self.envs_per_group * self.envs.num_agents if self.envs.num_agents else 1

    @property
    def lane_size(self) -> int:
        """C: agents of one lane; the batch dimension of one slot."""
        return 1 if self.envs.num_agents else self.envs_per_group

    @property
    def total_lanes(self) -> int:
        return self.total_groups * self.lanes_per_group

    @property
    def num_envs(self) -> int:
        return self.total_groups * self.envs_per_group

    @property
    def min_request_groups(self) -> int:
        """Waiting groups at which a policy worker starts a batch; in a multi-agent environment, waiting agents."""
        s = self.sampling
        asking = self.total_groups * (self.envs_per_group if self.envs.num_agents else 1)  # of every match, at least one agent
        third = -(-asking // (3 * self.population.size * s.num_policy_workers))
        return s.min_request_groups or min(third, s.max_request_groups or third)

    @property
    def in_processes(self) -> bool:
        """Whether rollout workers and learners are processes of their own."""
        return self.sampling.placement in ("served", "inline")

    @property
    def uses_replay(self) -> bool:
        """Whether experience goes through the replay instead of being consumed once."""
        return self.learning.experience == "replay"

    @property
    def replay_shards(self) -> int | None:
        """K: parts of the replay, one on each sampling node; None: it is in the learner's memory."""
        sharded = self.cluster.nodes is not None and self.uses_replay and self.replay.shards == "node"
        return self.cluster.most_nodes if sharded else None

    @property
    def slots_per_batch(self) -> int:
        """Slots (trajectories of whole groups) that make one batch; with replay, that are added at once."""
        if self.uses_replay:
            return 1
        return self.learning.batch_size // (self.sampling.rollout * self.lane_size)

    @property
    def minibatch_units(self) -> int:
        """The parts of a batch that minibatches share out (`headrace.learning.minibatches`): its steps or its trajectories."""
        return self.learning.batch_size // self.minibatch_unit

    @property
    def minibatch_unit(self) -> int:
        """Steps of such a part: 1 where the loss needs no neighbouring rows, which is with GAE and without a recurrent core; else
        a trajectory's."""
        return 1 if self.learning.returns == "gae" and self.policy.core == "none" else self.sampling.rollout

    @property
    def num_slots(self) -> int:
        """Trajectory slots of a policy that acts for `most_lanes`."""
        return self.slots_for(self.most_lanes)

    @property
    def most_lanes(self) -> int:
        """Most lanes that one policy may act for at a time: its share of the groups, or all lanes where every episode is matched
        anew."""
        return self.total_lanes if self.envs.num_agents else -(-self.total_groups // self.population.size)

    def slots_for(self, lanes: int) -> int:
        """Trajectory slots of a policy that acts for this many lanes: one per lane, which is being filled, plus those that wait
        for the learner: one batch, or two where many lanes finish at the same time. More would only let experience get older."""
        return self.sampling.num_slots or lanes + max(self.slots_per_batch, min(lanes, 2 * self.slots_per_batch))

    @property
    def run_folder(self) -> Path:
        if self.run.folder:
            return Path(self.run.folder)
        return Path("runs") / f"{self.env_name}__{self.run.name}__{self.seed}"

    @property
    def env_name(self) -> str:
        """The environment as part of a file's name."""
        name, n = self.env.replace("/", "-").replace(SEPARATOR, "+"), len(self.tasks)
        return name if n == 1 or len(name) <= LONGEST_NAME else f"{n}-tasks-{zlib.crc32(name.encode()):08x}"

    def policy_folder(self, policy: int) -> Path:
        """The folder of one policy's checkpoints and metrics: the run folder itself, where there is only one policy."""
        return self.run_folder if self.population.size == 1 else self.run_folder / f"policy-{policy}"

    @property
    def device(self) -> str:
        """The learner's and policy workers' device, `auto` resolved. Each of several ranks on a machine has a GPU of its own."""
        device = hardware.default_device() if self.learning.device == "auto" else self.learning.device
        here = hardware.rank()
        return f"cuda:{here.local}" if device == "cuda" and here.local_size > 1 else device

    @property
    def cuda_graphs(self) -> bool:
        """Whether acting and optimizer steps are recorded as CUDA graphs."""
        return self.learning.graphs and self.device != "cpu"

    @property
    def one_transfer(self) -> bool:
        """Whether policy workers keep observations on the device for the learner."""
        if self.sampling.placement != "served" or self.uses_replay or self.sampling.one_transfer == "off":
            return False
        return self.sampling.one_transfer == "on" or self.device != "cpu"

    @property
    def precision(self) -> Literal["float32", "bf16"]:
        """The network's precision, `auto` resolved."""
        if self.learning.precision != "auto":
            return self.learning.precision
        return "bf16" if hardware.native_bf16(self.device) else "float32"

    @property
    def learner_threads(self) -> int:
        """CPU threads of a learner. All learners together have half of the cores where rollout workers need the others: a thread
        that loses its core to a worker in the middle of a matrix product holds up all other threads."""
        cores = hardware.cores()
        alone = self.sampling.placement in ("serial", "device")
        return self.learning.num_threads or (cores if alone else max(1, cores // 2 // self.population.size))

    @property
    def most_learner_threads(self) -> int:
        """CPU threads that a learner without a fixed number may try: its share of all cores."""
        return self.learning.num_threads or max(1, hardware.cores() // self.population.size)

    @property
    def update_period(self) -> int:
        """`device` placement: steps between two updates. All environments are divided into as many parts as batches are needed to
        hold T steps of each; the parts' trajectories of T steps end one after the other, this many steps apart."""
        return self.sampling.rollout // self.parts

    @property
    def parts(self) -> int:
        """G: the parts into which the `device` placement divides the environments; see `update_period`. With replay, one."""
        return 1 if self.uses_replay else max(1, self.sampling.rollout * self.num_envs // self.learning.batch_size)
