"""What acts: encoders, recurrent cores, heads and action distributions, put together by `Policy`.

Names are looked up when they are first used: a user's file that registers an environment and a network is imported by rollout
workers too, and those never load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.policies.registry import register_network

if TYPE_CHECKING:
    from headrace.policies.distributions import ActionDistribution
    from headrace.policies.policy import ActionHead, Policy, PolicyOutput

__all__ = ["ActionDistribution", "ActionHead", "Policy", "PolicyOutput", "register_network"]

_HOMES = {"ActionDistribution": "distributions", "ActionHead": "policy", "Policy": "policy", "PolicyOutput": "policy"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
