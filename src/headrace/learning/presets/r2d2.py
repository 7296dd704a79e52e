"""R2D2: Ape-X DQN on sequences."""

from __future__ import annotations

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import Declaration
from headrace.learning.presets import apex_dqn
from headrace.learning.presets.q_learning import SMALL_NETWORK, ByObservations, by_preset

# Kapturowski et al. 2019, Table 2 and section 2.3. A sequence starts every `sampling.rollout` rows. Rewards are not clipped. The
# gradient norm is Ape-X's.
R2D2 = apex_dqn.APEX_DQN | {
    "envs.reward_clip": None,
    "policy.core": "lstm", "policy.core_size": 512,
    "sampling.rollout": 40, "sampling.weights_period": 400,
    "learning.batch_size": 64, "learning.gamma": 0.997,
    "learning.optimizer": "adam", "learning.learning_rate": 1e-4, "learning.optimizer_eps": 1e-3,
    "replay.capacity": 4_000_000, "replay.n_step": 5, "replay.alpha": 0.9, "replay.beta": 0.6,
    "q.burn_in": 40, "q.sequence": 80, "q.rescale": True, "q.target_period": 2500,
}  # fmt: skip
# 10,000M frames.
PAPER: ByObservations = {"images": {"learning.total_steps": 2_500_000_000, "run.goal": None}, "vectors": {"run.goal": None}}
# Fewer and on vectors shorter sequences, a smaller core.
SMALL: ByObservations = {
    "images": {
        "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "sampling.weights_period": 20,
        "policy.core_size": 256,
        "learning.precision": "auto", "learning.batch_size": 16,
        "replay.capacity": 400_000, "replay.minimum": 10_000, "replay.samples_per_insert": 2.0, "replay.prefetch": 4,
        "q.target_period": 500,
    },
    "vectors": SMALL_NETWORK
    | {
        "policy.core_size": 128,
        "sampling.rollout": 10, "sampling.weights_period": 10,
        "learning.batch_size": 32,
        "learning.learning_rate": 1e-3,
        "replay.capacity": 100_000, "replay.minimum": 1_000, "replay.samples_per_insert": 8.0, "replay.codec": "none",
        "q.burn_in": 10, "q.sequence": 20, "q.target_period": 100,
    },
}  # fmt: skip


def check(config: Config) -> None:
    """Raise `ConfigError` without a recurrent core (that is Ape-X DQN), and for what Ape-X DQN refuses."""
    apex_dqn.check(config)
    if config.policy.core == "none":
        raise ConfigError("learning.algorithm r2d2 needs a recurrent core (policy.core lstm or gru); without one use apex-dqn")


DECLARATIONS = (Declaration("r2d2", apex_dqn.make, "replay", by_preset(R2D2, SMALL, PAPER), check),)
