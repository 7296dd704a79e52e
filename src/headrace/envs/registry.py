"""Environments by id: ``family/name`` for the built-in families, any id for environments registered by the user.

    gym/CartPole-v1                    any Gymnasium id
    atari/pong                         Atari 2600 games
    vizdoom/basic                      scenarios of the vizdoom package; vizdoom/path/to/your.cfg
    dm_control/cartpole-swingup        DeepMind Control Suite
    torch/CartPole-v1                  written in PyTorch, stepped on the policy's device
    pettingzoo/connect_four_v3         multi-agent environments of PettingZoo
    dmlab/rooms_watermaze              levels of DeepMind Lab

A family is a module with the functions of `Family`. It is imported when one of its environments is first asked for, so that the
packages of other families need not be installed. A user's environment is one function, registered by the user's own file
(``--import my_env.py``):

    @headrace.envs.register("my/corridor")
    def corridor(options, *, render_mode=None):
        return Corridor(**options.kwargs)
"""

from __future__ import annotations

import difflib
import importlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, cast

from gymnasium.vector import SyncVectorEnv, VectorEnv

from headrace.config import Config, ConfigError, EnvConfig, override
from headrace.config.tasks import SEPARATOR, tasks_of
from headrace.envs.contract import EnvGroup, EnvironmentFault, EnvSpec
from headrace.envs.description import describe_in_child
from headrace.envs.factories import Env, EnvFactory, Family, ParallelFactory, TensorFactory, VectorFactory
from headrace.envs.group import LocalGroup, reward_transform
from headrace.envs.imports import import_files, imported, is_importing
from headrace.envs.multi_agent import ParallelEnv, multi_agent_group
from headrace.envs.registered import Registered, RegisteredEnv, RegisteredParallel, RegisteredTensor, RegisteredVector
from headrace.envs.spaces import specs_of
from headrace.envs.wrappers import render_without_screen


class UnknownEnvironment(ConfigError):
    """There is no environment with this id; the message names the nearest ids."""


class MissingExtra(ConfigError):
    """The packages of an environment family are not installed; the message contains the command that installs them."""


@dataclass(frozen=True)
class _Module:
    """The name of a family's module, and the extra that installs the packages it needs, or how else they are installed."""

    module: str
    extra: str | None = None
    installation: str = ""


_LAB = "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md"
FAMILIES: dict[str, _Module] = {
    "gym": _Module("headrace.envs.gym"),
    "atari": _Module("headrace.envs.atari", "atari"),
    "vizdoom": _Module("headrace.envs.vizdoom", "vizdoom"),
    "dm_control": _Module("headrace.envs.dm_control", "dm-control"),
    "torch": _Module("headrace.envs.torch_envs"),
    "pettingzoo": _Module("headrace.envs.pettingzoo", "pettingzoo"),
    "dmlab": _Module("headrace.envs.dmlab", installation=f"build deepmind_lab as {_LAB} says"),
}


_TASKS = "headrace.envs.tasks"
"""The module for several tasks, which makes each of them through this one."""


_registered: dict[str, Registered] = {}
_Factory = TypeVar("_Factory")


def _register(env_id: str, kind: type[Registered], defaults: Mapping[str, Any]) -> Callable[[_Factory], _Factory]:
    if (prefix := env_id.partition("/")[0]) in FAMILIES:
        raise ValueError(f"{env_id!r}: {prefix!r} is a built-in family; choose another prefix")
    if SEPARATOR in env_id:
        raise ValueError(f"{env_id!r}: a comma separates tasks; choose an id without one")

    def add(factory: _Factory) -> _Factory:
        _registered[env_id] = kind(factory, defaults, is_importing())
        return factory

    return add


def register(env_id: str, *, defaults: Mapping[str, Any] | None = None) -> Callable[[EnvFactory], EnvFactory]:
    """Decorator: register a function (or class) with `EnvFactory`'s signature as the environment `env_id`.

    `defaults` are dotted configuration overrides, e.g. ``{"learning.learning_rate": 3e-4}``. Registering an id again replaces the
    environment. Raises `ValueError` for ids of the built-in families.
    """
    return _register(env_id, RegisteredEnv, defaults or {})


