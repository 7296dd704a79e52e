"""Networks by name: what `policy.encoder` may be.

A network is made by one function, ``(observation, config) -> nn.Module``, with `observation` the `ArraySpec` of each named
observation (without the action mask) and `config` the `PolicyConfig`. The module maps ``dict[str, Tensor [N, ...]]`` (as the
environment gave them: images uint8, vectors normalised if the configuration says so) to features [N, F], and has F in its
attribute ``out_features``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.config import ConfigError, PolicyConfig
from headrace.envs.contract import ArraySpec

if TYPE_CHECKING:  # a user's file registers its network in rollout workers too, which have no use for torch
    from torch import nn

    MakeNetwork = Callable[[dict[str, ArraySpec], PolicyConfig], nn.Module]

_networks: dict[str, MakeNetwork] = {}


def register_network(name: str) -> Callable[[MakeNetwork], MakeNetwork]:
    """Decorator: make the network known as `name`. Raises `ValueError` if another function has the name."""

    def register(function: MakeNetwork) -> MakeNetwork:
        known = _networks.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"there is a network {name!r} already: {known.__module__}.{known.__qualname__}")
        _networks[name] = function
        return function

    return register


def network_names() -> list[str]:
    """All known names, sorted."""
    from headrace.policies import encoders  # noqa: F401  (registers the built-in ones)

    return sorted(_networks)


def make_network(observation: dict[str, ArraySpec], config: PolicyConfig) -> nn.Module:
    """The network that `config.encoder` names. Raises `ConfigError`, with the nearest names, if there is none."""
    names = network_names()
    if config.encoder not in names:
        near = difflib.get_close_matches(config.encoder, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"there is no network {config.encoder!r}; {hint}known: {', '.join(names)}")
    network = _networks[config.encoder](observation, config)
    out_features(network)
    return network


def out_features(network: nn.Module) -> int:
    """F of a network. Raises `ConfigError` if it has no such attribute."""
    width = getattr(network, "out_features", None)
    if not isinstance(width, int):
        raise ConfigError(f"the network {type(network).__name__} lacks the integer attribute out_features: its features per row")
    return width
