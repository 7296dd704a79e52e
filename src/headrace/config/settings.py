"""One tree of typed, documented settings for a run.

The groups are named after the packages they steer: `envs`, `policy`, `sampling`, `learning`, `run`. The docstring under each
field is its help text and its documentation. A configuration is data: it is saved as JSON with the run and a run is resumed
from it. `headrace.config.validation` refuses impossible combinations.

Units: a *step* is one decision of one agent; a *frame* is one frame of the simulator (steps x frameskip).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headrace.config import machine


class ConfigError(ValueError):
    """A configuration that cannot work; the message says why and what to change."""


JsonObject = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=lambda words: json.loads(words[0]),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    ),
]
"""A dictionary, given on the command line as one JSON object."""


@dataclass
class EnvConfig:
    """The environment: which variant of it, and what is done to observations and rewards."""

    frameskip: int | None = None
    """Simulator frames per step. None: the family's own default (Atari and VizDoom 4, others 1)."""
    protocol: Literal["dqn", "ale-v5"] = "dqn"
    """Atari only. `dqn`: no sticky actions, up to 30 no-ops, a lost life ends the training episode, FIRE at the start.
    `ale-v5`: sticky actions 0.25, whole games, no no-ops."""
    atari_backend: Literal["native", "ale"] = "native"
    """Atari only. `native`: the batched core of this package; `ale`: one ale-py emulator per environment (the oracle)."""
    resize: tuple[int, int] | None = None
    """Height and width that images are resized to. None: the family's default (Atari 84x84, VizDoom 72x128)."""
    grayscale: bool | None = None
    """One grey channel instead of RGB. None: the family's default (Atari yes, VizDoom no)."""
    frame_stack: int | None = None
    """How many successive images one observation holds. None: the family's default (Atari 4, others 1)."""
    max_episode_steps: int | None = None
    """Truncate episodes after this many steps. None: the environment's own limit."""
    info_action_mask: bool = False
    """The environment says in `info["action_mask"]` which choices are allowed (as gym/Taxi-v4 does), not in its observation."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before they are learned from. Reported returns are never scaled."""
    reward_clip: float | None = None
    """Rewards are clipped to [-x, x] after scaling. Reported returns are never clipped."""
    kwargs: JsonObject = field(default_factory=dict)
    """Further keyword arguments for the environment's constructor, as a JSON object."""


@dataclass
class PolicyConfig:
    """The network: encoder for each observation, core, heads."""

    encoder: str = "auto"
    """`auto` (by observation: nature-cnn for images, mlp for vectors), `nature-cnn`, `impala-shallow`, `impala-resnet`,
    `vizdoom-simple`, `vizdoom-full`, `mlp`, or the name of a network registered by the user."""
    hidden: int = 512
    """Width of the layer after an image encoder."""
    mlp: tuple[int, ...] = (64, 64)
    """Layer widths for vector observations."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between encoder and heads."""
    core_size: int = 512
    """Width of the recurrent core."""
    activation: Literal["relu", "elu", "tanh"] = "relu"
    """Nonlinearity of encoders."""
    normalize_observations: bool = False
    """Running mean and standard deviation of vector observations, saved with the model. Images are always divided by 255."""
    normalize_returns: bool = False
    """The value head predicts returns in units of their running mean and standard deviation, saved with the model."""
    initial_std: float = 1.0
    """Standard deviation of continuous actions, before squashing, at the start."""


Placement = Literal["served", "inline", "serial"]


