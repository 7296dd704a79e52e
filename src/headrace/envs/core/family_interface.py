"""How to add a family of environments: what a family's module declares.

A family is a module with a `FAMILY = Family(...)`. One line of `headrace.envs.core.registry.FAMILIES` gives its name, its module
and how to install what it needs. `headrace.envs.families.dm_control` is a short example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.config import EnvConfig
from headrace.envs.core.contract import EnvGroup, EnvSpec

if TYPE_CHECKING:  # imports torch
    from headrace.envs.groups.tensor import TensorEnv

Env: TypeAlias = gymnasium.Env[Any, Any]
ParallelEnv: TypeAlias = Any
"""A multi-agent environment with PettingZoo's interface of this name; `headrace.envs.groups.multi_agent` lists what is used."""
Observes: TypeAlias = Literal["images", "vectors"]


def kind_of(spec: EnvSpec) -> Observes:
    """What environments of this specification observe: "images" if one of their arrays is an image."""
    return "images" if any(array.is_image for array in spec.observation.values()) else "vectors"


@dataclass(frozen=True)
class Family:
    """What a family of environments offers. A registered environment is a family of its own, in which its name is its id."""

    make: Callable[..., Env] | None
    """``make(name, options, *, render_mode=None)``: one environment, with all settings except those of rewards applied. None:
    the family has no single environments."""
    defaults: Callable[[str], dict[str, Any]]
    """Default settings for training an environment, as dotted configuration overrides. Those of a multi-agent environment include
    `envs.num_agents`."""
    ids: Callable[[], list[str]] = list  # names within the family
    knows: Callable[[str], bool] | None = None
    """Whether there is an environment of this name, where `ids` does not list all: paths, say, and other packages' ids."""
    frameskip: int = 1  # simulator frames per step, unless `EnvConfig.frameskip` is set
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
    make_vector: Callable[[str, EnvConfig, int], VectorEnv | None] | None = None
    """From name, options and number: a vector environment of whole games that is faster than Gymnasium's `SyncVectorEnv`. None if
    there is none for this name or these options."""
    agreement: Callable[[Sequence[str], EnvConfig], dict[str, Any]] | None = None
    """From names and options: entries of `EnvConfig.kwargs` that give these environments the same spaces, so that one policy can
    learn all of them."""
