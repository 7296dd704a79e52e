"""Algorithms with many exploring actors and one prioritized replay: Ape-X DQN, Ape-X DPG, R2D2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import Algorithm, ByObservations, Declaration, Settings
from headrace.learning.presets.q_learning import (
    OF_DPG,
    OF_FALLING_EPSILON,
    OF_LADDERS_AND_SEQUENCES,
    ON_A_REPLAY,
    SMALL_NETWORK,
    UNUSED_ON_A_REPLAY,
    by_preset,
    check_no_value_head,
    class_of,
)

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
DQN_PAPER: ByObservations = {
    "images": {
        "envs.reward_clip": 1.0, "envs.max_episode_steps": 12_500,
        "learning.total_steps": 5_700_000_000, "learning.gamma": 0.99,
        "run.goal": None,
    },
    "vectors": {"learning.gamma": 0.99, "run.goal": None},
}  # fmt: skip
# The paper's sizes are for hundreds of actors and days of Atari. A few cores step far fewer environments than one learner could
# take in, so every transition is learned from more often, the batches are smaller and the target network follows sooner.
DQN_SMALL: ByObservations = {
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

# Kapturowski et al. 2019, Table 2 and section 2.3. A sequence starts every `sampling.rollout` rows. Rewards are not clipped. The
# gradient norm is Ape-X's.
R2D2 = APEX_DQN | {
    "envs.reward_clip": None,
    "policy.core": "lstm", "policy.core_size": 512,
    "sampling.rollout": 40, "sampling.weights_period": 400,
    "learning.batch_size": 64, "learning.gamma": 0.997,
    "learning.optimizer": "adam", "learning.learning_rate": 1e-4, "learning.optimizer_eps": 1e-3,
    "replay.capacity": 4_000_000, "replay.n_step": 5, "replay.alpha": 0.9, "replay.beta": 0.6,
    "q.burn_in": 40, "q.sequence": 80, "q.rescale": True, "q.target_period": 2500,
}  # fmt: skip
# 10,000M frames.
_INPUTS = {"policy.previous_action": True, "policy.previous_reward": True}
R2D2_PAPER: ByObservations = {
    "images": _INPUTS | {"learning.total_steps": 2_500_000_000, "run.goal": None}, "vectors": _INPUTS | {"run.goal": None},
}  # fmt: skip
# Fewer and shorter sequences, so that a few cores make thousands of updates, and a smaller core.
R2D2_SMALL: ByObservations = {
    "images": {
        "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "sampling.rollout": 10, "sampling.weights_period": 20,
        "policy.core_size": 256,
        "learning.precision": "auto", "learning.batch_size": 16,
        "learning.learning_rate": 3e-4, "learning.optimizer_eps": 1e-5,
        "replay.capacity": 400_000, "replay.minimum": 10_000, "replay.samples_per_insert": 4.0, "replay.prefetch": 4,
        "q.burn_in": 10, "q.sequence": 20, "q.target_period": 200,
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

# Horgan et al. 2018, appendix D.
APEX_DPG = ON_A_REPLAY | {
    "sampling.rollout": 50, "sampling.weights_period": 100,
    "learning.batch_size": 256,
    "learning.optimizer": "adam", "learning.learning_rate": 1e-4, "learning.max_grad_norm": 40.0,
    "replay.capacity": 1_000_000, "replay.slack": 2.0, "replay.evict_alpha": -0.4,
    "q.target_period": 100,
}  # fmt: skip
DPG_PAPER = {"learning.gamma": 0.99, "run.goal": None}
# For a few cores instead of hundreds of actors; see `DQN_SMALL`.
DPG_SMALL: Settings = {
    "sampling.rollout": 25, "sampling.weights_period": 10,
    "learning.learning_rate": 1e-3,
    "replay.minimum": 2_000, "replay.samples_per_insert": 64.0,
}  # fmt: skip


def make_dqn(config: Config) -> Algorithm:
    """Ape-X DQN on transitions; with a recurrent core R2D2, on sequences."""
    from headrace.learning.apex_dqn import ApexDQN  # these import torch
    from headrace.learning.r2d2 import R2D2

    return ApexDQN(config) if config.policy.core == "none" else R2D2(config)


def check_dqn(config: Config) -> None:
    """Raise `ConfigError` for atoms that are no distribution, and for settings that have no meaning here."""
    q = config.q
    check_no_value_head(config)
    if q.atoms > 1 and not q.support[0] < q.support[1]:
        raise ConfigError(f"q.support is {q.support}; the first atom must be below the last")
    if q.atoms > 1 and config.policy.core != "none":
        raise ConfigError("sequences are learned with expected values: q.atoms must be 1 with a recurrent core")


def check_r2d2(config: Config) -> None:
    """Raise `ConfigError` without a recurrent core (that is Ape-X DQN), and for what Ape-X DQN refuses."""
    check_dqn(config)
    if config.policy.core == "none":
        raise ConfigError("learning.algorithm r2d2 needs a recurrent core (policy.core lstm or gru); without one use apex-dqn")


def dpg_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> Settings:
    """`paper`: the paper's settings; `small`: smaller ones where the environment observes vectors."""
    if preset == "paper":
        return APEX_DPG | DPG_PAPER
    return APEX_DPG | (DPG_SMALL if observations == "vectors" else {})


def check_dpg(config: Config) -> None:
    """Raise `ConfigError` for settings of the group `policy` that Ape-X DPG does not use, since it has networks of its own."""
    check_no_value_head(config)
    if config.policy.normalize_observations:
        raise ConfigError(
            "policy.normalize_observations has no effect on learning.algorithm apex-dpg: its networks see observations as they "
            "are. Leave it out"
        )
    if config.policy.core != "none":
        raise ConfigError(f"learning.algorithm apex-dpg has no recurrent core; policy.core is {config.policy.core}")


_UNUSED = (*UNUSED_ON_A_REPLAY, *OF_FALLING_EPSILON, *OF_DPG)
_UNUSED_BY_DPG = (
    *UNUSED_ON_A_REPLAY, *OF_LADDERS_AND_SEQUENCES, *OF_FALLING_EPSILON,
    "policy.", "learning.precision", "q.double", "q.dueling", "q.noisy", "q.atoms", "q.support",
)  # fmt: skip
DECLARATIONS = (
    Declaration("apex-dqn", make_dqn, "replay", by_preset(APEX_DQN, DQN_SMALL, DQN_PAPER), check_dqn, _UNUSED),
    Declaration("apex-dpg", class_of("apex_dpg", "ApexDPG"), "replay", dpg_defaults, check_dpg, _UNUSED_BY_DPG),
    Declaration("r2d2", make_dqn, "replay", by_preset(R2D2, R2D2_SMALL, R2D2_PAPER), check_r2d2, _UNUSED),
)
