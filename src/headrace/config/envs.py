"""Settings of the environment, and what an environment id with several tasks names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from headrace.config.errors import ConfigError
from headrace.config.ranges import JsonObject, Positive, Range, Timeout

Pixels = Annotated[int, Range(1, 4096)]
SEPARATOR = ","  # between the tasks of one policy
OF_ONE_MACHINE = ("remote", "remote_token_file", "remote_ca", "remote_tls_cert", "remote_tls_key", "start_states")
"""Settings that name files and addresses of one machine. They are left out when a policy is shared or exported, and ignored when
a shared one is loaded."""


@dataclass
class EnvConfig:
    """The environment: its variant, and the preprocessing of observations and rewards."""

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
    """Atari only: before a run begins, each training environment makes a random number of random steps, from 0 to this value, so
    that the environments are at different moments of the game."""
    start_states: str | None = None
    """Atari only: file of game states (`headrace_atari.save_states`). Every training episode begins in one of them, drawn at
    random, and its reported return counts from there. None: episodes begin as the protocol says."""
    resize: tuple[Pixels, Pixels] | None = None
    """Height and width (pixels) to which images are resized. None: the default of the environment's family (Atari 84x84, VizDoom
    72x128, DeepMind Lab 72x96, others as they are)."""
    grayscale: bool | None = None
    """Convert images from RGB to one grey channel. None: the default of the environment's family (Atari yes, others no)."""
    frame_stack: Annotated[int, Range(1, 1024)] | None = None
    """Number of successive images that are stacked in one observation; without images, number of successive vectors that are
    joined. None: the default of the environment's family (Atari 4, others 1)."""
    max_episode_steps: Annotated[int, Range(1, 2**31 - 1)] | None = None
    """Episodes are truncated after this many steps. In `gym` and `torch` this replaces the environment's own limit; elsewhere a
    lower limit of the environment stays. None: the environment's own limit."""
    info_action_mask: bool = False
    """Read the action mask from `info["action_mask"]`, as gym/Taxi-v4 gives it, instead of from the observation."""
    num_agents: Annotated[int, Range(1, 1024)] | None = None
    """Number of agents of one match. A multi-agent environment sets it, so it need not be given. None: an environment of one
    agent."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before they are learned from. Reported returns are never scaled."""
    reward_clip: Positive | None = None
    """Rewards are clipped to [-x, x] after scaling, where x is this value. None: no clipping. Reported returns are never
    clipped."""
    reward_soft_clip: Positive | None = None
    """After scaling, a reward r is squashed to x tanh(r / x), where x is this value, and multiplied by 0.3 if it is negative: the
    optimistic asymmetric clipping of DMLab-30. None: no squashing. Reported returns are never squashed."""
    reward_weights: JsonObject = field(default_factory=dict)
    """Weights of the parts of a shaped reward by name, as one JSON object. The environment's method `set_reward_weights` is
    called with them before the first reset, and again whenever population-based training has mutated them."""
    kwargs: JsonObject = field(default_factory=dict)
    """Further keyword arguments of the environment's constructor, as one JSON object."""
    info_metrics: tuple[str, ...] = ()
    """Keys of numbers in the info of a game's last step, such as a success or a distance. Their means over the games that ended
    are the metrics `episode/KEY`. None, or no keys: no such metrics."""
    task_share: Literal["compute", "samples"] = "compute"
    """What several tasks (`--env atari/pong,atari/boxing`) share equally. `compute`: every task has the same number of rollout
    workers, which step it as fast as they can. `samples`: every group has the same number of environments of each task, so all
    tasks make equally many steps, and fast tasks wait for slow ones."""
    task_options: JsonObject = field(default_factory=dict)
    """Several tasks: settings of the group `envs` for single tasks, as one JSON object by task, such as {"vizdoom/basic":
    {"reward_scale": 0.01}}. By default it holds the tasks' own defaults where they differ."""
    remote: str | None = None
    """Addresses of environment servers, separated by commas. Group g of the run (worker x `num_groups` + group) uses entry g
    modulo the number of entries. An entry is `HOST:PORT`, where `headrace serve-envs` listens; `listen:HOST:PORT`, where this run
    listens for simulators that dial in; or `local`, the worker's own process. None: all environments are local."""
    remote_token_file: str | None = None
    """File with the secret token that this run and its environment servers share. None: the environment variable HEADRACE_TOKEN,
    if it is set."""
    remote_ca: str | None = None
    """File with the certificate that signed the environment servers' TLS certificates; connections then use TLS. None: no TLS."""
    remote_tls_cert: str | None = None
    """File with this run's own TLS certificate, for simulators that dial in at a `listen:` address. None: no TLS there."""
    remote_tls_key: str | None = None
    """File with the private key of `remote_tls_cert`."""
    remote_timeout: Timeout = 120.0
    """Longest time (seconds) that an environment server may take for a step or a reset. After that the run closes the connection
    and connects again."""
    remote_compression: bool = False
    """Compress messages to environment servers (gzip). What a server sends is compressed if `headrace serve-envs` has
    `--compression`."""

    def __post_init__(self) -> None:
        if self.info_metrics == ("None",):  # as the command line gives it
            self.info_metrics = ()


def tasks_of(env: str) -> tuple[str, ...]:
    """The tasks that an environment id names: ``atari/pong,atari/boxing`` are two, any id without a comma is one.

    Raises `ConfigError` for an empty id among several and for one that is there twice.
    """
    tasks = tuple(env.split(SEPARATOR))
    if len(tasks) > 1 and not all(tasks):
        raise ConfigError(f"the tasks {env!r} have an empty id among them: give family/name, separated by single commas")
    if twice := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ConfigError(f"the task {twice[0]} is there twice; every task is given once")
    return tasks
