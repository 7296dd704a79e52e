"""Settings of what learns: the algorithm and its optimizer, the replay buffer, Q-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from headrace.config.ranges import Count, Fraction, Length, NonNegative, Positive, Range, Timeout, Width


@dataclass
class LearningConfig:
    """The algorithm and its optimizer. The defaults in the code are those of APPO (Petrenko et al. 2020, table A.5); environments
    and algorithms have their own."""

    algorithm: str = "appo"
    """Learning algorithm. `appo`: asynchronous PPO with V-trace. `ppo`: PPO with GAE. `impala`: policy gradient with V-trace.
    `a2c`: policy gradient with n-step returns. `pqn`: Q-learning with layer norm and lambda returns. `apex-dqn`, `apex-dpg`:
    Q-learning and deterministic policy gradient with prioritized replay. `r2d2`: recurrent Q-learning with prioritized replay of
    sequences. `dqn`: Q-learning with replay, to which each part of Rainbow can be added by a setting. `rainbow`: all parts of
    Rainbow, but on images no noisy layers unless the preset is `paper`. Other names are algorithms that an imported file
    registers."""
    preset: Literal["small", "paper"] = "small"
    """Source of an algorithm's defaults. `small`: numbers with which a few cores learn, with replay in about an hour. `paper`:
    the published numbers, which may be meant for hundreds of actors and days of training."""
    experience: Literal["trajectories", "replay"] = "trajectories"
    """What the learner learns from. The algorithm sets it; another value is refused. `trajectories`: every trajectory once, in
    order. `replay`: transitions sampled from a replay buffer."""
    total_steps: Count = 10_000_000
    """Training ends after this many steps of experience."""
    batch_size: Annotated[int, Range(1, 2**31 - 1)] = 2048
    """Steps per batch. It must be a multiple of `sampling.rollout` times the environments of a group (in a multi-agent
    environment: of `sampling.rollout`); in `device` placement, `sampling.rollout` times all environments, or that divided by a
    whole number. The default is rounded up to fit; with `impala` and `a2c` it also grows with the number of groups, so that
    samples get about 6 updates old at most while workers are equally fast. With replay: transitions per update, or with a
    recurrent core sequences."""
    num_minibatches: Length = 1
    """Number of minibatches that a batch is divided into. A minibatch has single steps with GAE and without a recurrent core,
    else whole trajectories. The default is lowered if it does not divide the batch."""
    num_epochs: Annotated[int, Range(1, 1000)] = 1
    """Number of passes over each batch."""
    gamma: Fraction = 0.99
    """Discount factor per step."""
    returns: Literal["vtrace", "gae"] = "vtrace"
    """Method that computes value targets and advantages."""
    gae_lambda: Fraction = 0.95
    """Lambda of GAE, and of the lambda returns of `pqn`. V-trace multiplies its trace coefficients by it."""
    vtrace_rho: Positive = 1.0
    """V-trace: upper limit of the importance weights (rho). It determines which value function the critic converges to."""
    vtrace_c: NonNegative = 1.0
    """V-trace: upper limit of the trace coefficients (c). It determines how fast the critic converges."""
    ppo_clip: Positive | None = 0.1
    """PPO: the probability ratio is clipped to [1/(1+c), 1+c], where c is this value. None: no clipping, the plain policy
    gradient."""
    value_clip: Positive | None = None
    """Value predictions are clipped to within this distance of the behaviour policy's predictions. None: no clipping."""
    value_coef: NonNegative = 0.5
    """Weight of the value loss in the total loss."""
    entropy_coef: NonNegative = 0.003
    """Weight of the exploration term in the total loss."""
    exploration: Literal["entropy", "symmetric-kl"] = "entropy"
    """Exploration term of the loss. `entropy`: the policy's entropy. `symmetric-kl`: the symmetric KL divergence from the uniform
    distribution, for discrete and for bounded actions."""
    normalize_advantages: bool = True
    """Normalise the advantages of each minibatch to mean 0 and standard deviation 1."""
    max_policy_lag: Annotated[int, Range(0, 1_000_000)] = 1000
    """Samples whose action was chosen by weights more than this many updates old are excluded from the losses and their
    statistics. Without effect on algorithms with replay."""
    optimizer: Literal["adam", "rmsprop", "rmsprop-tf"] = "adam"
    """Optimizer of the network's weights. `rmsprop`: as PyTorch computes it. `rmsprop-tf`: as TensorFlow 1 does, with epsilon
    inside the square root and squared gradients that start at 1; IMPALA and Ape-X were published with it, and DQN with such an
    epsilon."""
    learning_rate: NonNegative = 1e-4
    """Learning rate at the start of training."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """`constant`: the learning rate does not change. `linear`: it falls linearly, to 0 at `total_steps`."""
    adam_betas: tuple[Annotated[float, Range(0, 1, below=True)], Annotated[float, Range(0, 1, below=True)]] = (0.9, 0.999)
    """Adam: decay rates of the first and the second moment."""
    optimizer_eps: NonNegative = 1e-6
    """Epsilon of Adam or RMSProp."""
    rmsprop_alpha: Fraction = 0.99
    """RMSProp: decay rate of the mean square of the gradients."""
    rmsprop_centered: bool = False
    """RMSProp: divide by the standard deviation of the gradients instead of their root mean square."""
    reduction: Literal["mean", "sum"] = "mean"
    """The loss is the mean or the sum over the valid samples of a minibatch. IMPALA was published with the sum, for which its
    learning rate, epsilon and gradient norm are meant. Without effect on algorithms with replay."""
    max_grad_norm: Positive | None = 4.0
    """Gradients are scaled down to at most this norm. None: no limit."""
    precision: Literal["auto", "float32", "bf16"] = "float32"
    """Arithmetic of convolutions and matrix products, in the learner and the policy workers. `bf16`: bfloat16 autocast; heads,
    and MLPs of vectors with at most 512 numbers in a layer, stay in float32. `auto`: `bf16` if the processor or the GPU computes
    it faster than float32, else `float32`."""
    compile: bool = False
    """Compile the learner's network with torch.compile."""
    graphs: bool = True
    """On a GPU, record acting and optimizer steps as CUDA graphs, which launch all their kernels at once."""
    device: str = "auto"
    """Device of the learner and the policy workers: `cpu`, `cuda`, or one of several GPUs such as `cuda:1`. `auto`: `cuda` if
    there is one, else `cpu`."""
    update_timeout: Timeout = 600.0
    """Longest time (seconds) that an update or a checkpoint may take. A learner that takes longer counts as hung: its Python
    stack is shown, and it is restarted from the newest checkpoint."""
    num_devices: Annotated[int, Range(1, 64)] = 1
    """Number of ranks: processes that learn one policy together, each with a GPU (or its share of the cores), rollout workers and
    batches of `batch_size` of its own. Ranks on several machines are started by `torchrun`, without this setting."""
    num_threads: Annotated[int, Range(1, 4096)] | None = None
    """CPU threads of a learner. None: half of the cores, divided by the number of learners. If rollout workers wait for the
    learner while cores are idle, it tries all cores, divided in the same way, and keeps them if it makes at least 1.05 times as
    many updates with them. In `device` placement: all cores. While other programs use the cores the learner takes fewer, except
    in `serial` placement, which always takes all."""


