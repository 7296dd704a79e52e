"""Where observations come from: the contract with the engine, the registry, one module per environment family.

Nothing in here imports torch: processes that only step environments stay small and start fast.
"""

from headrace.envs.contract import ActionSpec, ArraySpec, EnvGroup, EnvironmentFault, EnvSpec
from headrace.envs.registry import (
    defaults,
    describe,
    list_ids,
    make_env,
    make_group,
    make_vec,
    register,
    register_parallel,
    register_tensor,
    register_vector,
)

__all__ = [
    "ActionSpec",
    "ArraySpec",
    "EnvGroup",
    "EnvSpec",
    "EnvironmentFault",
    "defaults",
    "describe",
    "list_ids",
    "make_env",
    "make_group",
    "make_vec",
    "register",
    "register_parallel",
    "register_tensor",
    "register_vector",
]
