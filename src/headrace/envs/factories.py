"""What makes environments: the functions that a user registers, and the contents of a family's module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.config import EnvConfig
from headrace.envs.contract import EnvGroup
from headrace.envs.multi_agent import ParallelEnv

if TYPE_CHECKING:
    from headrace.envs.tensor import TensorEnv

Env = gymnasium.Env[Any, Any]


class EnvFactory(Protocol):
    """The function that makes a user's environment."""

    def __call__(self, options: EnvConfig, *, render_mode: str | None = None) -> Env:
        """Make one environment. The settings for frame skip, images, frame stack and step limit are applied to the result."""


class VectorFactory(Protocol):
    """The function that makes a user's vectorised environment."""

    def __call__(self, options: EnvConfig, num_envs: int) -> VectorEnv:
        """Make `num_envs` environments that are stepped together; ``metadata["autoreset_mode"]`` must be set."""


class TensorFactory(Protocol):
    """The function that makes a user's environments of tensors."""

    def __call__(self, options: EnvConfig, num_envs: int, device: str) -> TensorEnv:
        """Make `num_envs` environments on the device ("cpu", "cuda", "cuda:1"); see `headrace.envs.tensor.TensorEnv`."""


class ParallelFactory(Protocol):
    """The function that makes a user's multi-agent environment."""

    def __call__(self, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv:
        """Make one environment (one match) with PettingZoo's ParallelEnv interface; see `headrace.envs.multi_agent`."""


class Family(Protocol):
    """The contents of an environment family's module. `agreement`, `make_group`, `make_mixed_group`, `make_parallel`,
    `make_tensor`, `make_vector` and `observes` are optional. A registered environment is a family of its own (`registered`)."""

    FRAMESKIP: int
    """Simulator frames per step, unless `EnvConfig.frameskip` is set."""
    OBSERVATIONS: Literal["images", "vectors"]
    """What its environments observe: defaults of algorithms depend on it. A family of both kinds has `observes`, too."""

    def ids(self) -> list[str]:
        """Names within the family."""

    def knows(self, name: str) -> bool:
        """Whether `make` accepts this name (more than `ids` lists: paths, other packages' ids)."""

    def make(self, name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
        """One environment, with all settings applied."""

    def make_group(
        self, name: str, options: EnvConfig, num_envs: int, *, training: bool, threads: int | None, device: str | None
    ) -> EnvGroup:
        """Environments stepped together, if the family has a faster way than one after the other.

        `training`: episodes may end before the game does; otherwise episodes are whole games. `threads`,
        `device`: see `headrace.envs.registry.make_group`.
        """

    def agreement(self, names: Sequence[str], options: EnvConfig) -> dict[str, Any]:
        """Entries of `EnvConfig.kwargs` with which these environments have the same spaces, as tasks of one policy."""

    def make_mixed_group(
        self, names: Sequence[str], options: EnvConfig, num_envs: int, *, training: bool, threads: int | None, device: str | None
    ) -> EnvGroup | None:
        """Environments of several names in one batch: environment i has name i modulo their number. None: with these options the
        family cannot."""

    def make_parallel(self, name: str, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv | None:
        """One multi-agent environment with all settings but those of rewards applied; None where this name has one agent. Its
        `defaults` have `envs.num_agents`."""

    def make_tensor(self, name: str, options: EnvConfig, num_envs: int, device: str) -> TensorEnv:
        """Environments of tensors, for a family that has them. Reward settings are applied to the result."""

    def make_vector(self, name: str, options: EnvConfig, num_envs: int) -> VectorEnv:
        """A Gymnasium vector environment of whole games, if the family has a faster one than Gymnasium's own."""

    def observes(self, name: str) -> Literal["images", "vectors"]:
        """What this environment observes, where that differs from `OBSERVATIONS`."""

    def defaults(self, name: str) -> dict[str, Any]:
        """Dotted configuration overrides with which this environment is learned without further settings."""
