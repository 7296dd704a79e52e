"""DQN and Rainbow: one algorithm with different settings."""

from __future__ import annotations

from headrace.config import Config, ConfigError
from headrace.learning.algorithm import ByObservations, Declaration, Settings
from headrace.learning.presets import apex
from headrace.learning.presets.q_learning import OF_APEX, ON_A_REPLAY, SMALL_NETWORK, UNUSED_ON_A_REPLAY, by_preset, class_of

# Mnih et al. 2015, extended data table 1, and Hessel et al. 2018, table 1 and section 4. One update of 32 transitions follows 4
# steps, whatever the number of environments: 8 samples per transition.
DQN: Settings = ON_A_REPLAY | {
    "policy.encoder": "nature-conv", "policy.hidden": 512,
    "sampling.rollout": 4,
    "learning.batch_size": 32, "learning.gamma": 0.99,
    "replay.capacity": 1_000_000, "replay.samples_per_insert": 8.0,
    "q.double": False, "q.dueling": False, "q.noisy": False, "q.atoms": 1,
    "replay.n_step": 1, "replay.alpha": 0.0,
    "q.epsilon_first": 1.0,
}  # fmt: skip
DQN_PAPER: Settings = {
    "learning.optimizer": "rmsprop-tf", "learning.learning_rate": 0.00025, "learning.rmsprop_alpha": 0.95,
    "learning.rmsprop_centered": True, "learning.optimizer_eps": 0.01, "learning.max_grad_norm": None,
    "learning.total_steps": 50_000_000,
    "replay.minimum": 50_000,
    "q.target_period": 10_000, "q.epsilon_last": 0.1, "q.epsilon_decay": 0.02,
    "run.goal": None,
}  # fmt: skip
RAINBOW: Settings = DQN | {
    "q.double": True, "q.dueling": True, "q.noisy": True, "q.atoms": 51, "q.support": (-10.0, 10.0),
    "replay.n_step": 3, "replay.alpha": 0.5, "replay.beta": 0.4,
    "q.epsilon_first": 0.0, "q.epsilon_last": 0.0,
}  # fmt: skip
RAINBOW_PAPER: Settings = {
    "learning.optimizer": "adam", "learning.learning_rate": 0.0000625, "learning.optimizer_eps": 1.5e-4,
    "learning.max_grad_norm": 10.0,
    "learning.total_steps": 50_000_000,
    "replay.minimum": 20_000,
    "q.target_period": 2_000,
    "run.goal": None,
}  # fmt: skip
_SMALL: Settings = {
    "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 16,
    "learning.batch_size": 128,
    "learning.optimizer": "adam", "learning.optimizer_eps": 1e-5, "learning.max_grad_norm": 10.0,
    "replay.samples_per_insert": 16.0,
    "q.epsilon_decay": 0.02,
}  # fmt: skip
SMALL: ByObservations = {
    "images": _SMALL
    | {
        "learning.precision": "auto",
        "learning.learning_rate": 2e-4,
        "replay.capacity": 200_000, "replay.minimum": 10_000,
        "q.target_period": 500, "q.epsilon_last": 0.01,
    },
    "vectors": _SMALL
    | SMALL_NETWORK
    | {
        "learning.learning_rate": 1e-3,
        "replay.capacity": 100_000, "replay.minimum": 1_000,
        "q.target_period": 100, "q.epsilon_last": 0.02,
    },
}  # fmt: skip
RAINBOW_SMALL: ByObservations = {
    # Without noisy layers, as in Dopamine (Castro et al. 2018): with them Pong is at -20.7 after 275 K steps, and MinAtar's
    # Breakout at 5.6 after 120 K instead of 7.7.
    "images": SMALL["images"] | {"q.noisy": False, "q.epsilon_first": 1.0, "replay.samples_per_insert": 8.0},
    # Rewards of 1 a step are worth up to 100 with a discount of 0.99. From -10 to 10 all good states of CartPole have the value
    # 10: its return rises to 343 and falls to 103.
    "vectors": SMALL["vectors"] | {"q.epsilon_last": 0.0, "q.support": (-100.0, 100.0)},
}


def _with_clipped_rewards(paper: Settings) -> ByObservations:
    """The papers clip the rewards of Atari."""
    return {"images": paper | {"envs.reward_clip": 1.0}, "vectors": paper}


def check(config: Config) -> None:
    """Raise `ConfigError` for a recurrent core, which needs sequences, and for what Ape-X DQN refuses."""
    apex.check_dqn(config)
    if config.policy.core != "none":
        raise ConfigError(
            f"learning.algorithm {config.learning.algorithm} replays single transitions; with a recurrent core (policy.core "
            f"{config.policy.core}) use r2d2"
        )


_MADE = class_of("dqn", "DQN")  # with those parts of Rainbow that the settings switch on
_UNUSED = (*UNUSED_ON_A_REPLAY, *OF_APEX)
DECLARATIONS = (
    Declaration("dqn", _MADE, "replay", by_preset(DQN, SMALL, _with_clipped_rewards(DQN_PAPER)), check, _UNUSED),
    Declaration(
        "rainbow", _MADE, "replay", by_preset(RAINBOW, RAINBOW_SMALL, _with_clipped_rewards(RAINBOW_PAPER)), check, _UNUSED
    ),
)
