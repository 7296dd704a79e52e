"""Environments that a user has registered: each is a family of its own, in which its name is its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gymnasium.vector import VectorEnv

from headrace.config import ConfigError, EnvConfig
from headrace.envs.contract import EnvGroup
from headrace.envs.factories import Env
from headrace.envs.multi_agent import ParallelEnv
from headrace.envs.vector_group import vector_group
from headrace.envs.wrappers import preprocess


class Registered:
    """What the families of all kinds have (`headrace.envs.factories.Family`); they differ in what they make.

    Args:
        factory: the user's function.
        by_import: it was registered by a file of `import_files`, which another process can import too.
    """

    FRAMESKIP = 1
    OBSERVATIONS: Literal["images", "vectors"] = "images"
    kind = ""
    """For messages."""

    def __init__(self, factory: Any, defaults: Mapping[str, Any], by_import: bool) -> None:
        self.factory, self.by_import, self._defaults = factory, by_import, dict(defaults)

    def defaults(self, name: str) -> dict[str, Any]:
        return dict(self._defaults)

    def make(self, name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
        raise ConfigError(f"{name} is registered as {self.kind}; there is no single environment to make")


class RegisteredEnv(Registered):
    """`factory` is an `EnvFactory`."""

    def make(self, name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
        return preprocess(self.factory(options, render_mode=render_mode), options)


class RegisteredVector(Registered):
    """`factory` is a `VectorFactory`."""

    kind = "a vector environment"

    def make_vector(self, name: str, options: EnvConfig, num_envs: int) -> VectorEnv:
        return self.factory(options, num_envs)

    def make_group(self, name: str, options: EnvConfig, num_envs: int, **_: Any) -> EnvGroup:
        return vector_group(self.factory(options, num_envs), options, name)


class _WithoutVector(Registered):
    def make_vector(self, name: str, options: EnvConfig, num_envs: int) -> VectorEnv:
        raise ConfigError(f"{name} is registered as {self.kind}; there is no gymnasium.vector.VectorEnv to make")


class RegisteredTensor(_WithoutVector):
    """`factory` is a `TensorFactory`."""

    kind = "environments of tensors"

    def make_tensor(self, name: str, options: EnvConfig, num_envs: int, device: str) -> Any:
        return self.factory(options, num_envs, device)


class RegisteredParallel(_WithoutVector):
    """`factory` is a `ParallelFactory`."""

    kind = "a multi-agent environment"

    def make_parallel(self, name: str, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv:
        made = self.factory(options, render_mode=render_mode)
        if hasattr(made, "agent_iter"):  # PettingZoo's AECEnv: agents take turns
            from headrace.envs.pettingzoo import parallel

            return parallel(made)
        return made
