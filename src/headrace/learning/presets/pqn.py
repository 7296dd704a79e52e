"""PQN: Q-learning on trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import Algorithm, Declaration
from headrace.learning.presets.q_learning import SMALL_NETWORK, ByObservations, Settings, check_no_value_head, own_network

# Gallici et al. 2024 (Atari; small tasks), except for the optimizer, which is RAdam there, and the number of environments.
PQN: Settings = {
    "policy.normalize_returns": False, "policy.separate_critic": False,
    "q.dueling": False, "q.noisy": False, "q.atoms": 1,
    "learning.returns": "gae",  # targets are computed once, and rows are then independent samples
    "learning.reduction": "mean",
    "learning.optimizer": "adam", "learning.optimizer_eps": 1e-5, "learning.max_grad_norm": 10.0,
}  # fmt: skip
BY_OBSERVATIONS: ByObservations = {
    "images": {
        "policy.hidden": 512,
        "learning.num_epochs": 2, "learning.num_minibatches": 8,
        "learning.learning_rate": 2.5e-4,
        "learning.gae_lambda": 0.65,
        "q.epsilon_last": 0.001, "q.epsilon_decay": 0.1,
    },
    "vectors": SMALL_NETWORK
    | {
        "learning.num_epochs": 4, "learning.num_minibatches": 4,
        "learning.learning_rate": 1e-3,
        "learning.gae_lambda": 0.95,
        "q.epsilon_last": 0.01, "q.epsilon_decay": 0.2,
    },
}  # fmt: skip


def defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> Settings:
    """In both presets the environment's own convolutions; the linear layer behind them is the head's."""
    return PQN | own_network(env_defaults) | BY_OBSERVATIONS[observations]


def make(config: Config) -> Algorithm:
    """PQN."""
    from headrace.learning.pqn import PQN  # imports torch

    return PQN(config)


def check(config: Config) -> None:
    """Raise `ConfigError` for atoms, noise and targets that it does not have: it learns expected values, explores by epsilon, and
    computes its targets once per batch."""
    check_no_value_head(config)
    if config.q.atoms > 1 or config.q.noisy:
        raise ConfigError("learning.algorithm pqn learns expected values and explores by epsilon: q.atoms must be 1, q.noisy off")
    if config.learning.returns != "gae":
        raise ConfigError("learning.algorithm pqn computes its targets once per batch: learning.returns must be gae")


DECLARATIONS = (Declaration("pqn", make, "trajectories", defaults, check),)