@dataclass
class SamplingConfig:
    """How experience is gathered: processes, environments, buffers."""

    placement: Placement = "served"
    """Where the policy acts. `served`: policy workers batch the requests of many rollout workers; `inline`: each rollout worker
    has a copy of the policy; `serial`: everything in one process, deterministic."""
    num_workers: int = 2
    """Rollout workers (processes that step environments)."""
    envs_per_worker: int = 16
    """Environments of each rollout worker, divided evenly over its groups."""
    num_groups: int = 2
    """Groups per rollout worker. 2 is double buffering: one group is stepped while the other's actions are computed."""
    num_policy_workers: int = 1
    """Policy workers (`served` only)."""
    rollout: int = 32
    """T: steps of one trajectory."""
    num_slots: int | None = None
    """Trajectory slots of all groups together: the only brake, so it bounds memory and policy lag.
    None: one per group being filled, plus one or two batches."""
    min_request_groups: int | None = None
    """A policy worker starts a batch at this many waiting groups... None: a third of all groups per policy worker, rounded up."""
    max_request_groups: int | None = None
    """...takes at most this many... None: no limit."""
    patience: float = 0.005
    """...and waits no longer than this for the minimum after the first request (seconds)."""
    one_transfer: Literal["auto", "on", "off"] = "auto"
    """`served` without replay: policy workers leave observations on the device for the learner, so that each crosses the bus
    once. `auto`: where the device is a GPU. It takes as much device memory as the observations of all slots."""
    weights_period: int = 1
    """Inline placement: how many steps of a group between two looks at the learner's weights."""
    step_timeout: float = 120.0
    """An environment step or reset that takes longer (seconds) counts as hung: its stack is shown, the worker replaced."""
    max_restarts: int = 10
    """How many processes may be replaced because of failures within `restart_window`; one more ends the run with its error."""
    restart_window: float = 3600.0
    """The time (seconds) in which failures count towards `max_restarts`: rare ones never end a long run."""
    pin_workers: bool = True
    """Rollout workers are bound to one core each, round robin, where there are at least as many workers as cores."""
    worker_niceness: int = 10
    """Niceness of rollout workers; the learner and policy workers go first."""


@dataclass
class ReplaySettings:
    """Prioritized replay: `apex-dqn` and `apex-dpg`. Defaults: Ape-X DQN (Horgan et al. 2018)."""

    capacity: int = 2_000_000
    """Soft capacity in transitions."""
    slack: float = 1.1
    """Memory for this many times the capacity; proportional eviction keeps old transitions longer and wants more."""
    minimum: int = 50_000
    """Transitions that must be there before learning starts, and again after the replay was lost."""
    copies: int = 1
    """How many times each transition is added: few environments then fill the memory as fast as many, with less to tell apart
    (the experiment on recency, figure 6 of the paper)."""
    n_step: int = 3
    """Steps of a return."""
    alpha: float = 0.6
    """Priority exponent; 0 is uniform replay."""
    beta: float = 0.4
    """Exponent of the importance weights."""
    evict_alpha: float | None = None
    """None: first in, first out. A number: evict proportionally to priority^evict_alpha (Ape-X DPG: -0.4)."""
    evict_period: int = 100
    """Updates between two evictions of what exceeds the capacity."""
    samples_per_insert: float | None = None
    """Hold the learner and the samplers to this many samples per inserted transition. None: each runs as fast as it can;
    serial placement then makes one update per trajectory."""
    codec: Literal["none", "lz4", "zstd"] = "none"
    """Compression of images in the replay."""
    prefetch: int = 16
    """Batches sampled ahead."""
    threads: int = 1
    """Threads that copy and decode one batch."""
    checkpoint_contents: bool = False
    """Save what the replay holds with the newest checkpoint, uncompressed (an Atari transition: 7 KB), so that a run that was
    stopped need not fill it again; `serial` placement then goes on bit for bit. Off: only its counters."""


@dataclass
class QConfig:
    """Q-learning: exploration, target network, and the parts of Rainbow."""

    epsilon: float = 0.4
    """Environment i of N explores with probability epsilon^(1 + epsilon_alpha i / (N - 1))."""
    epsilon_alpha: float = 7.0
    """See `epsilon`."""
    epsilon_levels: int | None = None
    """So many different epsilons, each for a block of environments, instead of one for each (figure 7 of the paper: 6)."""
    target_period: int = 2500
    """Updates between two copies to the target network."""
    double: bool = True
    """The online network chooses the action whose target value is bootstrapped from."""
    dueling: bool = True
    """Two streams, for the value and for advantages."""
    noisy: bool = False
    """Noisy layers in the heads; with `epsilon` 0 they are the only exploration."""
    atoms: int = 1
    """Above 1: the return's distribution on so many atoms (C51: 51)."""
    support: tuple[float, float] = (-10.0, 10.0)
    """First and last atom."""
    burn_in: int = 40
    """With a recurrent core (R2D2): rows of a sequence that only warm up the core state..."""
    sequence: int = 80
    """...and rows that are learned from. A sequence starts every `sampling.rollout` rows, with the core state stored there."""
    rescale: bool = False
    """With a recurrent core: values are learned as h(x) = sign(x)(sqrt(|x| + 1) - 1) + 0.001 x."""
    noise: float = 0.3
    """Ape-X DPG: standard deviation of the Gaussian noise on actions, in units of half their range."""
    actor_layers: tuple[int, ...] = (300, 200)
    """Ape-X DPG: widths of the actor's layers."""
    critic_layers: tuple[int, ...] = (400, 300)
    """Ape-X DPG: widths of the critic's layers; the action joins after the first."""


