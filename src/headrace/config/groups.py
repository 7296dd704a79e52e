"""Settings of what acts and of the run: environment, policy, sampling, run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from headrace.config.ranges import Count, Length, Positive, Range, Seconds, Timeout, Width

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

Pixels = Annotated[int, Range(1, 4096)]


@dataclass
class EnvConfig:
    """The environment: which variant of it, and what is done to observations and rewards."""

    frameskip: Annotated[int, Range(1, 10_000)] | None = None
    """Number of simulator frames per step. None: the default of the environment's family (Atari, VizDoom and DeepMind Lab 4,
    others 1)."""
    protocol: Literal["dqn", "ale-v5"] = "dqn"
    """Atari only: the rules of an episode. `dqn`: no sticky actions, 1 to 30 no-ops and then FIRE at the start, the brighter of
    the last two frames, and a training episode ends when a life is lost. `ale-v5`: as the `ALE/*-v5` ids of Gymnasium: sticky
    actions with probability 0.25, no no-ops, no FIRE, the last frame only, and episodes are whole games."""
    atari_backend: Literal["native", "ale"] = "native"
    """Atari only: the emulator. `native`: this package's own, which steps whole batches. `ale`: one ale-py emulator per
    environment, as a reference; it cannot do the no-ops of the protocol `dqn`."""
    random_start: Annotated[int, Range(0, 1_000_000)] = 0
    """Atari only: each training environment plays 0 to this many random steps before the run begins, so many as are drawn for it,
    so that the environments are not at the same moment of the game."""
    start_states: str | None = None
    """Atari only: file of states (`headrace.envs.atari_starts.save_states`) in which training episodes begin, one drawn for each.
    Reported returns count from there. None: episodes begin as the protocol says."""
    resize: tuple[Pixels, Pixels] | None = None
    """Height and width (pixels) to which images are resized. None: the default of the environment's family (Atari 84x84, VizDoom
    72x128, DeepMind Lab 72x96, others as they are)."""
    grayscale: bool | None = None
    """Convert images from RGB to one grey channel. None: the default of the environment's family (Atari yes, others no)."""
    frame_stack: Annotated[int, Range(1, 1024)] | None = None
    """Number of successive images in one observation. None: the default of the environment's family (Atari 4, others 1)."""
    max_episode_steps: Annotated[int, Range(1, 2**31 - 1)] | None = None
    """Episodes are truncated after this many steps. In `gym` and `torch` this replaces the environment's own limit; elsewhere a
    lower limit of the environment stays. None: the environment's own limit."""
    info_action_mask: bool = False
    """Read the mask of allowed actions from `info["action_mask"]`, where gym/Taxi-v4 has it, instead of from the observation."""
    num_agents: Annotated[int, Range(1, 1024)] | None = None
    """Number of agents of one match. A multi-agent environment sets it, so it need not be given. None: an environment of one
    agent."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before they are learned from. Reported returns are never scaled."""
    reward_clip: Positive | None = None
    """Rewards are clipped to [-x, x] after scaling, where x is this value. None: no clipping. Reported returns are never
    clipped."""
    reward_soft_clip: Positive | None = None
    """Rewards are squashed to x tanh(r / x) after scaling, where x is this value, and negative ones are multiplied by 0.3 then:
    the optimistic asymmetric clipping of DMLab-30. None: they are not. Reported returns never are."""
    reward_weights: JsonObject = field(default_factory=dict)
    """Weights of the parts of a shaped reward by name, as one JSON object. The environment's method `set_reward_weights` is
    called with them before the first reset, and with others when population-based training mutates them."""
    kwargs: JsonObject = field(default_factory=dict)
    """Further keyword arguments of the environment's constructor, as one JSON object."""
    task_share: Literal["compute", "samples"] = "compute"
    """Several tasks (`--env atari/pong,atari/boxing`): what they have equal shares of. `compute`: each task has its own rollout
    workers, as many as every other, and is stepped as fast as it goes. `samples`: each group of environments has as many of each
    task, so that all tasks are stepped equally often and the fast ones wait for the slow ones."""
    task_options: JsonObject = field(default_factory=dict)
    """Several tasks: settings of this group that single tasks have of their own, as one JSON object by task, such as
    {"vizdoom/basic": {"reward_scale": 0.01}}. It starts with the tasks' defaults where those differ."""
    remote: str | None = None
    """Addresses of environment servers, separated by commas. Group g of the run (worker x `num_groups` + group) uses entry g
    modulo their number. An entry is `HOST:PORT`, where `headrace serve-envs` listens; `listen:HOST:PORT`, where this run
    listens for simulators that dial in; or `local`, the worker's own process. None: all environments are local."""
    remote_token_file: str | None = None
    """File with the token that environment servers and this run prove themselves with. None: the environment variable
    HEADRACE_TOKEN, if it is set."""
    remote_ca: str | None = None
    """File with the certificate that signed those of the environment servers; connections then use TLS. None: no TLS."""
    remote_tls_cert: str | None = None
    """File with this run's own TLS certificate, for simulators that dial in at a `listen:` address. None: no TLS there."""
    remote_tls_key: str | None = None
    """File with the private key of `remote_tls_cert`."""
    remote_timeout: Timeout = 120.0
    """Longest time (seconds) that an environment server may take for a step or a reset. Then its connection is closed and made
    anew."""
    remote_compression: bool = False
    """Compress messages to environment servers (gzip). A server has a switch of its own for what it sends."""


