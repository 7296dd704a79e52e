"""The papers' tables of settings. Ours are shown beside them (`generate.py`) and tested (`tests/learning/test_promises.py`).

A number is either what our settings hold, or it has a note that says how ours differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIFFERS = object()
"""As `Number.value`: ours is another or depends on the environment, see the note."""


@dataclass(frozen=True)
class Number:
    """One row of a paper's table."""

    what: str
    published: str
    """As the paper has it."""
    setting: str | None
    """Our dotted setting. None: it is not a setting."""
    value: Any = DIFFERS
    """What the setting is, where it is the paper's."""
    note: str = ""
    """How ours differs, or where it is computed. Never empty without a value."""
    other: str = ""
    """What another implementation has, see `Table.other`."""


@dataclass(frozen=True)
class Table:
    """Everything that a paper states about an algorithm's settings."""

    algorithm: str
    source: str
    env: str
    """The environment that ours are shown for."""
    preset: str
    numbers: tuple[Number, ...]
    families: tuple[str, ...] = ()
    """Further environments for which the numbers must hold; those that differ there start with `env`."""
    other: str = ""
    """Title of a column for another implementation; empty: none."""


_LADDER = (
    Number("exploration of actor i of N", "0.4^(1 + 7 i / (N - 1)), for life: base", "q.epsilon", 0.4),
    Number("the same: spread", "7", "q.epsilon_alpha", 7.0),
)
_FRAMES = (
    Number("image", "84 x 84, grey", None, note="the Atari family's own: 84 x 84, grey (`envs.resize`, `envs.grayscale`)",
           other="same"),
    Number("action repeat", "4, maximum of the last 2 frames", None, note="the Atari family's own: 4 and 2 (`envs.frameskip`)",
           other="same"),
    Number("frames in an observation", "4", None, note="the Atari family's own: 4 (`envs.frame_stack`)", other="same"),
)  # fmt: skip

APPO = Table(
    "appo", "Petrenko et al. 2020, Table A.5 (VizDoom)", "vizdoom/basic", "paper",
    (
        Number("value targets and advantages", "V-trace", "learning.returns", "vtrace"),
        Number("rho", "1", "learning.vtrace_rho", 1.0),
        Number("c", "1", "learning.vtrace_c", 1.0),
        Number("lambda", "1 (the paper has none)", "learning.gae_lambda", 1.0),
        Number("discount", "0.99 (0.995 with action repeat 2)", "learning.gamma", 0.99),
        Number("rollout", "32", "sampling.rollout", 32),
        Number("batch", "2048 steps", "learning.batch_size", 2048),
        Number("epochs", "1", "learning.num_epochs", 1),
        Number("clipping of the ratio", "[1/1.1, 1.1]", "learning.ppo_clip", 0.1),
        Number("value loss", "0.5", "learning.value_coef", 0.5),
        Number("entropy", "0.003", "learning.entropy_coef", 0.003),
        Number("optimizer", "Adam", "learning.optimizer", "adam"),
        Number("learning rate", "1e-4", "learning.learning_rate", 1e-4),
        Number("Adam's epsilon", "1e-6", "learning.optimizer_eps", 1e-6),
        Number("gradient norm", "4", "learning.max_grad_norm", 4.0),
        Number("core", "GRU", "policy.core", "gru"),
        Number("width of the core", "512", "policy.core_size", 512),
        Number("network", "of Doom, with measurements", "policy.encoder",
               note="the environment's; the paper's: `--policy.encoder vizdoom-full`"),
        Number("total", "500M to 4B frames", "learning.total_steps", note="the environment's"),
    ),
    ("gym/CartPole-v1", "atari/pong"),
)  # fmt: skip

