"""Environments on other machines: servers that step environments, and groups whose environments a server steps.

`serve` serves a simulator's own environment in five lines (`examples/serve_my_env.py`), `headrace serve-envs` a registered one.
This package does not import torch. docs/remote.md is the manual.
"""

import headrace.transport  # noqa: F401  sets an environment variable that gRPC reads on import
from headrace.config.errors import package

package("grpc", "remote", "environment servers need packages that are not installed")

from headrace.envs.remote.server import serve  # noqa: E402

__all__ = ["serve"]