@dataclass
class PolicyConfig:
    """The network: encoder for each observation, core, heads."""

    encoder: str = "auto"
    """Network that encodes an observation: `nature-cnn`, `impala-shallow`, `impala-resnet`, `vizdoom-simple`, `vizdoom-full`,
    `mlp`, or a name that an imported file registers. `auto`: `nature-cnn` for images, `mlp` for vectors. `nature-conv`,
    `shallow-conv`: the convolutions of `nature-cnn` and of `impala-shallow` alone, for the heads of Q-learning."""
    hidden: Width = 512
    """Width of the layer that follows an image encoder."""
    mlp: tuple[Width, ...] = (64, 64)
    """Widths of the layers that encode vector observations."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Recurrent core between the encoder and the heads."""
    core_size: Width = 512
    """Width of the recurrent core."""
    activation: Literal["relu", "elu", "tanh"] = "relu"
    """Activation function of the encoders."""
    normalize_observations: bool = False
    """Normalise vector observations by their running mean and standard deviation, which are saved with the model. Images are
    always divided by 255."""
    normalize_returns: bool = False
    """The value head predicts returns that are normalised by their running mean and standard deviation, which are saved with the
    model."""
    separate_critic: bool = False
    """The critic has a network of its own, of the same form as the actor's, instead of a head on the actor's. Not with a
    recurrent core."""
    initial_std: Positive = 1.0
    """Standard deviation of continuous actions at the start of training, before they are squashed into their bounds."""


Placement = Literal["served", "inline", "serial", "device"]