PPO = Table(
    "ppo", "Schulman et al. 2017, Table 5 (Atari)", "atari/breakout", "paper",
    (
        *_FRAMES,
        Number("value targets and advantages", "GAE", "learning.returns", "gae"),
        Number("lambda", "0.95", "learning.gae_lambda", 0.95),
        Number("discount", "0.99", "learning.gamma", 0.99),
        Number("horizon", "128", "sampling.rollout", 128),
        Number("actors", "8", "sampling.envs_per_worker", 8),
        Number("batch", "8 x 128", "learning.batch_size", 1024),
        Number("epochs", "3", "learning.num_epochs", 3),
        Number("minibatch", "32 x 8", "learning.num_minibatches", 4, "in parts of a batch"),
        Number("clipping of the ratio", "0.1, to 0 at the end", "learning.ppo_clip",
               note="0.1 throughout, of [1/1.1, 1.1] instead of [0.9, 1.1]"),
        Number("value loss", "1 x (V - v)^2", "learning.value_coef", 2.0, "a factor of 0.5 (V - v)^2"),
        Number("entropy", "0.01", "learning.entropy_coef", 0.01),
        Number("optimizer", "Adam", "learning.optimizer", "adam"),
        Number("learning rate", "2.5e-4", "learning.learning_rate", 2.5e-4),
        Number("schedule", "linear to 0", "learning.lr_schedule", "linear"),
        Number("Adam's epsilon", "1e-5 (not in the table; Baselines)", "learning.optimizer_eps", 1e-5),
        Number("gradient norm", "0.5 (not in the table; Baselines)", "learning.max_grad_norm", 0.5),
        Number("total", "40M frames", "learning.total_steps", 10_000_000, "in steps"),
        Number("network", "Nature's", "policy.encoder", "nature-cnn"),
    ),
    ("atari/pong",),
)  # fmt: skip

A2C = Table(
    "a2c", "OpenAI Baselines, `a2c.py` and `run_atari`", "atari/breakout", "paper",
    (
        Number("returns", "n-step, to the end of the trajectory", "learning.gae_lambda", 1.0, "GAE with lambda 1"),
        Number("steps", "5", "sampling.rollout", 5),
        Number("environments", "16", "sampling.envs_per_worker", 16),
        Number("batch", "80", "learning.batch_size", 80),
        Number("discount", "0.99", "learning.gamma", 0.99),
        Number("value loss", "0.5 x (R - V)^2", "learning.value_coef", 1.0, "a factor of 0.5 (R - V)^2"),
        Number("entropy", "0.01", "learning.entropy_coef", 0.01),
        Number("optimizer", "RMSProp (TensorFlow's)", "learning.optimizer", "rmsprop-tf"),
        Number("decay", "0.99", "learning.rmsprop_alpha", 0.99),
        Number("epsilon", "1e-5", "learning.optimizer_eps", 1e-5, "inside the square root"),
        Number("learning rate", "7e-4", "learning.learning_rate", 7e-4),
        Number("schedule", "linear to 0", "learning.lr_schedule", "linear"),
        Number("gradient norm", "0.5", "learning.max_grad_norm", 0.5),
        Number("total", "80M steps", "learning.total_steps", 80_000_000),
    ),
    ("atari/pong", "gym/CartPole-v1"),
)  # fmt: skip

