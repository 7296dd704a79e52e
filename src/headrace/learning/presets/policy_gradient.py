"""APPO, PPO, IMPALA and A2C: policy gradients on trajectories.

Every preset has what an algorithm's name promises (`PROMISED`). `paper` adds the published numbers. `small` adds numbers that
learn within some hundred thousand steps: for PPO's clipped ratio those of the environment, which were tuned for it, or `CLIPPED`
where it has none; for the plain policy gradient `ONE_PASS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.config import Config, ConfigError, SamplingConfig
from headrace.learning.algorithm import Algorithm, ByObservations, Declaration, Defaults, Settings

# -- what the names promise ----------------------------------------------------------------------------------------------

_VTRACE: Settings = {"learning.returns": "vtrace", "learning.vtrace_rho": 1.0, "learning.vtrace_c": 1.0}
_PLAIN: Settings = {
    "learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.ppo_clip": None, "learning.value_clip": None,
    "learning.exploration": "entropy",
}  # fmt: skip
APPO: Settings = _VTRACE
PPO: Settings = {"learning.returns": "gae"}
IMPALA: Settings = _PLAIN | _VTRACE | {"learning.gae_lambda": 1.0, "policy.previous_action": True, "policy.previous_reward": True}
# n-step returns to the end of the trajectory are GAE with lambda 1.
A2C: Settings = _PLAIN | {"learning.returns": "gae", "learning.gae_lambda": 1.0}
PROMISED: Mapping[str, Settings] = {"appo": APPO, "ppo": PPO, "impala": IMPALA, "a2c": A2C}

# -- the published numbers -----------------------------------------------------------------------------------------------

_AS_IT_IS: Settings = {
    "policy.normalize_observations": False, "policy.normalize_returns": False, "policy.separate_critic": False,
    "policy.initial_std": 1.0,
    "learning.gamma": 0.99, "learning.value_clip": None, "learning.exploration": "entropy",
    "run.goal": None,
}  # fmt: skip
# Petrenko et al. 2020, Table A.5 (VizDoom).
APPO_PAPER: Settings = _AS_IT_IS | {
    "policy.core": "gru", "policy.core_size": 512,
    "sampling.rollout": 32,
    "learning.gae_lambda": 1.0,  # the paper has none
    "learning.batch_size": 2048, "learning.num_epochs": 1, "learning.num_minibatches": 1,
    "learning.ppo_clip": 0.1, "learning.value_coef": 0.5, "learning.entropy_coef": 0.003, "learning.normalize_advantages": True,
    "learning.reduction": "mean",
    "learning.optimizer": "adam", "learning.learning_rate": 1e-4, "learning.lr_schedule": "constant",
    "learning.adam_betas": (0.9, 0.999), "learning.optimizer_eps": 1e-6, "learning.max_grad_norm": 4.0,
}  # fmt: skip
# Schulman et al. 2017, Table 5 (Atari) and Table 3 (MuJoCo). What they leave open is OpenAI Baselines' ppo2.
_PPO_PAPER: Settings = _AS_IT_IS | {
    "sampling.num_workers": 1, "sampling.num_groups": 1,
    "learning.gae_lambda": 0.95, "learning.normalize_advantages": True, "learning.reduction": "mean",
    "learning.optimizer": "adam", "learning.lr_schedule": "linear", "learning.adam_betas": (0.9, 0.999),
    "learning.optimizer_eps": 1e-5, "learning.max_grad_norm": 0.5,
}  # fmt: skip
PPO_PAPER: ByObservations = {
    "images": _PPO_PAPER
    | {
        "envs.reward_clip": 1.0,
        "policy.encoder": "nature-cnn", "policy.hidden": 512,
        "sampling.envs_per_worker": 8, "sampling.rollout": 128,
        "learning.total_steps": 10_000_000,
        "learning.batch_size": 1024, "learning.num_epochs": 3, "learning.num_minibatches": 4,
        "learning.learning_rate": 2.5e-4, "learning.ppo_clip": 0.1,
        "learning.value_coef": 2.0,  # the paper's loss of 1 (V - v)^2
        "learning.entropy_coef": 0.01,
    },
    "vectors": _PPO_PAPER
    | {
        "policy.mlp": [64, 64], "policy.activation": "tanh", "policy.separate_critic": True,
        "sampling.envs_per_worker": 1, "sampling.rollout": 2048,
        "learning.total_steps": 1_000_000,
        "learning.batch_size": 2048, "learning.num_epochs": 10, "learning.num_minibatches": 32,
        "learning.learning_rate": 3e-4, "learning.lr_schedule": "constant", "learning.ppo_clip": 0.2,
        "learning.value_coef": 0.5, "learning.entropy_coef": 0.0,
    },
}  # fmt: skip
# Espeholt et al. 2018, Table G.1 (Atari). A batch is 32 trajectories of 20 steps.
IMPALA_PAPER: Settings = _AS_IT_IS | {
    "envs.reward_clip": 1.0,
    "sampling.rollout": 20,
    "learning.batch_size": 640, "learning.value_coef": 0.5, "learning.entropy_coef": 0.01,
    "learning.normalize_advantages": False,
    "learning.reduction": "sum",
    "learning.optimizer": "rmsprop-tf", "learning.learning_rate": 6e-4, "learning.lr_schedule": "linear",
    "learning.rmsprop_alpha": 0.99, "learning.rmsprop_centered": False, "learning.optimizer_eps": 0.01,
    "learning.max_grad_norm": 40.0,
}  # fmt: skip
# The function `learn` of OpenAI Baselines' a2c.py; its value loss has no factor of 0.5 of its own. 16 environments: run_atari.
A2C_PAPER: Settings = _AS_IT_IS | {
    "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 16, "sampling.rollout": 5,
    "learning.total_steps": 80_000_000,
    "learning.batch_size": 80, "learning.value_coef": 1.0, "learning.entropy_coef": 0.01, "learning.normalize_advantages": False,
    "learning.reduction": "mean",
    "learning.optimizer": "rmsprop-tf", "learning.learning_rate": 7e-4, "learning.lr_schedule": "linear",
    "learning.rmsprop_alpha": 0.99, "learning.rmsprop_centered": False, "learning.optimizer_eps": 1e-5,
    "learning.max_grad_norm": 0.5,
}  # fmt: skip
_SHALLOW: Settings = {"policy.encoder": "impala-shallow", "policy.hidden": 256, "learning.total_steps": 50_000_000}
_NATURE: Settings = {"policy.encoder": "nature-cnn", "policy.hidden": 512}
PAPER: Mapping[str, ByObservations] = {
    "appo": {"images": APPO_PAPER, "vectors": APPO_PAPER},
    "ppo": PPO_PAPER,
    "impala": {"images": IMPALA_PAPER | _SHALLOW, "vectors": IMPALA_PAPER},
    "a2c": {"images": A2C_PAPER | _NATURE, "vectors": A2C_PAPER},
}

# -- numbers for a few cores ---------------------------------------------------------------------------------------------

# For environments without a learning rate of their own: several passes over minibatches. The sizes suit the usual number of
# environments, 32.
_CLIPPED: Settings = {
    "policy.normalize_returns": True,
    "learning.num_epochs": 4, "learning.num_minibatches": 4,
    "learning.optimizer_eps": 1e-5, "learning.max_grad_norm": 0.5,
}  # fmt: skip
CLIPPED: ByObservations = {
    "images": _CLIPPED  # Schulman et al. 2017, Table 5
    | {
        "learning.batch_size": 1024,
        "learning.learning_rate": 2.5e-4, "learning.ppo_clip": 0.1, "learning.entropy_coef": 0.01,
        "learning.precision": "auto",
    },
    "vectors": _CLIPPED
    | {
        "policy.activation": "tanh", "policy.normalize_observations": True,
        "sampling.rollout": 64,
        "learning.batch_size": 2048, "learning.num_epochs": 8, "learning.num_minibatches": 16,
        "learning.learning_rate": 5e-4, "learning.lr_schedule": "linear", "learning.ppo_clip": 0.2,
        "learning.entropy_coef": 0.003,
    },
}  # fmt: skip
# One pass over a batch is one optimizer step. With IMPALA's published numbers a run of 500,000 steps makes 781 of them, each of
# them small: the policy hardly moves. So batches are small here, and steps as large as a learning rate that falls allows. With
# normalised advantages the entropy's weight means the same whatever rewards are.
_ONE_PASS: Settings = {
    "learning.value_coef": 0.5, "learning.entropy_coef": 0.01,
    "learning.normalize_advantages": True, "learning.reduction": "mean",
    "learning.optimizer": "adam", "learning.lr_schedule": "linear", "learning.optimizer_eps": 1e-5,
    "learning.max_grad_norm": 0.5,
}  # fmt: skip
ONE_PASS: ByObservations = {
    # Over fewer steps the rate is near 0 before IMPALA has learned Pong (docs/results.md). The learning rate is that of Pong;
    # where the environment declares one, its own: with 1e-3 the policy of VizDoom basic is deterministic after 20,000 steps.
    "images": _ONE_PASS | {"learning.learning_rate": 1e-3, "learning.total_steps": 8_000_000},
    # With ReLU the entropy of continuous actions falls far below that of uniform ones at once, and comes back late.
    "vectors": _ONE_PASS
    | {
        "policy.activation": "tanh", "policy.normalize_observations": True, "policy.normalize_returns": True,
        "learning.learning_rate": 2e-3,
    },
}  # fmt: skip
LENGTH = {"impala": 20, "a2c": 16}
"""Steps of a trajectory. A batch has 8 trajectories, or those of one group where its environments are more."""


SHORT = 32
"""Steps of `appo`'s trajectories of images where an environment has a multiple of them. Minibatches are whole trajectories with
V-trace: of Pong's 128 steps a minibatch has two, and the policy had learned nothing after 450,000 steps."""


