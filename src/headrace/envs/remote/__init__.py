"""Environments on other machines: servers that step environments, and groups whose environments are at a server.

`serve` offers a simulator's own environment in five lines (`examples/serve_my_env.py`); `headrace serve-envs` offers a registered
one. Nothing in here imports torch. docs/remote.md is the manual.
"""

from headrace.envs.registry import MissingExtra

try:
    import grpc  # noqa: F401
except ImportError as error:
    raise MissingExtra('environment servers need packages that are not installed: pip install "headrace[remote]"') from error

from headrace.envs.remote.server import serve

__all__ = ["serve"]