REPLAY_ALGORITHMS = ("apex-dqn", "apex-dpg")


@dataclass
class LearningConfig:
    """The algorithm and its optimizer. Defaults: Sample Factory's Table A.5 (APPO)."""

    algorithm: str = "appo"
    """`appo`: PPO clipping + V-trace; `ppo`: PPO clipping + GAE; `impala`: V-trace policy gradient; `a2c`: n-step policy
    gradient; `apex-dqn`, `apex-dpg`: prioritized replay; or one registered by `--import`."""
    preset: Literal["desk", "paper"] = "desk"
    """Where the defaults of `apex-dqn` and `apex-dpg` come from. `desk`: a few cores and an hour; `paper`: Horgan et al. 2018,
    for hundreds of actors and days."""
    experience: Literal["trajectories", "replay"] | None = None
    """Trajectories are consumed once, in order; a replay is sampled from. None: as the algorithm's name says."""
    total_steps: int = 10_000_000
    """The run ends after this many steps of experience."""
    batch_size: int = 2048
    """Steps per batch; a multiple of rollout x environments per group. With replay: transitions per update."""
    num_minibatches: int = 1
    """Minibatches per batch (cut between trajectories)."""
    num_epochs: int = 1
    """Passes over each batch."""
    gamma: float = 0.99
    """Discount per step."""
    returns: Literal["vtrace", "gae"] = "vtrace"
    """Value targets and advantages."""
    gae_lambda: float = 0.95
    """Lambda of GAE, and of V-trace's trace coefficients."""
    vtrace_rho: float = 1.0
    """Truncation of V-trace's importance weights (sets the fixed point)."""
    vtrace_c: float = 1.0
    """Truncation of V-trace's trace coefficients (sets the speed)."""
    ppo_clip: float | None = 0.1
    """c: the probability ratio is clipped to [1/(1+c), 1+c]. None: no clipping (plain policy gradient)."""
    value_clip: float | None = None
    """Value predictions are clipped to this distance from the behaviour policy's. None: off."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.003
    """Weight of the exploration term."""
    exploration: Literal["entropy", "symmetric-kl"] = "entropy"
    """Exploration term: entropy, or symmetric KL divergence from the uniform distribution (discrete parts)."""
    normalize_advantages: bool = True
    """Advantages to zero mean, unit standard deviation, per minibatch."""
    max_policy_lag: int = 1000
    """Samples chosen by a policy more than this many updates old are masked out of every statistic and loss."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer."""
    learning_rate: float = 1e-4
    """Learning rate at the start."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """`linear`: to zero at `total_steps`."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    optimizer_eps: float = 1e-6
    """Adam's or RMSProp's epsilon."""
    rmsprop_alpha: float = 0.99
    """RMSProp's decay rate."""
    rmsprop_centered: bool = False
    """RMSProp divides by the gradients' standard deviation instead of their root mean square."""
    max_grad_norm: float | None = 4.0
    """Gradients are scaled down to this norm. None: off."""
    precision: Literal["auto", "float32", "bf16"] = "float32"
    """`bf16`: autocast for the learner's and the policy workers' convolutions and matrix products; `auto`: bf16 where the
    processor or the GPU computes it natively."""
    compile: bool = False
    """torch.compile for the learner's network."""
    graphs: bool = True
    """On CUDA: acting and optimizer steps are recorded as CUDA graphs, which start all their kernels at once."""
    device: str = "auto"
    """`auto` (cuda where there is one), `cpu`, `cuda`, `cuda:1`..."""
    update_timeout: float = 600.0
    """A learner that is silent for longer (seconds; an update, a checkpoint) counts as hung: its stack is shown, and it starts
    again from the newest checkpoint."""
    num_threads: int | None = None
    """Threads of the learner on the CPU. None: half of the cores, since threads that lose their core to a rollout worker in the
    middle of a matrix product hold up the others (`serial`: all cores)."""


