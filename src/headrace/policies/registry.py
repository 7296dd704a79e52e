"""Networks by name: what `policy.encoder` may be.

A network is made by one function, ``(observation, config) -> nn.Module``, with `observation` the `ArraySpec` of each named
observation (without the action mask) and `config` the `PolicyConfig`. The module maps ``dict[str, Tensor [N, ...]]`` (as the
environment gave them: images uint8, vectors normalised if the configuration says so) to features [N, F], and has F in its
attribute ``out_features``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.config import ConfigError, PolicyConfig
from headrace.envs.core.contract import ArraySpec

if TYPE_CHECKING:  # rollout workers also import the user's file that registers a network, and they never load torch
    from torch import nn

    MakeNetwork = Callable[[dict[str, ArraySpec], PolicyConfig], nn.Module]

NETWORKS: dict[str, MakeNetwork] = {}
"""The built-in ones are there when `headrace.policies.encoders` is imported, which makes a network by its name."""


def register_network(name: str) -> Callable[[MakeNetwork], MakeNetwork]:
    """Decorator: make the network known as `name`. Raises `ConfigError` if another function has the name."""

    def register(function: MakeNetwork) -> MakeNetwork:
        known = NETWORKS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            where = f"{known.__module__}.{known.__qualname__}"
            raise ConfigError(f"there is a network {name!r} already: {where}; choose another name")
        NETWORKS[name] = function
        return function

    return register