def register_vector(env_id: str, *, defaults: Mapping[str, Any] | None = None) -> Callable[[VectorFactory], VectorFactory]:
    """Like `register`, for a function that makes a `gymnasium.vector.VectorEnv` of a given number of environments.

    Only the settings for rewards are applied to it. It cannot be watched, since there is no single environment to render.
    """
    return _register(env_id, RegisteredVector, defaults or {})


def register_tensor(env_id: str, *, defaults: Mapping[str, Any] | None = None) -> Callable[[TensorFactory], TensorFactory]:
    """Like `register`, for a function that makes environments which take and give torch tensors (`headrace.envs.tensor`).

    Only the settings for rewards are applied to them. They cannot be watched, since there is no single environment to render.
    """
    return _register(env_id, RegisteredTensor, defaults or {})


def register_parallel(
    env_id: str, *, agents: int, defaults: Mapping[str, Any] | None = None
) -> Callable[[ParallelFactory], ParallelFactory]:
    """Like `register`, for a function that makes a multi-agent environment with PettingZoo's ParallelEnv interface
    (`headrace.envs.multi_agent`). `agents`: how many `possible_agents` it has."""
    return _register(env_id, RegisteredParallel, {"envs.num_agents": agents, **(defaults or {})})


def make_parallel(env_id: str, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv | None:
    """One match of a multi-agent environment; None where `env_id` is an environment of one agent, or several tasks.

    Raises what `make_env` raises.
    """
    check_id(env_id)
    if SEPARATOR in env_id:
        return None
    if render_mode is not None:
        render_without_screen()
    with _making(env_id):
        family, name = family_of(env_id)
        return family.make_parallel(name, options, render_mode=render_mode) if hasattr(family, "make_parallel") else None


def list_ids(family: str | None = None) -> list[str]:
    """Ids of one family; without `family`, those registered by the user and of all families whose packages are installed."""
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
    """Raise `UnknownEnvironment` if there is no such id, `MissingExtra` if the packages it needs are not installed. Of several
    tasks each is looked for."""
    for task in tasks_of(env_id):
        prefix, _, name = task.partition("/")
        if task not in _registered and not (prefix in FAMILIES and _family(prefix).knows(name)):
            raise UnknownEnvironment(f"there is no environment {task!r}; {_nearest(task)}")


def family_of(env_id: str) -> tuple[Family, str]:
    """The family of an environment, and its name there. Raises as `check_id`."""
    if env_id in _registered:
        return cast(Family, _registered[env_id]), env_id
    prefix, _, name = env_id.partition("/")
    return _family(prefix), name


def check_one(env_id: str) -> None:
    """As `check_id`, where one environment is wanted: raises `ConfigError` for several tasks."""
    check_id(env_id)
    if SEPARATOR in env_id:
        raise ConfigError(f"{env_id!r} names several tasks; name one of them")


def with_absolute_path(env_id: str) -> str:
    """An id that names a file (vizdoom/my.cfg), with the file's absolute path: a run may be evaluated from another directory."""
    return SEPARATOR.join(_with_absolute_path(task) for task in tasks_of(env_id))


def _with_absolute_path(env_id: str) -> str:
    prefix, _, name = env_id.partition("/")
    is_file = env_id not in _registered and name.endswith(".cfg") and Path(name).is_file()
    return f"{prefix}/{Path(name).resolve()}" if is_file else env_id


def _nearest(env_id: str) -> str:
    by_lower = {known.lower(): known for known in list_ids()}
    # "pong" finds "atari/pong"
    by_lower |= {known.rpartition("/")[2].lower(): known for known in by_lower.values()}
    nearest = [by_lower[match] for match in difflib.get_close_matches(env_id.lower(), by_lower, n=5, cutoff=0.5)]
    if nearest:
        return f"nearest: {', '.join(dict.fromkeys(nearest))}"
    return f"ids are family/name with the families {', '.join(FAMILIES)}; `headrace envs` lists them"


def _family(name: str) -> Family:
    known = FAMILIES.get(name)
    if known is None:
        raise UnknownEnvironment(f"there is no environment family {name!r}; there are {', '.join(FAMILIES)}")
    try:
        return cast(Family, importlib.import_module(known.module))
    except ImportError as error:
        how = known.installation or (known.extra and f'pip install "headrace[{known.extra}]"')
        if not how or (error.name or "").startswith("headrace"):
            raise
        raise MissingExtra(f"{name} environments need packages that are not installed: {how}") from error


def make_env(env_id: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One environment with all settings applied but those of rewards: whole games, raw rewards. For evaluation and video.

    Raises `UnknownEnvironment`, `MissingExtra`, `ConfigError` for a render mode that the environment does not have, or
    `EnvironmentFault` where its constructor fails.
    """
    if render_mode is None:
        return _make_env(env_id, options, None)
    render_without_screen()
    env = _make_env(env_id, options, render_mode)
    if render_mode not in (modes := env.metadata.get("render_modes", ())):
        env.close()
        raise ConfigError(f"{env_id} has no render mode {render_mode!r}; it has {', '.join(map(repr, modes)) or 'none'}")
    return env


def _make_env(env_id: str, options: EnvConfig, render_mode: str | None) -> Env:
    check_one(env_id)
    with _making(env_id):
        family, name = family_of(env_id)
        return family.make(name, options, render_mode=render_mode)


@contextmanager
def _making(env_id: str) -> Iterator[None]:
    """Whatever a constructor raises becomes an `EnvironmentFault` that names the environment, except for a `ConfigError`."""
    try:
        yield
    except (ConfigError, EnvironmentFault):
        raise
    except SystemExit as error:
        raise EnvironmentFault(f"{env_id} cannot be made: it called sys.exit({error.code!r})") from error
    except Exception as error:
        raise EnvironmentFault(f"{env_id} cannot be made: {type(error).__name__}: {error}") from error


def make_group(
    env_id: str,
    options: EnvConfig,
    num_envs: int,
    *,
    training: bool = True,
    threads: int | None = None,
    number: int | None = None,
    task: int | None = None,
    device: str | None = None,
    spec: EnvSpec | None = None,
) -> EnvGroup:
    """`num_envs` environments stepped together. With `training` False, episodes are whole games.

    `threads`: threads that step them, for families that have any use for them. None: the calling thread.

    `number`: which of the run's groups it is. With `options.remote`, that decides where its environments are; a group without a
    number, such as that of an evaluation, is remote only if the environment cannot be made here.

    `task`: of several tasks, the one that all of these environments are of. None: all have an equal share, environment i is of
    task i modulo their number.
    `device`: environments of tensors are made there, on a GPU also the native Atari consoles, and the group takes rows of tensors
    on that device (its attribute `tensors` is True). None: they are made on the CPU, and the group takes NumPy arrays, as all
    others do.
    `spec`: of the run; environments of a server that are not like it are refused. None: whatever the server has.

    Raises what `make_env` raises, and `UnsupportedSpace`.
    """
    if options.remote and (address := _address(env_id, options.remote, number)):
        return _remote("group").RemoteGroup(address, env_id, options, num_envs, training=training, spec=spec)
    check_id(env_id)
    if SEPARATOR in env_id:
        several = {"training": training, "threads": threads, "task": task, "device": device}
        return importlib.import_module(_TASKS).make_group(env_id, options, num_envs, **several)
    with _making(env_id):
        family, name = family_of(env_id)
        if hasattr(family, "make_tensor"):
            from headrace.envs.tensor import TensorGroup  # imports torch

            place = device or "cpu"
            made = family.make_tensor(name, options, num_envs, place)
            return TensorGroup(made, options, env_id, device=place, tensors=device is not None)
        if (first := make_parallel(env_id, options)) is not None:
            make = _with_first(first, lambda: make_parallel(env_id, options))
            return multi_agent_group(make, options, num_envs, env_id, family.FRAMESKIP)
        if hasattr(family, "make_group"):
            return family.make_group(name, options, num_envs, training=training, threads=threads, device=device)
    with ExitStack() as opened:
        envs: list[Env] = []
        for _ in range(num_envs):
            envs.append(make_env(env_id, options))
            opened.callback(envs[-1].close)
        observation, action = specs_of(envs[0].observation_space, envs[0].action_space, env_id)
        for index, env in enumerate(envs):
            if (env.observation_space, env.action_space) != (envs[0].observation_space, envs[0].action_space):
                raise EnvironmentFault(f"{env_id}: environment {index} has other spaces than environment 0")
        skip, stack = options.frameskip or family.FRAMESKIP, options.frame_stack or 1
        spec = EnvSpec(observation, action, skip, name=env_id, frame_stack=stack)
        opened.pop_all()
    group = LocalGroup(envs, spec, reward_transform(options))
    if options.reward_weights:
        group.set_reward_weights(options.reward_weights)
    return group


def _with_first(first: ParallelEnv, make: Callable[[], Any]) -> Callable[[], ParallelEnv]:
    """A function that gives `first`, and then what `make` makes."""
    made = [first]
    return lambda: made.pop() if made else cast(ParallelEnv, make())


def _address(env_id: str, remote: str, number: int | None) -> str | None:
    """Where a group's environments are; None: in this process."""
    connect = _remote("connect")
    if number is None and is_known(env_id):
        return None
    entries = [entry for entry in connect.addresses(remote) if number is not None or entry != connect.LOCAL]
    entry: str = entries[(number or 0) % len(entries)] if entries else connect.LOCAL
    return None if entry == connect.LOCAL else entry


def is_known(env_id: str) -> bool:
    """Whether the environment can be made in this process, as far as its id and the installed packages tell."""
    try:
        check_id(env_id)
    except ConfigError:
        return False
    return True


def _remote(module: str) -> ModuleType:
    """A module of `envs/remote`, which needs grpcio. Raises `MissingExtra` without it."""
    return importlib.import_module(f"headrace.envs.remote.{module}")


def make_vec(env_id: str, num_envs: int, options: EnvConfig | None = None) -> VectorEnv:
    """`num_envs` environments as a `gymnasium.vector.VectorEnv`, for use in another training loop.

    `options` default to those that `headrace train` uses for this environment. Episodes are whole games, rewards are raw; the
    autoreset mode is in the metadata. Atari games run as the native batch, other environments are stepped one after the other.
    Raises what `make_env` raises.
    """
    check_one(env_id)
    if options is None:
        options = default_options(env_id)
    with _making(env_id):
        family, name = family_of(env_id)
        if hasattr(family, "make_vector"):
            return family.make_vector(name, options, num_envs)
        return SyncVectorEnv([partial(make_env, env_id, options)] * num_envs)


def default_options(env_id: str) -> EnvConfig:
    """The settings of an environment that `headrace train` starts from. Raises what `check_id` raises."""
    settings = {key: value for key, value in defaults(env_id).items() if key.startswith("envs.")}
    return override(Config(), **settings).envs


def describe(env_id: str, options: EnvConfig) -> EnvSpec:
    """The specification of an environment. Raises what `make_group` raises.

    One environment is made and closed in a child process. A constructor that crashes, hangs or calls `sys.exit` ends only the
    child, and is an `EnvironmentFault` here. Environments that only this process can make, because a notebook or a script
    registered them, are made in this process. With `options.remote` an environment server gives it.
    """
    if options.remote:
        spec: EnvSpec = _remote("connect").describe(env_id, options)
        return spec
    check_id(env_id)
    registered = [_registered[task] for task in tasks_of(env_id) if task in _registered]
    only_here = not all(environment.by_import for environment in registered)
    if only_here or multiprocessing.current_process().daemon:  # a child of a run, which may have no children of its own
        return describe_here(env_id, options)
    try:
        return describe_in_child(partial(describe_here, env_id, options, imported()), env_id)
    except UnknownEnvironment:  # registered with Gymnasium by this process only
        return describe_here(env_id, options)


def describe_here(env_id: str, options: EnvConfig, imports: Iterable[str | Path] = ()) -> EnvSpec:
    """Make one environment in this process, after importing these files, and close it. Raises what `make_group` raises."""
    import_files(imports)
    if SEPARATOR in env_id:
        return importlib.import_module(_TASKS).describe(tasks_of(env_id), options)
    group = make_group(env_id, options, 1)
    try:
        return group.spec
    finally:
        group.close()


def defaults(env_id: str) -> dict[str, Any]:
    """Dotted configuration overrides with which this environment is learned without further settings. Raises as `check_id`."""
    check_id(env_id)
    if SEPARATOR in env_id:
        return importlib.import_module(_TASKS).common_defaults(tasks_of(env_id))
    family, name = family_of(env_id)
    return family.defaults(name)


def observes(env_id: str) -> Literal["images", "vectors"]:
    """What an environment observes, by its id, or the first of several tasks; "images" for those registered by the user. Raises
    what `check_id` raises."""
    check_id(env_id)
    family, name = family_of(tasks_of(env_id)[0])
    return family.observes(name) if hasattr(family, "observes") else family.OBSERVATIONS
