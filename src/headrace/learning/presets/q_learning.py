"""What the presets of all algorithms that learn action values have in common: settings, networks, checks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from headrace.config import Config, ConfigError, PolicyConfig
from headrace.learning.algorithm import Algorithm, ByObservations, Defaults, Settings

# Of all algorithms on a replay, whatever the environment's own algorithm has.
ON_A_REPLAY: Settings = {
    "policy.normalize_observations": False, "policy.normalize_returns": False, "policy.separate_critic": False,
    "learning.lr_schedule": "constant",
    "learning.num_epochs": 1, "learning.num_minibatches": 1,
}  # fmt: skip
SMALL_NETWORK: Settings = {"policy.mlp": [128], "policy.hidden": 128, "policy.activation": "relu"}  # for vectors
OF_ACTORS = (
    "learning.ppo_clip", "learning.value_clip", "learning.value_coef", "learning.entropy_coef", "learning.exploration",
    "learning.normalize_advantages", "learning.vtrace_rho", "learning.vtrace_c", "policy.initial_std",
)  # fmt: skip
"""Settings of algorithms with a policy and a critic, which have no effect on action values."""
UNUSED_ON_A_REPLAY = (*OF_ACTORS, "learning.returns", "learning.gae_lambda", "learning.max_policy_lag", "learning.reduction")
OF_FALLING_EPSILON = ("q.epsilon_first", "q.epsilon_last", "q.epsilon_decay")
OF_LADDERS_AND_SEQUENCES = ("q.epsilon", "q.epsilon_alpha", "q.epsilon_levels", "q.burn_in", "q.sequence", "q.rescale")
"""Settings of Ape-X DQN and R2D2 alone: exploration rates that differ between environments, and replayed sequences."""
OF_DPG = ("q.noise", "q.actor_layers", "q.critic_layers")
OF_APEX = (*OF_LADDERS_AND_SEQUENCES, *OF_DPG)
CONVOLUTIONS = {"auto": "nature-conv", "nature-cnn": "nature-conv", "impala-shallow": "shallow-conv"}
"""The same convolutions without a linear layer, for heads whose streams each have one of their own."""


def class_of(module: str, name: str) -> Callable[[Config], Algorithm]:
    """`Declaration.make` for a class in a module of `headrace.learning`, which is only imported then: it imports torch."""
    return lambda config: getattr(importlib.import_module(f"headrace.learning.{module}"), name)(config)


def by_preset(always: Settings, small: ByObservations, paper: ByObservations) -> Defaults:
    """Defaults in layers. Preset `paper`: `always`, then `paper`. Otherwise: `always`, the convolutions and
    the width that the environment declares, then `small`. Later layers override earlier ones."""

    def defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> Settings:
        if preset == "paper":
            return always | paper[observations]
        encoder = env_defaults.get("policy.encoder", PolicyConfig.encoder)
        network = {"policy.encoder": CONVOLUTIONS.get(encoder, encoder)}
        network["policy.hidden"] = env_defaults.get("policy.hidden", PolicyConfig.hidden)
        return always | network | small[observations]

    return defaults


def check_no_value_head(config: Config) -> None:
    """Raise `ConfigError` for settings of an actor's critic, which have no meaning for action values."""
    name = config.learning.algorithm
    if config.policy.normalize_returns:
        raise ConfigError(
            f"policy.normalize_returns has no effect on learning.algorithm {name}: action values are not normalised. Leave it out"
        )
    if config.policy.separate_critic:
        raise ConfigError(f"policy.separate_critic has no effect on learning.algorithm {name}. Leave it out")
