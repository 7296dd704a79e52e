"""Where a run's settings start: the base, the environment's defaults, the algorithm's preset; the user's flags come on top."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace import config as configs
from headrace.config import Config
from headrace.envs.registry import check_id, defaults, import_files

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

VECTOR_REPLAY: dict[str, dict[str, Any]] = {
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
}
"""On top of that, where observations are vectors and a desk's processor does it all: the paper's sizes are for days of Atari."""


def make_config(env: str, algorithm: str | None = None, imports: Iterable[str] = (), **settings: Any) -> Config:
    """The configuration that `headrace train --env ENV` starts from, with dotted `settings` replaced.

    `algorithm` None: the environment's own choice. Raises `ConfigError` for unknown environments and settings.

        make_config("gym/CartPole-v1", **{"learning.total_steps": 100_000})
    """
    imports = tuple(str(path) for path in imports)
    import_files(imports)
    check_id(env)
    base = Config(env=env, imports=imports)
    of_env = dict(defaults(env))
    algorithm = algorithm or settings.get("learning.algorithm") or of_env.get("learning.algorithm", "appo")
    preset = dict(ALGORITHMS.get(algorithm, {}))
    if env.split("/")[0] in ("gym", "dm_control"):
        preset |= VECTOR_REPLAY.get(algorithm, {})
    return configs.override(base, **{**of_env, **preset, "learning.algorithm": algorithm, **settings})
