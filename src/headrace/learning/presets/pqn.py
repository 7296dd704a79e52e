"""PQN: Q-learning on trajectories."""

from __future__ import annotations

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import ByObservations, Declaration, Settings
from headrace.learning.presets.q_learning import OF_ACTORS, OF_APEX, SMALL_NETWORK, by_preset, check_no_value_head, class_of

PQN: Settings = {
    "policy.normalize_returns": False, "policy.separate_critic": False,
    "q.dueling": False, "q.noisy": False, "q.atoms": 1, "q.epsilon_first": 1.0,
    "learning.returns": "gae",  # targets are computed once, and rows are then independent samples
    "learning.reduction": "mean",
    "learning.optimizer": "adam", "learning.optimizer_eps": 1e-5, "learning.max_grad_norm": 10.0,
}  # fmt: skip
# Gallici et al. 2024 and their code (Atari; CartPole). The optimizer is RAdam there; docs/dqn.md has the other differences.
PAPER: ByObservations = {
    "images": {
        "envs.reward_clip": 1.0,
        "policy.encoder": "nature-conv", "policy.hidden": 512,
        "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 128, "sampling.rollout": 32,
        "learning.total_steps": 50_000_000,
        "learning.batch_size": 4096, "learning.num_epochs": 2, "learning.num_minibatches": 32, "learning.gamma": 0.99,
        "learning.learning_rate": 2.5e-4, "learning.lr_schedule": "constant", "learning.gae_lambda": 0.65,
        "q.epsilon_last": 0.001, "q.epsilon_decay": 0.1,
        "run.goal": None,
    },
    "vectors": {
        "envs.reward_scale": 0.1,
        "policy.mlp": [256], "policy.hidden": 256, "policy.activation": "relu", "policy.normalize_observations": False,
        "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 32, "sampling.rollout": 64,
        "learning.total_steps": 500_000,
        "learning.batch_size": 2048, "learning.num_epochs": 4, "learning.num_minibatches": 16, "learning.gamma": 0.99,
        "learning.learning_rate": 1e-4, "learning.lr_schedule": "linear", "learning.gae_lambda": 0.95,
        "q.epsilon_last": 0.2, "q.epsilon_decay": 0.2,
        "run.goal": None,
    },
}  # fmt: skip
# Fewer environments, and a learning rate that falls to 0: without it CartPole is learned and lost again.
SMALL: ByObservations = {
    "images": {
        "policy.hidden": 512,
        "sampling.rollout": 32,
        "learning.batch_size": 1024, "learning.num_epochs": 2, "learning.num_minibatches": 8,
        "learning.learning_rate": 2.5e-4, "learning.lr_schedule": "linear",
        "learning.gae_lambda": 0.65,
        "q.epsilon_last": 0.001, "q.epsilon_decay": 0.1,
    },
    "vectors": SMALL_NETWORK
    | {
        "sampling.rollout": 32,
        "learning.batch_size": 512, "learning.num_epochs": 4, "learning.num_minibatches": 4,
        "learning.learning_rate": 1e-3, "learning.lr_schedule": "linear",
        "learning.gae_lambda": 0.95,
        "q.epsilon_last": 0.01, "q.epsilon_decay": 0.2,
    },
}  # fmt: skip


def check(config: Config) -> None:
    """Raise `ConfigError` for atoms, noise and targets that it does not have: it learns expected values, explores by epsilon, and
    computes its targets once per batch."""
    check_no_value_head(config)
    if config.q.atoms > 1 or config.q.noisy:
        raise ConfigError("learning.algorithm pqn learns expected values and explores by epsilon: q.atoms must be 1, q.noisy off")
    if config.learning.returns != "gae":
        raise ConfigError("learning.algorithm pqn computes its targets once per batch: learning.returns must be gae")


_UNUSED = (*OF_ACTORS, *OF_APEX, "q.target_period", "q.double", "replay.")
# The linear layer behind the environment's own convolutions is the head's.
DECLARATIONS = (Declaration("pqn", class_of("pqn", "PQN"), "trajectories", by_preset(PQN, SMALL, PAPER), check, _UNUSED),)
