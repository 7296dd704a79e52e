"""What learns: the mathematics (V-trace, GAE, losses, Q-learning), the algorithms, and the learner that runs them.

`register_algorithm` makes a user's algorithm known; importing it does not import torch. Importing this package makes the
built-in algorithms known.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.learning import presets as presets
from headrace.learning.algorithm import Algorithm, register_algorithm

if TYPE_CHECKING:
    from headrace.learning.policy_gradient import PolicyGradient

__all__ = ["Algorithm", "PolicyGradient", "register_algorithm"]


def __getattr__(name: str) -> Any:
    if name != "PolicyGradient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("headrace.learning.policy_gradient").PolicyGradient  # imports torch
