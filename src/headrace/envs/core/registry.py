"""Environment ids: ``family/name`` for the built-in families, any other id for environments that the user registers.

    gym/CartPole-v1                    any Gymnasium id
    atari/pong                         Atari 2600 games
    vizdoom/basic                      scenarios of the vizdoom package; vizdoom/path/to/your.cfg
    dm_control/cartpole-swingup        DeepMind Control Suite
    torch/CartPole-v1                  written in PyTorch, stepped on the policy's device
    pettingzoo/connect_four_v3         multi-agent environments of PettingZoo
    dmlab/rooms_watermaze              levels of DeepMind Lab

A family is a module that declares a `Family` (`envs/core/family_interface.py`). The registry imports it when one of its
environments is first used, so that packages of other families need not be installed. A user's environment is one function,
registered by the user's file (``--import my_env.py``):

    @headrace.envs.register("my/corridor")
    def corridor(options, *, render_mode=None):
        return Corridor(**options.kwargs)

Environments are made by `headrace.envs.make`.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headrace.config import ConfigError, EnvConfig
from headrace.config.tasks import SEPARATOR, tasks_of
from headrace.envs.core.errors import MissingExtra, UnknownEnvironment
from headrace.envs.core.family_interface import (
    Env,
    EnvFactory,
    Family,
    Observes,
    ParallelEnv,
    ParallelFactory,
    TensorFactory,
    VectorFactory,
)
from headrace.envs.core.imports import is_importing
from headrace.envs.core.wrappers import preprocess

# -- built-in families --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Module:
    """A family's module, and the extra, or else the instructions, that install the packages it needs."""

    module: str
    extra: str | None = None
    installation: str = ""


_LAB = "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md"
FAMILIES: dict[str, _Module] = {
    "gym": _Module("headrace.envs.families.gym"),
    "atari": _Module("headrace.envs.atari.family", "atari"),
    "vizdoom": _Module("headrace.envs.vizdoom.family", "vizdoom"),
    "dm_control": _Module("headrace.envs.families.dm_control", "dm-control"),
    "torch": _Module("headrace.envs.families.torch_envs"),
    "pettingzoo": _Module("headrace.envs.families.pettingzoo", "pettingzoo"),
    "dmlab": _Module("headrace.envs.families.dmlab", installation=f"build deepmind_lab as {_LAB} says"),
}


def _family(name: str) -> Family:
    known = FAMILIES.get(name)
    if known is None:
        raise UnknownEnvironment(f"there is no environment family {name!r}; there are {', '.join(FAMILIES)}")
    try:
        family: Family = importlib.import_module(known.module).FAMILY
    except ImportError as error:
        how = known.installation or (known.extra and f'pip install "headrace[{known.extra}]"')
        if not how or (error.name or "").startswith("headrace"):
            raise
        raise MissingExtra(f"{name} environments need packages that are not installed: {how}") from error
    return family


# -- environments that the user registers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Registered:
    family: Family
    by_import: bool
    """A file of `import_files` registered it, so another process can do so, too."""


_registered: dict[str, _Registered] = {}
_Factory = TypeVar("_Factory")


def _register(
    env_id: str, defaults: Mapping[str, Any] | None, family: Callable[[Any, Callable[[str], dict[str, Any]]], Family]
) -> Callable[[_Factory], _Factory]:
    """A decorator for a user's function; registers the family that `family` makes from the function and the defaults."""
    if (prefix := env_id.partition("/")[0]) in FAMILIES:
        raise ValueError(f"{env_id!r}: {prefix!r} is a built-in family; choose another prefix")
    if SEPARATOR in env_id:
        raise ValueError(f"{env_id!r}: a comma separates tasks; choose an id without one")

    def add(factory: _Factory) -> _Factory:
        _registered[env_id] = _Registered(family(factory, lambda name: dict(defaults or {})), is_importing())
        return factory

    return add


def _no_single_environment(kind: str) -> Callable[..., Env]:
    """A `Family.make` that raises `ConfigError`: the user's function makes `kind`, such as "a vector environment"."""

    def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
        raise ConfigError(f"{name} is registered as {kind}; there is no single environment to make")

    return make


def register(env_id: str, *, defaults: Mapping[str, Any] | None = None) -> Callable[[EnvFactory], EnvFactory]:
    """Decorator: register a function (or class) with `EnvFactory`'s signature as the environment `env_id`.

    `defaults` are dotted configuration overrides, e.g. ``{"learning.learning_rate": 3e-4}``. Registering an id again replaces the
    environment. Raises `ValueError` for ids of the built-in families.
    """

    def family(factory: EnvFactory, own_defaults: Callable[[str], dict[str, Any]]) -> Family:
        def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
            return preprocess(factory(options, render_mode=render_mode), options)

        return Family(make, own_defaults)

    return _register(env_id, defaults, family)


def register_vector(env_id: str, *, defaults: Mapping[str, Any] | None = None) -> Callable[[VectorFactory], VectorFactory]:
    """Like `register`, for a function that makes a `gymnasium.vector.VectorEnv` of a given number of environments.

    Only the settings for rewards are applied to it. It cannot be watched, since there is no single environment to render.
    """
    no_env = _no_single_environment("a vector environment")
    return _register(env_id, defaults, lambda make, own: Family(no_env, own, make_vector=lambda name, *args: make(*args)))


