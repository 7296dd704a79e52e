"""``torch/CartPole-v1``: environments written in PyTorch, which are stepped where the policy acts (`headrace.envs.tensor`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import EnvConfig
from headrace.envs import gym
from headrace.envs.wrappers import Env

if TYPE_CHECKING:
    from headrace.envs.tensor import TensorEnv

FRAMESKIP = 1
OBSERVATIONS = "vectors"
CARTPOLE = "CartPole-v1"


def ids() -> list[str]:
    """The one environment."""
    return [CARTPOLE]


def knows(name: str) -> bool:
    """Whether it is that one."""
    return name == CARTPOLE


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One environment, to look at: Gymnasium's, whose dynamics are the same."""
    return gym.make(name, options, render_mode=render_mode)


def make_tensor(name: str, options: EnvConfig, num_envs: int, device: str) -> TensorEnv:
    """`num_envs` environments on the device; `envs.max_episode_steps` replaces the limit of 500 steps."""
    from headrace.envs.torch_cartpole import STEP_LIMIT, CartPole  # only processes that step it pay for importing torch

    return CartPole(num_envs, device, options.max_episode_steps or STEP_LIMIT)


def defaults(name: str) -> dict[str, Any]:
    """Those of Gymnasium's CartPole, with four times the environments and the batch: steps cost the same for many."""
    return gym.defaults(name) | {
        "sampling.placement": "device",
        "sampling.num_groups": 1,
        "sampling.envs_per_worker": 64,
        "learning.batch_size": 2048,
    }