IMPALA = Table(
    "impala", "Espeholt et al. 2018, Table G.1 (Atari)", "atari/breakout", "paper",
    (
        *_FRAMES,
        Number("end of an episode when a life is lost", "yes", "envs.protocol", "dqn", "in training", "yes"),
        Number("reward clipping", "[-1, 1]", "envs.reward_clip", 1.0, other="[-1, 1]"),
        Number("unroll", "20", "sampling.rollout", 20, other="80"),
        Number("batch", "32 trajectories", "learning.batch_size", 640, "in steps: 32 x 20", "8 trajectories"),
        Number("discount", "0.99", "learning.gamma", 0.99, other="0.99"),
        Number("baseline loss", "0.5", "learning.value_coef", 0.5, "both are factors of 0.5 (v - V)^2", "0.5"),
        Number("entropy", "0.01", "learning.entropy_coef", 0.01, other="0.0006"),
        Number("loss", "sum over time and batch", "learning.reduction", "sum", other="sum"),
        Number("optimizer", "RMSProp (TensorFlow's)", "learning.optimizer", "rmsprop-tf", other="RMSProp (PyTorch's)"),
        Number("RMSProp momentum", "0", None, note="`rmsprop-tf` has no momentum", other="0"),
        Number("RMSProp decay", "0.99 (not in the table; scalable_agent)", "learning.rmsprop_alpha", 0.99, other="0.99"),
        Number("RMSProp epsilon", "0.01", "learning.optimizer_eps", 0.01, "inside the square root", "0.01, outside of it"),
        Number("learning rate", "0.0006", "learning.learning_rate", 6e-4, other="0.00048"),
        Number("learning rate schedule", "linear to 0", "learning.lr_schedule", "linear", other="linear to 0"),
        Number("gradient norm", "40", "learning.max_grad_norm", 40.0, other="40"),
        Number("rho", "1", "learning.vtrace_rho", 1.0, other="1"),
        Number("c", "1", "learning.vtrace_c", 1.0, other="1"),
        Number("lambda", "1", "learning.gae_lambda", 1.0, other="1"),
        Number("passes over a batch", "1", "learning.num_epochs", 1, other="1"),
        Number("minibatches", "1", "learning.num_minibatches", 1, other="1"),
        Number("total", "200M frames", "learning.total_steps", 50_000_000, "in steps; the learning rate ends at 0 there",
               "100,000 steps"),
        Number("network", "shallow or deep (residual), without LSTM on Atari", "policy.encoder", "impala-shallow",
               "the deep one: `--policy.encoder impala-resnet`",
               other="MonoBeast Nature's, PolyBeast the deep one; LSTM optional"),
        Number("last action as an input", "with LSTM", "policy.previous_action", True, "of the core, where there is one",
               "MonoBeast yes"),
        Number("last reward as an input", "with LSTM, clipped to [-1, 1]", "policy.previous_reward", True,
               "of the core, where there is one", "yes, clipped"),
        Number("weights of actors", "taken at the start of a trajectory", "sampling.weights_period",
               note="taken before every batch of actions; `--placement inline --sampling.weights-period 20` is the paper's",
               other="may change within a trajectory"),
        Number("actors", "one environment each; 200 or more", None, note="`sampling.num_workers` x `envs_per_worker`", other="4"),
        Number("population based training (multi-task agent)", "24; epsilon, rate, entropy, gradient norm", None,
               note="**differs:** none unless asked for: `--population.size 24 --sampling.num-workers 12 --pbt.rule paper`, by the rule of "
               "Petrenko et al. 2020; `pbt.mutable` chooses what mutates, by default rate and entropy", other="none"),
    ),
    ("atari/pong",), "TorchBeast",
)  # fmt: skip

APEX_DQN = Table(
    "apex-dqn", "Horgan et al. 2018, section 4.1 and appendix C", "atari/pong", "paper",
    (
        *_FRAMES,
        Number("reward clipping", "[-1, 1]", "envs.reward_clip", 1.0),
        Number("training episodes", "at most 50,000 frames", "envs.max_episode_steps", 12_500, "in steps of 4 frames"),
        Number("total", "22,800M frames", "learning.total_steps", 5_700_000_000, "in steps"),
        Number("end of training", "by time", "run.goal", None, "no goal of the environment's"),
        Number("actors", "360, one environment each", "sampling.envs_per_worker",
               note="the environment's number: set `sampling.num_workers` and `envs_per_worker`"),
        *_LADDER,
        Number("actors copy weights every", "400 frames", "sampling.weights_period", 100, "in steps"),
        Number("actors send", "50 transitions", "sampling.rollout", 50),
        Number("n-step returns", "3", "replay.n_step", 3),
        Number("discount", "0.99", "learning.gamma", 0.99),
        Number("replay", "2,000,000, soft", "replay.capacity", 2_000_000),
        Number("eviction every", "100 updates, oldest first", "replay.evict_period", 100),
        Number("minimum", "50,000", "replay.minimum", 50_000),
        Number("priority exponent", "0.6", "replay.alpha", 0.6),
        Number("importance exponent", "0.4", "replay.beta", 0.4,
               "weights are divided by the batch's largest; the paper does not say"),
        Number("batch", "512", "learning.batch_size", 512),
        Number("prefetched batches", "16", "replay.prefetch", 16),
        Number("compression", "PNG", "replay.codec", note="LZ4 over 8 frames"),
        Number("double", "yes", "q.double", True),
        Number("dueling", "yes, streams of 512", "policy.hidden", 512),
        Number("network", "Nature's convolutions", "policy.encoder", "nature-conv"),
        Number("optimizer", "centered RMSProp (TensorFlow's)", "learning.optimizer", "rmsprop-tf"),
        Number("centered", "yes", "learning.rmsprop_centered", True),
        Number("learning rate", "0.00025 / 4", "learning.learning_rate", 0.00025 / 4),
        Number("schedule", "constant", "learning.lr_schedule", "constant"),
        Number("decay", "0.95", "learning.rmsprop_alpha", 0.95),
        Number("epsilon", "1.5e-7", "learning.optimizer_eps", 1.5e-7, "inside the square root"),
        Number("gradient norm", "40", "learning.max_grad_norm", 40.0),
        Number("target network", "copied every 2,500 updates", "q.target_period", 2500),
        Number("evaluation", "epsilon 0.00164; longer episodes than in training", None,
               note="epsilon 0.00164; **differs:** the same limit of episodes as in training"),
    ),
    ("atari/breakout",),
)  # fmt: skip

