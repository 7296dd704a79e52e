"""``torch/CartPole-v1``: environments written in PyTorch, which run on the policy's device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import EnvConfig
from headrace.envs.core.family_interface import Family
from headrace.envs.core.wrappers import check_applied
from headrace.envs.families import gym

if TYPE_CHECKING:
    from headrace.envs.groups.tensor import TensorEnv

CARTPOLE = "CartPole-v1"


def make_tensor(name: str, options: EnvConfig, num_envs: int, device: str) -> TensorEnv:
    """`num_envs` environments on the device; `envs.max_episode_steps` replaces the limit of 500 steps. Raises
    `ConfigError` for other settings of `preprocess`."""
    from headrace.envs.families.torch_cartpole import STEP_LIMIT, CartPole  # imports torch

    check_applied(f"torch/{name}", options, ["max_episode_steps"])
    return CartPole(num_envs, device, options.max_episode_steps or STEP_LIMIT)


def defaults(name: str) -> dict[str, Any]:
    """The defaults of Gymnasium's CartPole with four times the environments and the batch, since a step costs hardly more."""
    return gym.defaults(name) | {
        "sampling.placement": "device", "sampling.num_groups": 1, "sampling.envs_per_worker": 64, "learning.batch_size": 2048,
    }  # fmt: skip


FAMILY = Family(
    gym.make,  # for evaluation and video: Gymnasium's has the same dynamics
    defaults,
    lambda: [CARTPOLE],
    observes=lambda name: "vectors",
    make_tensor=make_tensor,
)
