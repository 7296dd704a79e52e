"""Environments on other machines: servers that step environments, and groups whose environments are at a server.

`serve` offers a simulator's own environment in five lines (`examples/serve_my_env.py`); `headrace serve-envs` offers a registered
one. Nothing in here imports torch. docs/remote.md is the manual.
"""

import os

from headrace.envs.registry import MissingExtra

# gRPC's handlers of fork start its threads again in the child. With `subprocess` and a `preexec_fn` that child has closed their
# descriptors already, and dies before the program it should become has begun (github.com/grpc/grpc/pull/43157): an encoder of
# videos, an environment's own helper. Nothing here uses gRPC on both sides of a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
try:
    import grpc  # noqa: F401
except ImportError as error:
    raise MissingExtra('environment servers need packages that are not installed: pip install "headrace[remote]"') from error

from headrace.envs.remote.server import serve

__all__ = ["serve"]
