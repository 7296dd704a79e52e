"""Environments: `core` holds the contract, the specifications and the registry, `make` makes environments, `groups` steps several
together. `families`, `atari` and `vizdoom` are the built-in environments; `remote` steps environments on other machines.

Importing this package does not import torch: processes that only step environments stay small and start fast.
"""

from headrace.envs.core.contract import ActionSpec, ArraySpec, EnvGroup, EnvSpec
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.core.registry import list_ids, register, register_parallel, register_tensor, register_vector
from headrace.envs.core.settings import defaults
from headrace.envs.make import describe, describe_run, make_env, make_group, make_vec

__all__ = [
    "ActionSpec", "ArraySpec", "EnvGroup", "EnvSpec", "EnvironmentFault",
    "defaults", "describe", "describe_run", "list_ids", "make_env", "make_group", "make_vec",
    "register", "register_parallel", "register_tensor", "register_vector",
]  # fmt: skip
