"""Ape-X DQN."""

from __future__ import annotations

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import Algorithm, Declaration
from headrace.learning.presets.q_learning import ON_A_REPLAY, SMALL_NETWORK, ByObservations, by_preset, check_no_value_head

# Horgan et al. 2018, appendix C. Actors look for new weights every 400 frames = 100 steps.
APEX_DQN = ON_A_REPLAY | {
    "policy.encoder": "nature-conv", "policy.hidden": 512,
    "sampling.rollout": 50, "sampling.weights_period": 100,
    "replay.codec": "lz4",
    "learning.batch_size": 512,
    "learning.optimizer": "rmsprop-tf", "learning.learning_rate": 0.00025 / 4, "learning.optimizer_eps": 1.5e-7,
    "learning.rmsprop_alpha": 0.95, "learning.rmsprop_centered": True, "learning.max_grad_norm": 40.0,
}  # fmt: skip
# Training episodes of 50,000 frames, 22,800M frames.
PAPER: ByObservations = {
    "images": {
        "envs.reward_clip": 1.0, "envs.max_episode_steps": 12_500,
        "learning.total_steps": 5_700_000_000, "learning.gamma": 0.99,
        "run.goal": None,
    },
    "vectors": {"learning.gamma": 0.99, "run.goal": None},
}  # fmt: skip
# The paper's sizes are for hundreds of actors and days of Atari. A few cores step far fewer environments than one learner could
# take in, so every transition is learned from more often, the batches are smaller and the target network follows sooner.
SMALL: ByObservations = {
    "images": {
        "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "sampling.rollout": 20, "sampling.weights_period": 20,
        "learning.precision": "auto", "learning.batch_size": 128,
        "learning.optimizer": "adam", "learning.learning_rate": 2e-4, "learning.optimizer_eps": 1e-5,
        "learning.max_grad_norm": 10.0,
        "replay.capacity": 500_000, "replay.minimum": 10_000, "replay.samples_per_insert": 16.0, "replay.prefetch": 4,
        "q.target_period": 500,
    },
    "vectors": SMALL_NETWORK
    | {
        "sampling.rollout": 10, "sampling.weights_period": 10,
        "learning.batch_size": 128,
        "learning.optimizer": "adam", "learning.learning_rate": 1e-3, "learning.optimizer_eps": 1e-5,
        "replay.capacity": 100_000, "replay.minimum": 1_000, "replay.samples_per_insert": 32.0, "replay.codec": "none",
        "q.target_period": 50,
    },
}  # fmt: skip


def make(config: Config) -> Algorithm:
    """Ape-X DQN on transitions; with a recurrent core R2D2, on sequences."""
    from headrace.learning.apex_dqn import ApexDQN  # these import torch
    from headrace.learning.r2d2 import R2D2

    return ApexDQN(config) if config.policy.core == "none" else R2D2(config)


def check(config: Config) -> None:
    """Raise `ConfigError` for atoms that are no distribution, and for settings that have no meaning here."""
    q = config.q
    check_no_value_head(config)
    if q.atoms > 1 and not q.support[0] < q.support[1]:
        raise ConfigError(f"q.support is {q.support}; the first atom must be below the last")
    if q.atoms > 1 and config.policy.core != "none":
        raise ConfigError("sequences are learned with expected values: q.atoms must be 1 with a recurrent core")


DECLARATIONS = (Declaration("apex-dqn", make, "replay", by_preset(APEX_DQN, SMALL, PAPER), check),)
