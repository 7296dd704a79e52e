"""``python/module:name``: a class or a function of a Python module that makes one environment.

`headrace.train` and `headrace.make_config` take the class or the function itself, or a `gymnasium.EnvSpec`, and turn it into such
an id. `EnvConfig.kwargs` are the arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.construct import complete, construct
from headrace.envs.core.family_interface import Env, Family
from headrace.envs.core.imports import NotCarried, file_named, import_module, source_of
from headrace.envs.core.wrappers import preprocess
from headrace.envs.families import gym

_given: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
"""What was given to `id_of` in this process, with its default settings, by name."""


def id_of(env: Any) -> str:
    """The id of an environment: of a class, a function or a `gymnasium.EnvSpec`; an id is its own. Raises `ConfigError` for
    anything else."""
    if isinstance(env, str):
        return env
    defaults: dict[str, Any] = {}
    if isinstance(env, EnvSpec):
        if env.entry_point is None or env.additional_wrappers:
            raise ConfigError(f"{env.id}: an EnvSpec needs an entry_point, and may have no additional_wrappers")
        if not gym.is_the_users(env):
            return _unchanged(env)
        limit = {} if env.max_episode_steps is None else {"envs.max_episode_steps": env.max_episode_steps}
        defaults = limit | ({"envs.kwargs": dict(env.kwargs)} if env.kwargs else {})
        env = load_env_creator(env.entry_point) if isinstance(env.entry_point, str) else env.entry_point
    if not callable(env) or not hasattr(env, "__qualname__"):
        raise ConfigError(
            f"{env!r:.100} is no environment: give an id, or a class, a function or a gymnasium.EnvSpec that makes one"
        )
    plain = f"{_module_name(env.__module__)}:{env.__qualname__}"
    names = chain([plain], (f"{plain}-{n}" for n in count(2) if "<" in plain))  # of lambdas, and of functions within others
    name = next((name for name in names if name not in _given or _is_alike(env, _given[name][0])), plain)
    _given[name] = env, defaults
    return f"python/{name}"


def _is_alike(env: Any, other: Any) -> bool:
    """Whether both do the same: one object, classes, or a function made anew, as where a notebook's cell runs again: with the
    same code, default arguments and variables of the function around it."""
    try:
        return env is other or _of_function(env) == _of_function(other)
    except (AttributeError, ValueError):  # one is a class; arrays, or a variable without a value
        return isinstance(env, type) and isinstance(other, type)


def _of_function(env: Any) -> tuple[Any, ...]:
    return env.__code__, env.__defaults__, env.__kwdefaults__, [cell.cell_contents for cell in env.__closure__ or ()]


def _unchanged(spec: EnvSpec) -> str:
    """The id of an environment of Gymnasium's own, which is made by its id. Raises `ConfigError` where this `EnvSpec` has other
    arguments than the registered one, such as that of ``gymnasium.make("LunarLander-v3", continuous=True)``."""
    known = gymnasium.spec(spec.id)
    same = {name for name, value in spec.kwargs.items() if name in known.kwargs and known.kwargs[name] == value}
    own = {name: value for name, value in spec.kwargs.items() if name not in {"render_mode", *same}}
    settings: dict[str, Any] = {"envs.kwargs": own} if own else {}
    if spec.max_episode_steps != known.max_episode_steps:
        settings["envs.max_episode_steps"] = spec.max_episode_steps
    if settings:
        raise ConfigError(
            f"{spec.id}: this EnvSpec differs from the registered one; give make_config 'gym/{spec.id}', **{settings}"
        )
    return f"gym/{spec.id}"


def _module_name(module: str) -> str:
    """The name by which other processes import a module."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = main.__spec__, getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(file).stem if file and Path(file).is_file() else module  # or "<stdin>"


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One environment with the settings applied. Raises `ConfigError` if there is no such module or name."""
    return preprocess(complete(construct(_found(name), options, render_mode)), options)


def _found(name: str) -> Callable[..., Any]:
    if name in _given:
        return _given[name][0]
    module, _, path = name.partition(":")
    if module == "__main__":
        raise ConfigError(f"python/{name} was defined in a notebook or interactive Python, and only there it can be made")
    file = file_named(module)
    if file is None:
        import_module(module)
    found: Any = file or sys.modules[module]
    try:
        for part in path.split("."):
            found = getattr(found, part)
            if isinstance(found, ModuleType):  # a folder from somebody else could name `guess:os.system`
                raise ConfigError(f"python/{name}: {part} is a module; name it before the colon: python/{found.__name__}:NAME")
    except AttributeError as error:
        raise ConfigError(f"python/{name}: the module {module} has no {path}") from error
    if not callable(found):
        raise ConfigError(f"python/{name} is {found!r:.80}; name a class or a function that makes an environment")
    made: Callable[..., Any] = found
    return made


def defaults(name: str) -> dict[str, Any]:
    """Those of a `gymnasium.EnvSpec`: its arguments and its limit of steps."""
    return dict(_given[name][1]) if name in _given else {}


def code(name: str) -> tuple[str, ...]:
    if name not in _given:
        return ()  # the id names the module
    made_by = _given[name][0]
    source = source_of(made_by.__module__) if made_by.__qualname__.isidentifier() else None
    if source is None:
        raise NotCarried(f"python/{name}")
    return (source,)


FAMILY = Family(make, defaults, knows=lambda name: ":" in name, observes=lambda name: None, code=code)
