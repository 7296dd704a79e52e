"""``gym/<id>``: every environment registered with Gymnasium, also by other packages (``gym/package:Name-v0``)."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from headrace.config import ConfigError, EnvConfig
from headrace.envs.wrappers import Env, preprocess, render_without_screen

FRAMESKIP = 1
OBSERVATIONS = "vectors"

_MUJOCO = "gymnasium.envs.mujoco"
_SKIPPED = ("GymV2", "phys2d/", "tabular/")
"""Adapters to other packages, and environments that need JAX."""


def ids() -> list[str]:
    """The newest version of each id in Gymnasium's registry."""
    newest: dict[str, int] = {}
    for env_id in gymnasium.registry:
        base, _, version = env_id.rpartition("-v")
        if base and not env_id.startswith(_SKIPPED):
            newest[base] = max(newest.get(base, 0), int(version))
    return [f"{base}-v{version}" for base, version in newest.items()]


def knows(name: str) -> bool:
    """Whether Gymnasium has this id. Any ``package:Name-v0`` counts, since looking it up would import the package."""
    if name.startswith("ALE/"):
        _register_atari()
    return name in gymnasium.registry or ":" in name


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """`gymnasium.make` with the settings applied; `options.kwargs` go to the environment's constructor."""
    if name.startswith("ALE/"):
        _register_atari()
    if _is_mujoco(name):
        render_without_screen()
    kwargs: dict[str, Any] = dict(options.kwargs)
    if options.max_episode_steps is not None:
        kwargs["max_episode_steps"] = -1  # Gymnasium's own limit counts frames; ours, outside the frame skip, steps
    try:
        env = gymnasium.make(name, render_mode=render_mode, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        advice = 'pip install "headrace[mujoco]"' if _is_mujoco(name) else str(error)
        raise ConfigError(f"gym/{name} needs packages that are not installed: {advice}") from error
    return preprocess(env, options)


def _is_mujoco(name: str) -> bool:
    known = gymnasium.registry.get(name)
    return known is not None and str(known.entry_point).startswith(_MUJOCO)


def _register_atari() -> None:
    import ale_py

    gymnasium.register_envs(ale_py)


def defaults(name: str) -> dict[str, Any]:
    """Small networks, since observations are vectors, and one thread, since more cost more than they gain with small networks."""
    if _is_mujoco(name) or re.match("(BipedalWalker|LunarLander|Pendulum|MountainCarContinuous)", name):
        return {
            "learning.num_threads": 1,
            "policy.mlp": [64, 64],
            "policy.activation": "tanh",
            "policy.normalize_observations": True,
            "policy.normalize_returns": True,
            "learning.learning_rate": 3e-4,
            "learning.ppo_clip": 0.2,
            "learning.entropy_coef": 0.0,
            "learning.num_epochs": 4,
            "learning.num_minibatches": 4,
            "learning.max_grad_norm": 1.0,
            "learning.algorithm": "ppo",
            "sampling.rollout": 64,
        }
    # Short horizons and many passes over small batches: CartPole in some 130,000 steps.
    return {
        "policy.mlp": [64, 64],
        "policy.activation": "tanh",
        "sampling.num_workers": 1,
        "sampling.envs_per_worker": 16,
        "learning.total_steps": 500_000,
        "learning.batch_size": 512,
        "learning.num_minibatches": 4,
        "learning.num_epochs": 8,
        "learning.learning_rate": 1e-3,
        "learning.algorithm": "ppo",
        "learning.gamma": 0.98,
        "learning.gae_lambda": 0.9,
        "learning.ppo_clip": 0.2,
        "learning.entropy_coef": 0.0,
        "learning.max_grad_norm": 0.5,
        "learning.num_threads": 1,
    }
