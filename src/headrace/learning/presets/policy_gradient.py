"""APPO, PPO, IMPALA and A2C: policy gradients on trajectories. A setting that is not here is the environment's or the default."""

from __future__ import annotations

from typing import Any

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import Algorithm, Declaration

# V-trace as in Petrenko et al. 2020, Table A.5. Its other numbers are the settings' own defaults, which environments tune.
APPO = {"learning.returns": "vtrace", "learning.gae_lambda": 1.0, "learning.vtrace_rho": 1.0, "learning.vtrace_c": 1.0}
PPO = {"learning.returns": "gae"}
# Espeholt et al. 2018, Table G.1 (Atari). A batch is 32 trajectories of 20 steps.
IMPALA = {
    "envs.reward_clip": 1.0,
    "policy.previous_action": True, "policy.previous_reward": True,
    "sampling.rollout": 20,
    "learning.batch_size": 640, "learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.gamma": 0.99,
    "learning.returns": "vtrace", "learning.gae_lambda": 1.0, "learning.vtrace_rho": 1.0, "learning.vtrace_c": 1.0,
    "learning.ppo_clip": None, "learning.value_clip": None, "learning.value_coef": 0.5, "learning.exploration": "entropy",
    "learning.entropy_coef": 0.01, "learning.normalize_advantages": False,
    "policy.normalize_returns": False,
    "learning.reduction": "sum",
    "learning.optimizer": "rmsprop-tf", "learning.learning_rate": 6e-4, "learning.lr_schedule": "linear",
    "learning.rmsprop_alpha": 0.99, "learning.rmsprop_centered": False, "learning.optimizer_eps": 0.01,
    "learning.max_grad_norm": 40.0,
}  # fmt: skip
# n-step returns to the end of the trajectory (GAE with lambda 1), with the numbers of OpenAI Baselines' a2c.
A2C = {
    "learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.returns": "gae", "learning.gae_lambda": 1.0,
    "learning.ppo_clip": None, "learning.value_clip": None, "learning.normalize_advantages": False, "learning.reduction": "mean",
    "learning.optimizer": "rmsprop", "learning.learning_rate": 7e-4, "learning.optimizer_eps": 1e-5,
    "learning.rmsprop_alpha": 0.99, "learning.rmsprop_centered": False,
    "learning.entropy_coef": 0.01,
    "learning.max_grad_norm": 0.5,
}  # fmt: skip


def make(config: Config) -> Algorithm:
    """The one algorithm behind the four names."""
    from headrace.learning.policy_gradient import PolicyGradient  # imports torch

    return PolicyGradient()


def check(config: Config) -> None:
    """Raise `ConfigError` for a separate critic with a recurrent core, and for truncations that V-trace cannot have."""
    c = config.learning
    if config.policy.separate_critic and config.policy.core != "none":
        raise ConfigError("policy.separate_critic is for networks without a recurrent core: set it to false or core to none")
    if c.vtrace_rho < c.vtrace_c:
        raise ConfigError(f"learning.vtrace_rho ({c.vtrace_rho}) must not be below vtrace_c ({c.vtrace_c}) (IMPALA, section 4.1)")


_DEFAULTS: dict[str, dict[str, Any]] = {"appo": APPO, "ppo": PPO, "impala": IMPALA, "a2c": A2C}
DECLARATIONS = tuple(Declaration(name, make, "trajectories", defaults, check) for name, defaults in _DEFAULTS.items())
