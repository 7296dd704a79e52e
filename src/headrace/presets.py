"""Where a run's settings start: the base, the environment's defaults, the algorithm's preset; the user's flags come on top."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace import config as configs
from headrace.config import REPLAY_ALGORITHMS, Config
from headrace.envs.registry import check_id, defaults, import_files, with_absolute_path

ALGORITHMS: dict[str, dict[str, Any]] = {
    "appo": {},
    "ppo": {"learning.returns": "gae"},
    # IMPALA, table G.1; torch's RMSProp adds epsilon outside the square root, TensorFlow's inside, hence not the paper's 0.01
    "impala": {
        "learning.ppo_clip": None,
        "learning.num_epochs": 1,
        "learning.normalize_advantages": False,
        "learning.optimizer": "rmsprop",
        "learning.learning_rate": 6e-4,
        "learning.optimizer_eps": 1e-3,
        "learning.entropy_coef": 0.01,
        "learning.max_grad_norm": 40.0,
    },
    "a2c": {
        "learning.ppo_clip": None,
        "learning.num_epochs": 1,
        "learning.num_minibatches": 1,
        "learning.returns": "gae",
        "learning.gae_lambda": 1.0,
        "learning.normalize_advantages": False,
        "learning.optimizer": "rmsprop",
        "learning.learning_rate": 7e-4,
        "learning.optimizer_eps": 1e-5,
        "learning.entropy_coef": 0.01,
        "learning.max_grad_norm": 0.5,
    },
    # Ape-X, appendices C and D. Actors look for new weights every 400 frames = 100 steps.
    "apex-dqn": {
        "policy.encoder": "nature-conv",
        "policy.hidden": 512,
        "sampling.rollout": 50,
        "sampling.weights_period": 100,
        "replay.codec": "lz4",
        "learning.batch_size": 512,
        "learning.optimizer": "rmsprop",
        "learning.learning_rate": 0.00025 / 4,
        "learning.lr_schedule": "constant",
        "learning.optimizer_eps": 1.5e-7,
        "learning.rmsprop_alpha": 0.95,
        "learning.rmsprop_centered": True,
        "learning.max_grad_norm": 40.0,
        "learning.num_epochs": 1,
        "learning.num_minibatches": 1,
    },
    "apex-dpg": {
        "policy.normalize_observations": False,
        "policy.normalize_returns": False,
        "sampling.rollout": 50,
        "sampling.weights_period": 100,
        "learning.lr_schedule": "constant",
        "learning.batch_size": 256,
        "learning.optimizer": "adam",
        "learning.learning_rate": 1e-4,
        "learning.max_grad_norm": 40.0,
        "learning.num_epochs": 1,
        "learning.num_minibatches": 1,
        "replay.capacity": 1_000_000,
        "replay.slack": 2.0,
        "replay.evict_alpha": -0.4,
        "q.target_period": 100,
    },
}
"""What an algorithm's name stands for, as dotted settings."""

SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "images": {
        "apex-dqn": {
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
    },
    "vectors": {
        "apex-dqn": {
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
        "apex-dpg": {
            "sampling.rollout": 25,
            "sampling.weights_period": 10,
            "learning.learning_rate": 1e-3,
            "replay.minimum": 2_000,
            "replay.samples_per_insert": 64.0,
        },
    },
}
"""On top of that (`learning.preset small`), by kind of observation: the paper's sizes are for hundreds of actors and days of
Atari. A few cores step far fewer environments than one learner could take in, so every transition is learned from more often, the
batches are smaller and the target network follows sooner."""

DUELING_ENCODERS = {"auto": "nature-conv", "nature-cnn": "nature-conv", "impala-shallow": "shallow-conv"}
"""The same convolutions without a linear layer, for dueling heads, whose streams each have one of their own."""


def make_config(env: str, algorithm: str | None = None, imports: Iterable[str] = (), **settings: Any) -> Config:
    """The configuration that `headrace train --env ENV` starts from, with dotted `settings` replaced.

    `algorithm` None: the environment's own choice. Raises `ConfigError` for unknown environments and settings.

        make_config("gym/CartPole-v1", **{"learning.total_steps": 100_000})
    """
    imports = tuple(str(path) for path in imports)
    import_files(imports)
    check_id(env)
    env = with_absolute_path(env)
    base = Config(env=env, imports=imports)
    of_env = dict(defaults(env))
    algorithm = algorithm or settings.get("learning.algorithm") or of_env.get("learning.algorithm", "appo")
    preset = dict(ALGORITHMS.get(algorithm, {}))
    if settings.get("learning.preset", base.learning.preset) == "small" and algorithm in REPLAY_ALGORITHMS:
        observations = "vectors" if env.split("/")[0] in ("gym", "dm_control") else "images"
        if algorithm == "apex-dqn":  # the environment's own network
            encoder = of_env.get("policy.encoder", base.policy.encoder)
            preset["policy.encoder"] = DUELING_ENCODERS.get(encoder, encoder)
            preset["policy.hidden"] = of_env.get("policy.hidden", base.policy.hidden)
        preset |= SMALL[observations].get(algorithm, {})
    return configs.override(base, **{**of_env, **preset, "learning.algorithm": algorithm, **settings})