@dataclass
class ReplaySettings:
    """Prioritized replay: `apex-dqn`, `apex-dpg`, `r2d2`, `dqn`, `rainbow`. The defaults in the code are those of Ape-X DQN
    (Horgan et al. 2018); algorithms and presets have their own. In `device` placement the replay is in the memory of the device
    and keeps the newest transitions, uncompressed: `slack`, `evict_period`, `codec`, `packed_share`, `prefetch` and `threads`
    have no effect there."""

    capacity: Annotated[int, Range(1, 10**10)] = 2_000_000
    """Number of transitions that the replay keeps, in a population the replay of each policy. It may hold more until the next
    eviction."""
    slack: Annotated[float, Range(1, 1000)] = 1.1
    """The replay has memory for this many times its capacity. Proportional eviction keeps some transitions longer and needs
    more memory."""
    shards: Literal["learner", "node"] = "learner"
    """Where the replay of a cluster is. `learner`: in the memory of the learner's machine. `node`: every sampling node stores its
    own transitions, up to `capacity` divided by the largest number of nodes, and only sampled batches cross the network. Batches
    are drawn by the priorities of all nodes, as from one replay. If a node is lost its transitions are lost too, and batches are
    drawn from the other nodes."""
    minimum: Count = 50_000
    """Learning starts when the replay holds this many transitions. If the replay is lost, learning pauses until it is filled to
    this number again."""
    copies: Annotated[int, Range(1, 10_000)] = 1
    """Number of times that each transition is added. More than 1 repeats the experiment on recency in figure 6 of the Ape-X
    paper: few environments fill the replay as fast as many, with fewer distinct transitions."""
    n_step: Annotated[int, Range(1, 10_000)] = 3
    """Number of rewards in an n-step return."""
    alpha: NonNegative = 0.6
    """Exponent of the priorities in sampling. 0: uniform sampling."""
    beta: NonNegative = 0.4
    """Exponent of the importance-sampling weights. 0: no correction; 1: full correction."""
    evict_alpha: float | None = None
    """Transitions are evicted with a probability proportional to priority^evict_alpha (Ape-X DPG: -0.4). None: the oldest are
    evicted first."""
    evict_period: Count = 100
    """Number of updates between two evictions."""
    samples_per_insert: Positive | None = None
    """Ratio of sampled to inserted transitions, or with a recurrent core of sequences, of which each environment inserts one
    every `sampling.rollout` steps. The learner and the rollout workers wait for each other to keep it. None: nobody waits, and
    `serial` and `device` placement make one update per trajectory."""
    codec: Literal["none", "lz4", "zstd"] = "none"
    """Compression of images in the replay."""
    packed_share: Annotated[float, Range(0.01, 1)] = 0.2
    """Memory for compressed images, as a share of their uncompressed size. If images compress worse than that, the replay holds
    fewer transitions than its capacity, and a line at the start of learning says how many."""
    prefetch: Annotated[int, Range(1, 4096)] = 16
    """Number of batches that are sampled in advance. With `shards` set to `node` two more are on their way from the nodes, so a
    batch was drawn by priorities that are at most this number + 2 updates old."""
    threads: Annotated[int, Range(1, 4096)] = 1
    """Number of threads that copy and decompress one batch."""
    checkpoint_contents: bool = False
    """Save all transitions with the newest checkpoint, uncompressed (about 7 KB per Atari transition), so that a resumed run
    need not fill the replay again. In `serial` and `device` placement the resumed run is then exact, bit for bit. Off: only
    counters are saved."""


