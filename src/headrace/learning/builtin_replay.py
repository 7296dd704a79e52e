"""What the built-in algorithms on a replay start with, and what they refuse: Ape-X, DQN and Rainbow, R2D2. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import Config, ConfigError, PolicyConfig
from headrace.learning.algorithm import Algorithm

ON_A_REPLAY: dict[str, Any] = {
    "policy.normalize_observations": False,
    "policy.normalize_returns": False,
    "policy.separate_critic": False,
    "learning.lr_schedule": "constant",
    "learning.num_epochs": 1,
    "learning.num_minibatches": 1,
}
"""Of all of them, whatever the environment's own algorithm has."""

# -- Ape-X, on a replay ------------------------------------------------------------------------------------------------

# Horgan et al. 2018, appendices C and D. Actors look for new weights every 400 frames = 100 steps.
APEX_DQN = ON_A_REPLAY | {
    "policy.encoder": "nature-conv",
    "policy.hidden": 512,
    "sampling.rollout": 50,
    "sampling.weights_period": 100,
    "replay.codec": "lz4",
    "learning.batch_size": 512,
    "learning.optimizer": "rmsprop-tf",
    "learning.learning_rate": 0.00025 / 4,
    "learning.optimizer_eps": 1.5e-7,
    "learning.rmsprop_alpha": 0.95,
    "learning.rmsprop_centered": True,
    "learning.max_grad_norm": 40.0,
}
APEX_DQN_PAPER: dict[str, dict[str, Any]] = {
    "images": {
        "envs.reward_clip": 1.0,
        "envs.max_episode_steps": 12_500,
        "learning.total_steps": 5_700_000_000,
        "learning.gamma": 0.99,
        "run.goal": None,
    },
    "vectors": {"learning.gamma": 0.99, "run.goal": None},
}
"""What `learning.preset paper` adds, by what the environment observes: training episodes of 50,000 frames, 22,800M frames."""
APEX_DPG = ON_A_REPLAY | {
    "sampling.rollout": 50,
    "sampling.weights_period": 100,
    "learning.batch_size": 256,
    "learning.optimizer": "adam",
    "learning.learning_rate": 1e-4,
    "learning.max_grad_norm": 40.0,
    "replay.capacity": 1_000_000,
    "replay.slack": 2.0,
    "replay.evict_alpha": -0.4,
    "q.target_period": 100,
}
"""The paper's settings (`learning.preset paper`)."""

# On top of that (`learning.preset small`): the paper's sizes are for hundreds of actors and days of Atari. A few cores step far
# fewer environments than one learner could take in, so every transition is learned from more often, the batches are smaller and
# the target network follows sooner.
APEX_DQN_SMALL: dict[str, dict[str, Any]] = {
    "images": {
        "sampling.num_workers": 1,
        "sampling.envs_per_worker": 16,
        "sampling.rollout": 20,
        "sampling.weights_period": 20,
        "learning.precision": "auto",
        "learning.batch_size": 128,
        "learning.optimizer": "adam",
        "learning.learning_rate": 2e-4,
        "learning.optimizer_eps": 1e-5,
        "learning.max_grad_norm": 10.0,
        "replay.capacity": 500_000,
        "replay.minimum": 10_000,
        "replay.samples_per_insert": 16.0,
        "replay.prefetch": 4,
        "q.target_period": 500,
    },
    "vectors": {
        "policy.mlp": [128],
        "policy.hidden": 128,
        "policy.activation": "relu",
        "sampling.rollout": 10,
        "sampling.weights_period": 10,
        "learning.batch_size": 128,
        "learning.optimizer": "adam",
        "learning.learning_rate": 1e-3,
        "learning.optimizer_eps": 1e-5,
        "replay.capacity": 100_000,
        "replay.minimum": 1_000,
        "replay.samples_per_insert": 32.0,
        "replay.codec": "none",
        "q.target_period": 50,
    },
}
APEX_DPG_SMALL: dict[str, dict[str, Any]] = {
    "images": {},
    "vectors": {
        "sampling.rollout": 25,
        "sampling.weights_period": 10,
        "learning.learning_rate": 1e-3,
        "replay.minimum": 2_000,
        "replay.samples_per_insert": 64.0,
    },
}
"""By what the environment observes."""

DUELING_ENCODERS = {"auto": "nature-conv", "nature-cnn": "nature-conv", "impala-shallow": "shallow-conv"}
"""The same convolutions without a linear layer, for dueling heads, whose streams each have one of their own."""


