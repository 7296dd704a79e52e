"""What acts: encoders, recurrent cores, heads and action distributions, put together by `make_policy`.

Names are imported when first asked for: `register_network` alone needs no torch.
"""

import importlib
from typing import Any

_MODULES = {
    "ActionDistribution": "distributions",
    "Policy": "policy",
    "PolicyOutput": "policy",
    "make_policy": "policy",
    "register_network": "registry",
}
__all__ = ["ActionDistribution", "Policy", "PolicyOutput", "make_policy", "register_network"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
