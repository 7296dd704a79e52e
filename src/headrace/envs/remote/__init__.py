"""Environments on other machines: servers that step environments, and groups whose environments a server steps.

`serve` serves a simulator's own environment in five lines (`examples/serve_my_env.py`), `headrace serve-envs` a registered one.
This package does not import torch. docs/remote.md is the manual.
"""

import headrace.transport  # noqa: F401  sets an environment variable that gRPC reads on import
from headrace.envs.core.errors import MissingExtra

try:
    import grpc  # noqa: F401
except ImportError as error:
    raise MissingExtra('environment servers need packages that are not installed: pip install "headrace[remote]"') from error

from headrace.envs.remote.server import serve

__all__ = ["serve"]