def register_tensor(env_id: str, *, defaults: Mapping[str, Any] | None = None) -> Callable[[TensorFactory], TensorFactory]:
    """Like `register`, for a function that makes environments which take and give torch tensors (`headrace.envs.groups.tensor`).

    Only the settings for rewards are applied to them. They cannot be watched, since there is no single environment to render.
    """
    no_env = _no_single_environment("environments of tensors")
    return _register(env_id, defaults, lambda make, own: Family(no_env, own, make_tensor=lambda name, *args: make(*args)))


def register_parallel(
    env_id: str, *, agents: int, defaults: Mapping[str, Any] | None = None
) -> Callable[[ParallelFactory], ParallelFactory]:
    """Like `register`, for a function that makes a multi-agent environment with PettingZoo's ParallelEnv interface
    (`headrace.envs.groups.multi_agent`). `agents`: how many `possible_agents` it has."""
    no_env = _no_single_environment("a multi-agent environment")

    def family(factory: ParallelFactory, own_defaults: Callable[[str], dict[str, Any]]) -> Family:
        def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv:
            return factory(options, render_mode=render_mode)

        return Family(no_env, own_defaults, make_parallel=make)

    return _register(env_id, {"envs.num_agents": agents, **(defaults or {})}, family)


def registered_here_only(env_id: str) -> bool:
    """Whether only this process can make one of the tasks of `env_id`, since a notebook or a script registered it."""
    return any(task in _registered and not _registered[task].by_import for task in tasks_of(env_id))


# -- looking ids up -----------------------------------------------------------------------------------------------------


def list_ids(family: str | None = None) -> list[str]:
    """Ids of one family. Without `family`: of the user's environments and of all families whose packages are installed."""
    if family is not None:
        return [f"{family}/{name}" for name in _family(family).ids()]
    found = sorted(_registered)
    for name in FAMILIES:
        try:
            found += list_ids(name)
        except MissingExtra:
            continue
    return found


def check_id(env_id: str) -> None:
    """Raise `UnknownEnvironment` if there is no such id, `MissingExtra` if the packages it needs are not installed. Checks each
    of several tasks."""
    for task in tasks_of(env_id):
        prefix, _, name = task.partition("/")
        if task not in _registered and not (prefix in FAMILIES and _family(prefix).knows(name)):
            raise UnknownEnvironment(f"there is no environment {task!r}; {_nearest(task)}")


def family_of(env_id: str) -> tuple[Family, str]:
    """The family of an environment, and its name there. Raises what `check_id` raises."""
    if env_id in _registered:
        return _registered[env_id].family, env_id
    prefix, _, name = env_id.partition("/")
    return _family(prefix), name


def check_one(env_id: str) -> None:
    """Like `check_id`, but raises `ConfigError` for several tasks."""
    check_id(env_id)
    if SEPARATOR in env_id:
        raise ConfigError(f"{env_id!r} names several tasks; name one of them")


def with_absolute_path(env_id: str) -> str:
    """Make the path absolute in an id that names a file (vizdoom/my.cfg): a run may be evaluated from another directory."""
    return SEPARATOR.join(_with_absolute_path(task) for task in tasks_of(env_id))


def _with_absolute_path(env_id: str) -> str:
    prefix, _, name = env_id.partition("/")
    is_file = env_id not in _registered and name.endswith(".cfg") and Path(name).is_file()
    return f"{prefix}/{Path(name).resolve()}" if is_file else env_id


def _nearest(env_id: str) -> str:
    if (game := _atari_game(env_id)) is not None:
        return f"it is {game} here"
    by_lower = {known.lower(): known for known in list_ids()}
    # "pong" finds "atari/pong"
    by_lower |= {known.rpartition("/")[2].lower(): known for known in by_lower.values()}
    nearest = [by_lower[match] for match in difflib.get_close_matches(env_id.lower(), by_lower, n=5, cutoff=0.5)]
    if nearest:
        return f"nearest: {', '.join(dict.fromkeys(nearest))}"
    return f"ids are family/name with the families {', '.join(FAMILIES)}; `headrace envs` lists them"


def _atari_game(env_id: str) -> str | None:
    """The game of another library's id, such as ALE/MsPacman-v5, PongNoFrameskip-v4 or atari_pong."""
    name = re.sub(r"(NoFrameskip|Deterministic)?(-v\d+)?$", "", env_id.rpartition("/")[2].rpartition(":")[2])
    try:
        games = {game.partition("/")[2].replace("_", ""): game for game in list_ids("atari")}
    except MissingExtra:
        return None
    return games.get(name.removeprefix("atari_").replace("_", "").lower())


def is_known(env_id: str) -> bool:
    """Whether `check_id` accepts the id in this process."""
    try:
        check_id(env_id)
    except ConfigError:
        return False
    return True


def observes(env_id: str) -> Observes:
    """Whether an environment, or the first of several tasks, observes images or vectors; "images" for users' environments. Raises
    what `check_id` raises."""
    check_id(env_id)
    family, name = family_of(tasks_of(env_id)[0])
    return family.observes(name)