def _own_network(env_defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The environment's convolutions and its width, for dueling heads."""
    encoder = env_defaults.get("policy.encoder", PolicyConfig.encoder)
    return {
        "policy.encoder": DUELING_ENCODERS.get(encoder, encoder),
        "policy.hidden": env_defaults.get("policy.hidden", PolicyConfig.hidden),
    }


def apex_dqn_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """`paper`: the paper's settings; `small`: smaller ones, and the environment's own network."""
    if preset != "small":
        return APEX_DQN | APEX_DQN_PAPER[observations]
    return APEX_DQN | _own_network(env_defaults) | APEX_DQN_SMALL[observations]


def apex_dpg_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """`paper`: the paper's settings; `small`: smaller ones."""
    return APEX_DPG | (APEX_DPG_SMALL[observations] if preset == "small" else {"learning.gamma": 0.99, "run.goal": None})


# -- DQN and Rainbow ---------------------------------------------------------------------------------------------------

# Mnih et al. 2015, extended data table 1, and Hessel et al. 2018, table 1 and section 4. One update of 32 transitions follows 4
# steps, whatever the number of environments: 8 samples per transition.
DQN = ON_A_REPLAY | {
    "policy.encoder": "nature-conv",
    "policy.hidden": 512,
    "sampling.rollout": 4,
    "learning.batch_size": 32,
    "learning.gamma": 0.99,
    "replay.capacity": 1_000_000,
    "replay.samples_per_insert": 8.0,
    "q.double": False,
    "q.dueling": False,
    "q.noisy": False,
    "q.atoms": 1,
    "replay.n_step": 1,
    "replay.alpha": 0.0,
    "q.epsilon_first": 1.0,
}
DQN_PAPER = {
    "learning.optimizer": "rmsprop",
    "learning.learning_rate": 0.00025,
    "learning.rmsprop_alpha": 0.95,
    "learning.rmsprop_centered": True,
    "learning.optimizer_eps": 0.01,
    "learning.max_grad_norm": None,
    "learning.total_steps": 50_000_000,
    "replay.minimum": 50_000,
    "q.target_period": 10_000,
    "q.epsilon_last": 0.1,
    "q.epsilon_decay": 0.02,
    "run.goal": None,
}
RAINBOW = DQN | {
    "q.double": True,
    "q.dueling": True,
    "q.noisy": True,
    "q.atoms": 51,
    "q.support": (-10.0, 10.0),
    "replay.n_step": 3,
    "replay.alpha": 0.5,
    "replay.beta": 0.4,
    "q.epsilon_first": 0.0,
    "q.epsilon_last": 0.0,
}
RAINBOW_PAPER = {
    "learning.optimizer": "adam",
    "learning.learning_rate": 0.0000625,
    "learning.optimizer_eps": 1.5e-4,
    "learning.max_grad_norm": 10.0,
    "learning.total_steps": 50_000_000,
    "replay.minimum": 20_000,
    "q.target_period": 2_000,
    "run.goal": None,
}
DQN_SMALL: dict[str, dict[str, Any]] = {
    "images": {
        "sampling.num_workers": 1,
        "sampling.num_groups": 1,
        "sampling.envs_per_worker": 16,
        "learning.precision": "auto",
        "learning.batch_size": 128,
        "learning.optimizer": "adam",
        "learning.learning_rate": 2e-4,
        "learning.optimizer_eps": 1e-5,
        "learning.max_grad_norm": 10.0,
        "replay.capacity": 200_000,
        "replay.minimum": 10_000,
        "replay.samples_per_insert": 16.0,
        "q.target_period": 500,
        "q.epsilon_last": 0.01,
        "q.epsilon_decay": 0.02,
    },
    "vectors": {
        "sampling.num_workers": 1,
        "sampling.num_groups": 1,
        "sampling.envs_per_worker": 16,
        "policy.mlp": [128],
        "policy.hidden": 128,
        "policy.activation": "relu",
        "learning.batch_size": 128,
        "learning.optimizer": "adam",
        "learning.learning_rate": 1e-3,
        "learning.optimizer_eps": 1e-5,
        "learning.max_grad_norm": 10.0,
        "replay.capacity": 100_000,
        "replay.minimum": 1_000,
        "replay.samples_per_insert": 16.0,
        "q.target_period": 100,
        "q.epsilon_last": 0.02,
        "q.epsilon_decay": 0.02,
    },
}
"""`learning.preset small`, by what the environment observes. What makes Rainbow goes before it."""


def dqn_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """`paper`: the paper's settings; `small`: smaller ones, and the environment's own network."""
    return _dqn_settings(DQN, DQN_PAPER, observations, env_defaults, preset)


def rainbow_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """As `dqn_defaults`, with all parts of Rainbow."""
    return _dqn_settings(RAINBOW, RAINBOW_PAPER, observations, env_defaults, preset)


def _dqn_settings(
    own: dict[str, Any], paper: dict[str, Any], observations: str, env_defaults: Mapping[str, Any], preset: str
) -> dict[str, Any]:
    if preset != "small":
        return own | paper | ({"envs.reward_clip": 1.0} if observations == "images" else {})
    explores = {name: own[name] for name in ("q.epsilon_first", "q.epsilon_last") if name in own}
    return own | _own_network(env_defaults) | DQN_SMALL[observations] | explores


def make_dqn(config: Config) -> Algorithm:
    """DQN; Rainbow is settings of it."""
    from headrace.learning.dqn import DQN

    return DQN(config)


def check_dqn(config: Config) -> None:
    """It replays transitions."""
    check_apex_dqn(config)
    if config.policy.core != "none":
        raise ConfigError(
            f"learning.algorithm {config.learning.algorithm} replays single transitions; with a recurrent core (policy.core "
            f"{config.policy.core}) use r2d2"
        )


# -- R2D2: Ape-X DQN on sequences --------------------------------------------------------------------------------------

# Kapturowski et al. 2019, Table 2 and section 2.3.
R2D2 = APEX_DQN | {
    "envs.reward_clip": None,
    "policy.core": "lstm",
    "policy.core_size": 512,
    "sampling.rollout": 40,
    "sampling.weights_period": 400,
    "learning.batch_size": 64,
    "learning.gamma": 0.997,
    "learning.optimizer": "adam",
    "learning.learning_rate": 1e-4,
    "learning.optimizer_eps": 1e-3,
    "replay.capacity": 4_000_000,
    "replay.n_step": 5,
    "replay.alpha": 0.9,
    "replay.beta": 0.6,
    "q.burn_in": 40,
    "q.sequence": 80,
    "q.rescale": True,
    "q.target_period": 2500,
}
"""A sequence starts every `sampling.rollout` rows. Rewards are not clipped. The gradient norm is Ape-X's."""
R2D2_PAPER: dict[str, dict[str, Any]] = {
    "images": {"learning.total_steps": 2_500_000_000, "run.goal": None},
    "vectors": {"run.goal": None},
}
"""What `learning.preset paper` adds: 10,000M frames."""
R2D2_SMALL: dict[str, dict[str, Any]] = {
    "images": {
        "sampling.num_workers": 1,
        "sampling.envs_per_worker": 16,
        "sampling.weights_period": 20,
        "policy.core_size": 256,
        "learning.precision": "auto",
        "learning.batch_size": 16,
        "replay.capacity": 400_000,
        "replay.minimum": 10_000,
        "replay.samples_per_insert": 2.0,
        "replay.prefetch": 4,
        "q.target_period": 500,
    },
    "vectors": {
        "policy.mlp": [128],
        "policy.hidden": 128,
        "policy.core_size": 128,
        "policy.activation": "relu",
        "sampling.rollout": 10,
        "sampling.weights_period": 10,
        "learning.batch_size": 32,
        "learning.learning_rate": 1e-3,
        "replay.capacity": 100_000,
        "replay.minimum": 1_000,
        "replay.samples_per_insert": 8.0,
        "replay.codec": "none",
        "q.burn_in": 10,
        "q.sequence": 20,
        "q.target_period": 100,
    },
}
"""`learning.preset small`, by what the environment observes: fewer and on vectors shorter sequences, a smaller core."""


def r2d2_defaults(observations: str, env_defaults: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """`paper`: the paper's settings; `small`: smaller ones, and the environment's own convolutions."""
    if preset != "small":
        return R2D2 | R2D2_PAPER[observations]
    return R2D2 | _own_network(env_defaults) | R2D2_SMALL[observations]


def check_r2d2(config: Config) -> None:
    """Without a core it would be Ape-X DQN."""
    check_apex_dqn(config)
    if config.policy.core == "none":
        raise ConfigError("learning.algorithm r2d2 needs a recurrent core (policy.core lstm or gru); without one use apex-dqn")


def make_apex_dqn(config: Config) -> Algorithm:
    """Ape-X DQN on transitions; with a recurrent core R2D2, on sequences."""
    from headrace.learning.apex_dqn import ApexDQN
    from headrace.learning.r2d2 import R2D2

    return ApexDQN(config) if config.policy.core == "none" else R2D2(config)


def make_apex_dpg(config: Config) -> Algorithm:
    """Ape-X DPG."""
    from headrace.learning.apex_dpg import ApexDPG

    return ApexDPG(config)


def check_no_value_head(config: Config) -> None:
    """Settings of an actor's critic have no meaning for Q-functions."""
    name = config.learning.algorithm
    if config.policy.normalize_returns:
        raise ConfigError(
            f"policy.normalize_returns has no effect on learning.algorithm {name}: action values are not normalised. Leave it out"
        )
    if config.policy.separate_critic:
        raise ConfigError(f"policy.separate_critic has no effect on learning.algorithm {name}. Leave it out")


def check_apex_dqn(config: Config) -> None:
    """The atoms of the return's distribution."""
    q = config.q
    check_no_value_head(config)
    if q.atoms > 1 and not q.support[0] < q.support[1]:
        raise ConfigError(f"q.support is {q.support}; the first atom must be below the last")
    if q.atoms > 1 and config.policy.core != "none":
        raise ConfigError("sequences are learned with expected values: q.atoms must be 1 with a recurrent core")


def check_apex_dpg(config: Config) -> None:
    """It has networks of its own."""
    check_no_value_head(config)
    if config.policy.normalize_observations:
        raise ConfigError(
            "policy.normalize_observations has no effect on learning.algorithm apex-dpg: its networks see observations as they "
            "are. Leave it out"
        )
    if config.policy.core != "none":
        raise ConfigError(f"learning.algorithm apex-dpg has no recurrent core; policy.core is {config.policy.core}")