def _clipped(name: str) -> Defaults:
    """Of PPO's clipped ratio, see the module."""

    def defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> Settings:
        if preset == "paper":
            return PAPER[name][observations] | PROMISED[name]
        own = dict(PROMISED[name])
        if name == "appo" and observations == "images" and env_defaults.get("sampling.rollout", SHORT) % SHORT == 0:
            own["sampling.rollout"] = SHORT
        if env_defaults.get("learning.ppo_clip", ...) is None:  # tuned for the plain policy gradient
            own["learning.ppo_clip"] = CLIPPED[observations]["learning.ppo_clip"]
        if "learning.learning_rate" in env_defaults:
            return own
        return {setting: x for setting, x in CLIPPED[observations].items() if setting not in env_defaults} | own

    return defaults


def _plain(name: str) -> Defaults:
    """Of the plain policy gradient, see the module. The environment's network stays, and of images its learning rate."""

    def defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> Settings:
        if preset == "paper":
            return PAPER[name][observations] | PROMISED[name]
        kept = ("policy.", "learning.learning_rate") if observations == "images" else "policy."
        own = {setting: x for setting, x in env_defaults.items() if setting.startswith(kept)}
        group = env_defaults.get("sampling.envs_per_worker", SamplingConfig.envs_per_worker) // env_defaults.get(
            "sampling.num_groups", SamplingConfig.num_groups
        )
        sizes = {"sampling.rollout": LENGTH[name], "learning.batch_size": LENGTH[name] * group * max(1, 8 // group)}
        return ONE_PASS[observations] | sizes | own | PROMISED[name]

    return defaults


def make(config: Config) -> Algorithm:
    from headrace.learning.policy_gradient import PolicyGradient  # imports torch

    return PolicyGradient()


def check(config: Config) -> None:
    """Raise `ConfigError` for a separate critic with a recurrent core, for truncations that V-trace cannot have, and for standard
    deviations that a policy cannot have (`LOG_STD_RANGE` of `headrace.policies.distributions`, which imports torch)."""
    c, std = config.learning, config.policy.initial_std
    if config.policy.separate_critic and config.policy.core != "none":
        raise ConfigError("policy.separate_critic is for networks without a recurrent core: set it to false or core to none")
    if c.vtrace_rho < c.vtrace_c:
        raise ConfigError(f"learning.vtrace_rho ({c.vtrace_rho}) must not be below vtrace_c ({c.vtrace_c}) (IMPALA, section 4.1)")
    if not -5.0 <= math.log(std) <= 2.0:
        raise ConfigError(f"policy.initial_std is {std:g}; standard deviations of a policy are between 0.0068 and 7.38")


DECLARATIONS = tuple(
    Declaration(name, make, "trajectories", (_plain if name in ("impala", "a2c") else _clipped)(name), check, ("q.", "replay."))
    for name in PROMISED
)
