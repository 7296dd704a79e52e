"""What the algorithms have in common, seen from the actors and the learner, and which algorithm a configuration means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from headrace.config import REPLAY_ALGORITHMS, Config, ConfigError, LearningConfig
from headrace.envs.contract import ArraySpec, EnvSpec


class Algorithm(Protocol):
    """One algorithm: its network, how it acts, what it minimises.

    On CUDA `act`, `prepare` and `loss` are recorded as graphs: they must not wait for the device (`.item()`, boolean indexing),
    and what they do in Python is done only while recording. `learning.graphs` turns that off.
    """

    def make_model(self, spec: EnvSpec, config: Config) -> nn.Module:
        """A freshly initialised model with the attribute `core_width` (S)."""
        ...

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        """Fields of the slab, beyond the common ones, that `act` writes."""
        ...

    def act(
        self, model: nn.Module, obs: dict[str, Tensor], core: Tensor, first: Tensor, envs: Tensor, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Actions and other fields for N rows; see `headrace.sampling.actor.Act`."""
        ...

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        """Once per batch, before its epochs, without gradient: add to `batch` what they need."""
        ...

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one minibatch and its statistics (scalars by metric name)."""
        ...


_FACTORIES: dict[str, Callable[[Config], Algorithm]] = {}


def register_algorithm(name: str) -> Callable[[Callable[[Config], Algorithm]], Callable[[Config], Algorithm]]:
    """Decorator for a function that makes an algorithm for a configuration; `learning.algorithm` selects it by name."""

    def register(factory: Callable[[Config], Algorithm]) -> Callable[[Config], Algorithm]:
        _FACTORIES[name] = factory
        return factory

    return register


def make_algorithm(config: Config) -> Algorithm:
    """The algorithm that the configuration names. Raises `ConfigError` with the known names if there is none."""
    from headrace.learning.policy_gradient import PolicyGradient

    name = config.learning.algorithm
    if name in ("appo", "ppo", "impala", "a2c"):
        return PolicyGradient()
    if name == "apex-dqn":
        from headrace.learning.apex_dqn import ApexDQN
        from headrace.learning.r2d2 import R2D2

        return ApexDQN(config) if config.policy.core == "none" else R2D2(config)
    if name == "apex-dpg":
        from headrace.learning.apex_dpg import ApexDPG

        return ApexDPG(config)
    if name in _FACTORIES:
        return _FACTORIES[name](config)
    known = ", ".join(["appo", "ppo", "impala", "a2c", *REPLAY_ALGORITHMS, *_FACTORIES])
    raise ConfigError(f"learning.algorithm {name!r} is unknown; there are: {known}")