APEX_DPG = Table(
    "apex-dpg", "Horgan et al. 2018, appendix D", "dm_control/cartpole-swingup", "paper",
    (
        Number("actor's layers", "300, 200, tanh", "q.actor_layers", (300, 200)),
        Number("critic's layers", "400, 300, tanh first", "q.critic_layers", (400, 300),
               "tanh after both; the action joins after the first. The paper leaves both open"),
        Number("noise", "N(0, 0.3) per action", "q.noise", 0.3, "in units of half the range of an action"),
        Number("discount", "0.99", "learning.gamma", 0.99),
        Number("n-step returns", "3", "replay.n_step", 3),
        Number("actors", "64", "sampling.envs_per_worker", note="the environment's number"),
        Number("actors copy weights every", "400 frames", "sampling.weights_period", 100,
               "as steps of 4 frames; the tasks have no action repeat of 4, and the paper does not say"),
        Number("actors send", "50 transitions", "sampling.rollout", 50),
        Number("replay", "1,000,000", "replay.capacity", 1_000_000),
        Number("eviction", "proportional, exponent -0.4", "replay.evict_alpha", -0.4),
        Number("eviction every", "100 updates", "replay.evict_period", 100),
        Number("minimum", "50,000", "replay.minimum", 50_000),
        Number("priority exponent", "0.6", "replay.alpha", 0.6),
        Number("importance exponent", "0.4", "replay.beta", 0.4),
        Number("batch", "256", "learning.batch_size", 256),
        Number("optimizer", "Adam", "learning.optimizer", "adam"),
        Number("learning rate", "1e-4", "learning.learning_rate", 1e-4),
        Number("schedule", "constant", "learning.lr_schedule", "constant"),
        Number("gradient norm", "40", "learning.max_grad_norm", 40.0, "as for DQN"),
        Number("actor's gradient", "clipped elementwise to [-1, 1]", None,
               note="which gradient is open; here dq/da, as in Acme's D4PG"),
        Number("target networks", "copied every 100 updates", "q.target_period", 100),
        Number("observations", "as they are", "policy.normalize_observations", False),
        Number("end of training", "by time", "run.goal", None),
        Number("total", "by time", "learning.total_steps", note="the environment's"),
    ),
    ("gym/Pendulum-v1",),
)  # fmt: skip

