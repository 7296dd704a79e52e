"""Ape-X DPG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import Algorithm, Declaration
from headrace.learning.presets.q_learning import ON_A_REPLAY, Settings, check_no_value_head

# Horgan et al. 2018, appendix D.
APEX_DPG = ON_A_REPLAY | {
    "sampling.rollout": 50, "sampling.weights_period": 100,
    "learning.batch_size": 256,
    "learning.optimizer": "adam", "learning.learning_rate": 1e-4, "learning.max_grad_norm": 40.0,
    "replay.capacity": 1_000_000, "replay.slack": 2.0, "replay.evict_alpha": -0.4,
    "q.target_period": 100,
}  # fmt: skip
PAPER = {"learning.gamma": 0.99, "run.goal": None}
# For a few cores instead of hundreds of actors; see `apex_dqn.SMALL`.
SMALL: Settings = {
    "sampling.rollout": 25, "sampling.weights_period": 10,
    "learning.learning_rate": 1e-3,
    "replay.minimum": 2_000, "replay.samples_per_insert": 64.0,
}  # fmt: skip


def defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> Settings:
    """`paper`: the paper's settings; `small`: smaller ones where the environment observes vectors."""
    if preset == "paper":
        return APEX_DPG | PAPER
    return APEX_DPG | (SMALL if observations == "vectors" else {})


def make(config: Config) -> Algorithm:
    """Ape-X DPG."""
    from headrace.learning.apex_dpg import ApexDPG  # imports torch

    return ApexDPG(config)


def check(config: Config) -> None:
    """Raise `ConfigError` for settings of networks that it does not use: it has networks of its own."""
    check_no_value_head(config)
    if config.policy.normalize_observations:
        raise ConfigError(
            "policy.normalize_observations has no effect on learning.algorithm apex-dpg: its networks see observations as they "
            "are. Leave it out"
        )
    if config.policy.core != "none":
        raise ConfigError(f"learning.algorithm apex-dpg has no recurrent core; policy.core is {config.policy.core}")


DECLARATIONS = (Declaration("apex-dpg", make, "replay", defaults, check),)