@dataclass
class QConfig:
    """Q-learning: exploration, target network, and the parts of Rainbow."""

    epsilon: Fraction = 0.4
    """Ape-X DQN, R2D2: base of the exploration rates. Environment i of N takes a random action with probability
    epsilon^(1 + epsilon_alpha * i / (N - 1))."""
    epsilon_alpha: NonNegative = 7.0
    """Ape-X DQN, R2D2: spread of the exploration rates: the last environment's rate is epsilon^(1 + epsilon_alpha), the first
    one's is epsilon."""
    epsilon_levels: Annotated[int, Range(1, 1_000_000)] | None = None
    """Ape-X DQN, R2D2: number of different exploration rates, each for one block of environments (figure 7 of the Ape-X
    paper: 6). None: one rate per environment."""
    epsilon_first: Fraction = 1.0
    """PQN, DQN: share of random actions at the start of training, equal in all environments."""
    epsilon_last: Fraction = 0.01
    """PQN, DQN: share of random actions after `epsilon_decay`."""
    epsilon_decay: Annotated[float, Range(0, 1, above=True)] = 0.1
    """PQN, DQN: part of `learning.total_steps` over which the share of random actions falls linearly."""
    target_period: Count = 2500
    """Number of updates between two copies of the weights to the target network."""
    double: bool = True
    """Double Q-learning: the online network chooses the action whose value the target network estimates."""
    dueling: bool = True
    """Dueling network: one stream for the value of the state, one for the advantages of the actions."""
    noisy: bool = False
    """Noisy linear layers in the heads, for exploration. They are the only exploration if the share of random actions is 0."""
    atoms: Annotated[int, Range(1, 10_000)] = 1
    """Number of atoms in the distribution of the return (C51: 51). 1: only the expected return is learned."""
    support: tuple[float, float] = (-10.0, 10.0)
    """Returns at the first and at the last atom."""
    burn_in: Annotated[int, Range(0, 1_000_000)] = 40
    """Recurrent core (R2D2): number of rows at the start of a sequence that only warm up the core state."""
    sequence: Length = 80
    """Recurrent core (R2D2): number of rows of a sequence that are learned from. A sequence starts every `sampling.rollout` rows,
    from the core state stored there; it must not be shorter than that."""
    rescale: bool = False
    """Recurrent core (R2D2): learn values rescaled by h(x) = sign(x)(sqrt(|x| + 1) - 1) + 0.001 x."""
    noise: NonNegative = 0.3
    """Ape-X DPG: standard deviation of the Gaussian noise that is added to actions, in units of half the range of an action."""
    actor_layers: tuple[Width, ...] = (300, 200)
    """Ape-X DPG: widths of the actor's layers."""
    critic_layers: tuple[Width, ...] = (400, 300)
    """Ape-X DPG: widths of the critic's layers. The action is an input of the second layer."""