@dataclass
class RunConfig:
    """The run folder and what is written to it."""

    folder: str | None = None
    """Run folder. None: runs/<env>__<name>__<seed>. The same command goes on with the run it finds there."""
    name: str = "default"
    """Name of the experiment, part of the folder's name."""
    fresh: bool = False
    """Refuse to go on with a run already in the folder."""
    goal: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""
    max_minutes: float | None = None
    """Stop after this much wall time (of this process)."""
    log_interval: float = 5.0
    """Seconds between two lines of metrics."""
    checkpoint_interval: float = 120.0
    """Seconds between two checkpoints."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept (besides best and milestones)."""
    milestone_steps: int | None = None
    """Keep a checkpoint for good every so many steps. None: none."""
    eval_interval_steps: int | None = None
    """Evaluate every so many steps. None: never during training."""
    eval_episodes: int = 10
    """Episodes of each evaluation."""
    dashboard: bool = True
    """Live dashboard in a terminal; plain lines where output is not a terminal, or when off."""
    video: bool = True
    """Record an episode to the run folder when training ends (needs the `video` extra)."""
    track: bool = False
    """Also log to Weights & Biases (needs the `wandb` extra)."""
    wandb_project: str = "headrace"
    """Weights & Biases project."""


@dataclass
class Config:
    """A whole run."""

    env: str = "atari/pong"
    """family/name: gym/CartPole-v1, atari/pong, vizdoom/basic, dm_control/cartpole-swingup, or one registered by `--import`."""
    seed: int = 0
    """Seed of environments, policy initialisation, action sampling and minibatches."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first: they register environments and networks."""
    envs: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    q: QConfig = field(default_factory=QConfig)
    run: RunConfig = field(default_factory=RunConfig)

    # -- derived numbers, used everywhere instead of being computed again ----------------------------------------------

    @property
    def envs_per_group(self) -> int:
        """E: environments stepped together; the batch dimension of one slot."""
        return self.sampling.envs_per_worker // self.sampling.num_groups

    @property
    def total_groups(self) -> int:
        """Groups of all rollout workers."""
        return self.sampling.num_workers * self.sampling.num_groups

    @property
    def num_envs(self) -> int:
        """Environments of the whole run."""
        return self.total_groups * self.envs_per_group

    @property
    def min_request_groups(self) -> int:
        """Waiting groups at which a policy worker starts a batch."""
        s = self.sampling
        third = -(-self.total_groups // (3 * s.num_policy_workers))
        return s.min_request_groups or min(third, s.max_request_groups or third)

    @property
    def uses_replay(self) -> bool:
        """Whether experience goes through the replay instead of being consumed once."""
        by_name = "replay" if self.learning.algorithm in REPLAY_ALGORITHMS else "trajectories"
        return (self.learning.experience or by_name) == "replay"

    @property
    def slots_per_batch(self) -> int:
        """Slots (trajectories of whole groups) that make one batch; with replay, that are taken in at once."""
        if self.uses_replay:
            return 1
        return self.learning.batch_size // (self.sampling.rollout * self.envs_per_group)

    @property
    def num_slots(self) -> int:
        """Slots of the slab: one per group being filled, plus what queues for the learner: a batch, or two where many groups
        finish at the same time. More would only let experience get older."""
        spare = max(self.slots_per_batch, min(self.total_groups, 2 * self.slots_per_batch))
        return self.sampling.num_slots or self.total_groups + spare

    @property
    def run_folder(self) -> Path:
        """Where the run lives."""
        if self.run.folder:
            return Path(self.run.folder)
        return Path("runs") / f"{self.env.replace('/', '-')}__{self.run.name}__{self.seed}"

    @property
    def device(self) -> str:
        """The learner's and policy workers' device, `auto` resolved."""
        if self.learning.device != "auto":
            return self.learning.device
        return machine.default_device()

    @property
    def cuda_graphs(self) -> bool:
        """Whether work on the device is recorded."""
        return self.learning.graphs and self.device != "cpu"

    @property
    def one_transfer(self) -> bool:
        """Whether policy workers leave observations on the device for the learner."""
        if self.sampling.placement != "served" or self.uses_replay or self.sampling.one_transfer == "off":
            return False
        return self.sampling.one_transfer == "on" or self.device != "cpu"

    @property
    def precision(self) -> Literal["float32", "bf16"]:
        """The network's precision, `auto` resolved."""
        if self.learning.precision != "auto":
            return self.learning.precision
        return "bf16" if machine.native_bf16(self.device) else "float32"

    @property
    def learner_threads(self) -> int:
        """The learner's threads on the CPU."""
        cores = len(os.sched_getaffinity(0))
        return self.learning.num_threads or (cores if self.sampling.placement == "serial" else max(1, cores // 2))