R2D2 = Table(
    "r2d2", "Kapturowski et al. 2019, section 2.3 and Table 2", "atari/pong", "paper",
    (
        *_FRAMES,
        Number("reward clipping", "none", "envs.reward_clip", None),
        Number("end of an episode when a life is lost", "no", "envs.protocol",
               note="`dqn`: yes, in training. `--envs.protocol ale-v5`: no, but with sticky actions, which the paper has not"),
        Number("total", "10,000M frames", "learning.total_steps", 2_500_000_000, "in steps"),
        Number("end of training", "by time", "run.goal", None, "no goal of the environment's"),
        Number("actors", "256, one environment each", "sampling.envs_per_worker",
               note="the environment's number: set `sampling.num_workers` and `envs_per_worker`"),
        *_LADDER,
        Number("actors copy weights every", "400 steps", "sampling.weights_period", 400),
        Number("sequence", "80", "q.sequence", 80),
        Number("burn-in", "40", "q.burn_in", 40),
        Number("sequences start every", "40 steps", "sampling.rollout", 40),
        Number("the end of an episode", "ends a sequence", None,
               note="**differs:** a sequence goes on in the next episode, where the core state begins anew"),
        Number("n-step returns", "5", "replay.n_step", 5),
        Number("discount", "0.997", "learning.gamma", 0.997),
        Number("value rescaling", "yes, epsilon 1e-3", "q.rescale", True),
        Number("replay", "4,000,000 observations, 100,000 sequences", "replay.capacity", 4_000_000),
        Number("minimum", "not stated", "replay.minimum", note="Ape-X's"),
        Number("priority exponent", "0.9", "replay.alpha", 0.9),
        Number("importance exponent", "0.6", "replay.beta", 0.6),
        Number("priority of a sequence", "0.9 max |TD| + 0.1 mean |TD|", None,
               note="the same; a new sequence's errors are of the values that acting computed"),
        Number("batch", "64 sequences", "learning.batch_size", 64),
        Number("network", "Nature's convolutions, LSTM, dueling", "policy.encoder", "nature-conv"),
        Number("core", "LSTM", "policy.core", "lstm"),
        Number("width of the core", "512", "policy.core_size", 512),
        Number("width of the streams", "512", "policy.hidden", 512),
        Number("last action as an input", "yes", "policy.previous_action", True),
        Number("last reward as an input", "yes", "policy.previous_reward", True, "clipped to [-1, 1] for the core only"),
        Number("double", "yes", "q.double", True),
        Number("optimizer", "Adam", "learning.optimizer", "adam"),
        Number("learning rate", "1e-4", "learning.learning_rate", 1e-4),
        Number("schedule", "constant", "learning.lr_schedule", "constant"),
        Number("epsilon", "1e-3", "learning.optimizer_eps", 1e-3),
        Number("gradient norm", "not stated", "learning.max_grad_norm", note="Ape-X's"),
        Number("target network", "copied every 2,500 updates", "q.target_period", 2500),
    ),
    ("atari/breakout",),
)  # fmt: skip

_REPLAYED = (
    *_FRAMES,
    Number("reward clipping", "[-1, 1]", "envs.reward_clip", 1.0),
    Number("end of an episode when a life is lost", "yes", "envs.protocol", "dqn", "in training"),
    Number("total", "200M frames", "learning.total_steps", 50_000_000, "in steps"),
    Number("end of training", "by steps", "run.goal", None, "no goal of the environment's"),
    Number("environments", "1", "sampling.envs_per_worker",
           note="the environment's number; the paper's: `--num-workers 1 --envs-per-worker 1 --sampling.num-groups 1`"),
    Number("replay", "1,000,000", "replay.capacity", 1_000_000),
    Number("batch", "32", "learning.batch_size", 32),
    Number("an update every", "4 steps", "replay.samples_per_insert", 8.0, "32 samples for 4 transitions"),
    Number("discount", "0.99", "learning.gamma", 0.99),
    Number("schedule", "constant", "learning.lr_schedule", "constant"),
    Number("network", "Nature's convolutions", "policy.encoder", "nature-conv"),
    Number("hidden layer, or each stream", "512", "policy.hidden", 512),
)  # fmt: skip

DQN = Table(
    "dqn", "Mnih et al. 2015, extended data table 1", "atari/pong", "paper",
    (
        *_REPLAYED,
        Number("double, dueling, noisy, distributional", "no", "q.double", False, "nor `q.dueling`, `q.noisy`, `q.atoms`"),
        Number("n-step returns", "1", "replay.n_step", 1),
        Number("prioritized", "no", "replay.alpha", 0.0),
        Number("minimum", "50,000 by random actions", "replay.minimum", 50_000,
               "epsilon is 1 until the first update"),
        Number("exploration", "epsilon 1", "q.epsilon_first", 1.0),
        Number("the same, at the end", "0.1", "q.epsilon_last", 0.1),
        Number("the same, falls over", "1M frames", "q.epsilon_decay", 0.02,
               "of the steps of 200M frames: 1M steps, which is 4M frames"),
        Number("target network", "copied every 10,000 updates", "q.target_period", 10_000),
        Number("optimizer", "centered RMSProp", "learning.optimizer", "rmsprop-tf",
               "its mean square starts at 1; in the paper at 0"),
        Number("centered", "yes", "learning.rmsprop_centered", True),
        Number("learning rate", "0.00025", "learning.learning_rate", 0.00025),
        Number("decay of both moments", "0.95", "learning.rmsprop_alpha", 0.95),
        Number("epsilon", "0.01", "learning.optimizer_eps", 0.01, "inside the square root"),
        Number("errors", "clipped to [-1, 1]", None, note="**differs:** not clipped"),
        Number("gradient norm", "no limit", "learning.max_grad_norm", None),
        Number("evaluation", "epsilon 0.05", None, note="**differs:** 0.00164"),
    ),
    ("atari/breakout",),
)  # fmt: skip