@dataclass
class SamplingConfig:
    """How experience is gathered: processes, environments, buffers."""

    placement: Placement = "served"
    """Where the policy acts. `served`: policy workers compute the actions, in batches, for many rollout workers. `inline`: each
    rollout worker has its own copy of the policy. `serial`: everything runs in one process and is deterministic.
    `device`: environments, policy and learner share the accelerator, or all cores of the processor, in one process."""
    num_workers: Annotated[int, Range(1, 4096)] = 2
    """Number of rollout workers, the processes that step environments."""
    envs_per_worker: Annotated[int, Range(1, 65_536)] = 16
    """Number of environments of each rollout worker. It must be a multiple of `num_groups`."""
    num_groups: Annotated[int, Range(1, 32)] = 2  # one bit each in the worker's wake-up word
    """Number of groups that the environments of a rollout worker are divided into. With 2 groups (double buffering), one is
    stepped while the actions of the other are computed."""
    num_policy_workers: Annotated[int, Range(1, 4096)] = 1
    """`served` placement: number of policy workers of each policy. They are the processes that compute actions."""
    rollout: Length = 32
    """Number of steps (T) of a trajectory."""
    num_slots: Annotated[int, Range(1, 2**15)] | None = None  # a ticket has 15 bits for the slot
    """Number of trajectory slots in shared memory. A rollout worker waits when none is free, so the number of slots limits
    memory, and the policy lag as long as the workers are equally fast. None: one per group (in a multi-agent environment one per
    agent), plus one or two batches."""
    min_request_groups: Length | None = None
    """A policy worker waits until this many groups (in a multi-agent environment: agents) have requested actions, but no longer
    than `batch_timeout`. None: a third of all groups (of all matches), divided by the number of policy workers and rounded
    up."""
    max_request_groups: Length | None = None
    """A policy worker computes the actions of at most this many groups (in a multi-agent environment: agents) at once. None: no
    limit."""
    batch_timeout: Seconds = 0.005
    """Longest time (seconds) that a policy worker waits for `min_request_groups`, counted from the first request."""
    one_transfer: Literal["auto", "on", "off"] = "auto"
    """`served` placement without replay: policy workers keep observations on the device for the learner, so that each is copied
    there once instead of twice. This takes device memory for the observations of all slots. `auto`: on if the device is a GPU."""
    weights_period: Count = 1
    """Number of steps of a group between two checks for new weights. A policy worker, which acts for many groups, checks when
    they have made this many steps on average. `device` placement: must be 1."""
    step_timeout: Timeout = 120.0
    """Longest time (seconds) that a step or a reset of an environment may take. A rollout worker that takes longer counts as
    hung: its Python stack is shown, and it is replaced."""
    max_restarts: Annotated[int, Range(0, 1_000_000)] = 10
    """Number of failed processes that may be replaced within `restart_window`. The next failure ends the run with its error."""
    restart_window: Timeout = 3600.0
    """Time (seconds) for which a failure counts towards `max_restarts`. Failures that are rarer never end a run."""
    pin_workers: bool = True
    """Bind each rollout worker to one core, round robin, if there are at least as many workers as cores."""
    worker_niceness: Annotated[int, Range(0, 19)] = 10
    """Scheduling niceness of rollout workers. With a higher value the learner and the policy workers get more of a busy
    processor."""


@dataclass
class RunConfig:
    """The run folder and what is written to it."""

    folder: str | None = None
    """Run folder; training resumes the run that is found there. None: runs/<env>__<name>__<seed>."""
    name: str = "default"
    """Name of the experiment. It is part of the default folder's name."""
    must_be_new: bool = False
    """Refuse to start if the folder already holds a run, instead of resuming it."""
    goal: float | None = None
    """Training ends when the mean return of the last 100 episodes reaches this value. None: no goal."""
    max_minutes: Annotated[float, Range(0, 1e6, above=True)] | None = None
    """Training ends after this wall-clock time (minutes), counted from when it begins, or goes on, in this process. None: no
    limit."""
    log_interval: Seconds = 5.0
    """Time (seconds) between two lines of metrics."""
    checkpoint_interval: Seconds = 120.0
    """Time (seconds) between two checkpoints."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints that are kept. The best checkpoint and all milestones are kept as well."""
    milestone_steps: Count | None = None
    """Number of steps between two milestones, which are checkpoints that are never deleted. None: no milestones."""
    eval_interval_steps: Count | None = None
    """Number of steps between two evaluations during training. None: no evaluations."""
    eval_episodes: Count = 10
    """Number of episodes of each evaluation during training."""
    dashboard: bool = True
    """Show a live dashboard in the terminal. If it is off, or output is not a terminal, each interval prints one line."""
    video: bool = True
    """When training ends, draw the learning curve and, where there are several tasks, policies or players, pictures of those, and
    save a video of one episode (at most 3,000 steps) in the run folder. This needs the extras `plots` and `video`."""
    track: bool = False
    """Log metrics to Weights & Biases as well. This needs the extra `wandb`."""
    wandb_project: str = "headrace"
    """Name of the project in Weights & Biases."""
