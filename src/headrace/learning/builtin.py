"""The built-in algorithms' declarations: what they learn from, what their settings start with, what they refuse. No torch.

Those on a replay are in `headrace.learning.builtin_replay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import Config, ConfigError, PolicyConfig
from headrace.learning import builtin_replay as replay
from headrace.learning.algorithm import Algorithm, Declaration, declare

# -- policy gradients on trajectories ----------------------------------------------------------------------------------

# What makes the algorithm, whatever an environment's own defaults say.
APPO = {"learning.returns": "vtrace", "learning.gae_lambda": 1.0, "learning.vtrace_rho": 1.0, "learning.vtrace_c": 1.0}
"""V-trace as in Petrenko et al. 2020, Table A.5; its other numbers are the settings' own defaults, which environments tune."""
PPO = {"learning.returns": "gae"}
IMPALA = {
    "envs.reward_clip": 1.0,
    "sampling.rollout": 20,
    "learning.batch_size": 640,
    "learning.num_epochs": 1,
    "learning.num_minibatches": 1,
    "learning.gamma": 0.99,
    "learning.returns": "vtrace",
    "learning.gae_lambda": 1.0,
    "learning.vtrace_rho": 1.0,
    "learning.vtrace_c": 1.0,
    "learning.ppo_clip": None,
    "learning.value_clip": None,
    "learning.value_coef": 0.5,
    "learning.exploration": "entropy",
    "learning.entropy_coef": 0.01,
    "learning.normalize_advantages": False,
    "policy.normalize_returns": False,
    "learning.reduction": "sum",
    "learning.optimizer": "rmsprop-tf",
    "learning.learning_rate": 6e-4,
    "learning.lr_schedule": "linear",
    "learning.rmsprop_alpha": 0.99,
    "learning.rmsprop_centered": False,
    "learning.optimizer_eps": 0.01,
    "learning.max_grad_norm": 40.0,
}
"""Espeholt et al. 2018, Table G.1 (Atari). A batch is 32 trajectories of 20 steps."""
A2C = {
    "learning.num_epochs": 1,
    "learning.num_minibatches": 1,
    "learning.returns": "gae",
    "learning.gae_lambda": 1.0,
    "learning.ppo_clip": None,
    "learning.value_clip": None,
    "learning.normalize_advantages": False,
    "learning.reduction": "mean",
    "learning.optimizer": "rmsprop",
    "learning.learning_rate": 7e-4,
    "learning.optimizer_eps": 1e-5,
    "learning.rmsprop_alpha": 0.99,
    "learning.rmsprop_centered": False,
    "learning.entropy_coef": 0.01,
    "learning.max_grad_norm": 0.5,
}
"""n-step returns to the end of the trajectory (GAE with lambda 1), with the numbers of OpenAI Baselines' a2c."""


def make_policy_gradient(config: Config) -> Algorithm:
    """APPO, PPO, IMPALA and A2C: one algorithm, of which they are settings."""
    from headrace.learning.policy_gradient import PolicyGradient

    return PolicyGradient()


def check_policy_gradient(config: Config) -> None:
    """V-trace's truncations, and a critic's own network."""
    c = config.learning
    if config.policy.separate_critic and config.policy.core != "none":
        raise ConfigError("policy.separate_critic is for networks without a recurrent core: set it to false or core to none")
    if c.vtrace_rho < c.vtrace_c:
        raise ConfigError(f"learning.vtrace_rho ({c.vtrace_rho}) must not be below vtrace_c ({c.vtrace_c}) (IMPALA, section 4.1)")


# -- PQN: Q-learning on trajectories -----------------------------------------------------------------------------------

PQN = {
    "policy.normalize_returns": False,
    "policy.separate_critic": False,
    "q.dueling": False,
    "q.noisy": False,
    "q.atoms": 1,
    "learning.returns": "gae",  # targets are computed once, and rows are then independent samples
    "learning.reduction": "mean",
    "learning.optimizer": "adam",
    "learning.optimizer_eps": 1e-5,
    "learning.max_grad_norm": 10.0,
}
PQN_BY_OBSERVATIONS: dict[str, dict[str, Any]] = {
    "images": {
        "policy.hidden": 512,
        "learning.num_epochs": 2,
        "learning.num_minibatches": 8,
        "learning.learning_rate": 2.5e-4,
        "learning.gae_lambda": 0.65,
        "q.epsilon_last": 0.001,
        "q.epsilon_decay": 0.1,
    },
    "vectors": {
        "policy.mlp": [128],
        "policy.hidden": 128,
        "policy.activation": "relu",
        "learning.num_epochs": 4,
        "learning.num_minibatches": 4,
        "learning.learning_rate": 1e-3,
        "learning.gae_lambda": 0.95,
        "q.epsilon_last": 0.01,
        "q.epsilon_decay": 0.2,
    },
}
"""Gallici et al. 2024 (Atari; small tasks), except for the optimizer, which is RAdam there, and the number of environments."""


def pqn_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """The environment's own convolutions; the linear layer behind them is the head's."""
    encoder = env_defaults.get("policy.encoder", PolicyConfig.encoder)
    return PQN | PQN_BY_OBSERVATIONS[observations] | {"policy.encoder": replay.DUELING_ENCODERS.get(encoder, encoder)}


def make_pqn(config: Config) -> Algorithm:
    """PQN."""
    from headrace.learning.pqn import PQN as algorithm

    return algorithm(config)


def check_pqn(config: Config) -> None:
    """It learns expected values, and explores by epsilon alone."""
    replay.check_no_value_head(config)
    if config.q.atoms > 1 or config.q.noisy:
        raise ConfigError("learning.algorithm pqn learns expected values and explores by epsilon: q.atoms must be 1, q.noisy off")
    if config.learning.returns != "gae":
        raise ConfigError("learning.algorithm pqn computes its targets once per batch: learning.returns must be gae")


_DECLARATIONS = (
    Declaration("appo", make_policy_gradient, "trajectories", APPO, check_policy_gradient),
    Declaration("ppo", make_policy_gradient, "trajectories", PPO, check_policy_gradient),
    Declaration("impala", make_policy_gradient, "trajectories", IMPALA, check_policy_gradient),
    Declaration("a2c", make_policy_gradient, "trajectories", A2C, check_policy_gradient),
    Declaration("apex-dqn", replay.make_apex_dqn, "replay", replay.apex_dqn_defaults, replay.check_apex_dqn),
    Declaration("apex-dpg", replay.make_apex_dpg, "replay", replay.apex_dpg_defaults, replay.check_apex_dpg),
    Declaration("pqn", make_pqn, "trajectories", pqn_defaults, check_pqn),
    Declaration("r2d2", replay.make_apex_dqn, "replay", replay.r2d2_defaults, replay.check_r2d2),
    Declaration("dqn", replay.make_dqn, "replay", replay.dqn_defaults, replay.check_dqn),
    Declaration("rainbow", replay.make_dqn, "replay", replay.rainbow_defaults, replay.check_dqn),
)
NAMES = tuple(declaration.name for declaration in _DECLARATIONS)

for _declaration in _DECLARATIONS:
    declare(_declaration)