RAINBOW = Table(
    "rainbow", "Hessel et al. 2018, table 1", "atari/pong", "paper",
    (
        *_REPLAYED,
        Number("double", "yes", "q.double", True),
        Number("dueling", "yes", "q.dueling", True),
        Number("noisy layers", "yes, sigma 0.5", "q.noisy", True, "one draw for a whole batch"),
        Number("exploration", "epsilon 0", "q.epsilon_first", 0.0),
        Number("the same, at the end", "0", "q.epsilon_last", 0.0),
        Number("atoms", "51", "q.atoms", 51),
        Number("from and to", "[-10, 10]", "q.support", (-10.0, 10.0)),
        Number("n-step returns", "3", "replay.n_step", 3),
        Number("priority", "KL divergence; new: the largest so far", None, note="the same"),
        Number("priority exponent", "0.5", "replay.alpha", 0.5),
        Number("importance exponent", "0.4, to 1 at the end", "replay.beta", note="0.4 throughout"),
        Number("minimum", "80K frames", "replay.minimum", 20_000, "in steps"),
        Number("target network", "copied every 32K frames", "q.target_period", 2_000, "in updates of 4 steps"),
        Number("optimizer", "Adam", "learning.optimizer", "adam"),
        Number("learning rate", "0.0000625", "learning.learning_rate", 0.0000625),
        Number("epsilon", "1.5e-4", "learning.optimizer_eps", 1.5e-4),
        Number("gradient norm", "10 (not in the table; DQN Zoo)", "learning.max_grad_norm", 10.0),
        Number("evaluation", "without noise", None, note="**differs:** with noise and epsilon 0.00164; `deterministic`: without"),
    ),
    ("atari/breakout",),
)  # fmt: skip

PQN = Table(
    "pqn", "Gallici et al. 2024: `pqn_atari.yaml` and `pqn_atari.py` of their code", "atari/pong", "paper",
    (
        *_FRAMES,
        Number("reward clipping", "[-1, 1]", "envs.reward_clip", 1.0),
        Number("end of an episode when a life is lost", "yes", "envs.protocol", "dqn", "in training"),
        Number("total", "10M steps; 400M frames for the published scores", "learning.total_steps", note="200M frames, in steps"),
        Number("end of training", "by steps", "run.goal", None, "no goal of the environment's"),
        Number("environments", "128", "sampling.envs_per_worker", 128),
        Number("steps", "32", "sampling.rollout", 32),
        Number("batch", "128 x 32", "learning.batch_size", 4096),
        Number("epochs", "2", "learning.num_epochs", 2),
        Number("minibatches", "32", "learning.num_minibatches", 32),
        Number("discount", "0.99", "learning.gamma", 0.99),
        Number("lambda", "0.65", "learning.gae_lambda", 0.65),
        Number("exploration", "epsilon 1", "q.epsilon_first", 1.0),
        Number("the same, at the end", "0.001", "q.epsilon_last", 0.001),
        Number("the same, falls over", "a tenth of training", "q.epsilon_decay", 0.1),
        Number("network", "Nature's", "policy.encoder", "nature-conv"),
        Number("hidden layer", "512", "policy.hidden", 512),
        Number("layer norm", "in every hidden layer, of a convolution over the channels of each position", None,
               note="**differs:** of a convolution over all channels and positions"),
        Number("optimizer", "RAdam", "learning.optimizer", note="Adam"),
        Number("learning rate", "2.5e-4", "learning.learning_rate", 2.5e-4),
        Number("schedule", "constant", "learning.lr_schedule", "constant"),
        Number("gradient norm", "10", "learning.max_grad_norm", 10.0),
        Number("evaluation", "epsilon 0", None, note="**differs:** 0.00164; `deterministic`: 0"),
    ),
    ("atari/breakout",),
)  # fmt: skip

TABLES = (APPO, PPO, IMPALA, A2C, APEX_DQN, APEX_DPG, R2D2, DQN, RAINBOW, PQN)
