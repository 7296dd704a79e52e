"""How to add a family of environments: what a family's module declares, and what users' own functions return.

A family is a module with a `FAMILY = Family(...)`. One line of `headrace.envs.core.registry.FAMILIES` gives its name, its module
and how to install what it needs. `headrace.envs.families.dm_control` is a short example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.config import EnvConfig
from headrace.envs.core.contract import EnvGroup, EnvSpec

if TYPE_CHECKING:  # imports torch
    from headrace.envs.groups.tensor import TensorEnv

Env: TypeAlias = gymnasium.Env[Any, Any]
Observes: TypeAlias = Literal["images", "vectors"]


def kind_of(spec: EnvSpec) -> Observes:
    """What environments of this specification observe: "images" if one of their arrays is an image."""
    return "images" if any(array.is_image for array in spec.observation.values()) else "vectors"


# -- what users' functions make -----------------------------------------------------------------------------------------


class ParallelEnv(Protocol):
    """The part of PettingZoo's interface that is used."""

    possible_agents: list[Any]
    agents: list[Any]

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """The agent's observation space; it must not change."""
        ...

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """The agent's action space; it must not change."""
        ...

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """Begin a match: observations, infos."""
        ...

    def step(
        self, actions: dict[Any, Any]
    ) -> tuple[Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any]]:
        """Take the actions of the agents that act: observations, rewards, terminations, truncations, infos."""
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...


# -- a family -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """What a family of environments offers: at least `make` and `defaults`. A registered environment is a family of its own, in
    which its name is its id."""

    make: Callable[..., Env]
    """``make(name, options, *, render_mode=None)``: one environment, with all settings except those of rewards applied."""
    defaults: Callable[[str], dict[str, Any]]
    """Default settings for training an environment, as dotted configuration overrides. Those of a multi-agent environment include
    `envs.num_agents`."""
    ids: Callable[[], list[str]] = list
    """Names within the family."""
    knows: Callable[[str], bool] = lambda name: True
    """Whether `make` accepts a name; also true for names that `ids` does not list, such as paths and other packages' ids."""
    frameskip: int = 1
    """Simulator frames per step, unless `EnvConfig.frameskip` is set."""
    observes: Callable[[str], Observes | None] = lambda name: "images"
    """Whether an environment observes images or vectors; the defaults of algorithms depend on it. None: its spaces tell."""
    code: Callable[[str], Sequence[str]] = lambda name: ()
    """The files and modules that another process imports to know this environment, beyond what its id names. Raises `ConfigError`
    if no import helps."""

    make_group: Callable[..., EnvGroup] | None = None
    """``make_group(name, options, num_envs, *, training, threads, device)``: a group that is faster than stepping one
    environment after the other. `training`: episodes may end before the game does; otherwise episodes are whole games.
    `threads`, `device`: see `headrace.envs.make.make_group`."""
    make_mixed_group: Callable[..., EnvGroup | None] | None = None
    """The same for a sequence of names: environment i has name i modulo their number. Returns None if the options rule it out."""
    make_parallel: Callable[..., ParallelEnv | None] | None = None
    """``make_parallel(name, options, *, render_mode=None)``: one multi-agent environment, or an AECEnv of PettingZoo, with all
    settings except those of rewards applied; None if this name is a single-agent environment."""
    make_tensor: Callable[[str, EnvConfig, int, str], TensorEnv] | None = None
    """From name, options, number and device: tensor environments. Reward settings are applied to the result."""
    make_vector: Callable[[str, EnvConfig, int], VectorEnv] | None = None
    """From name, options and number: a vector environment of whole games that is faster than Gymnasium's `SyncVectorEnv`."""
    agreement: Callable[[Sequence[str], EnvConfig], dict[str, Any]] | None = None
    """From names and options: entries of `EnvConfig.kwargs` that give these environments the same spaces, so that one policy can
    learn all of them."""
