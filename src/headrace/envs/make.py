"""Making environments: `make_env`, `make_vec`, `make_group`, `make_parallel`, and `describe`, which makes one to read its spaces.

`headrace.envs.core.registry` knows the ids.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any, cast

from gymnasium import Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from headrace.config import Config, ConfigError, EnvConfig
from headrace.config.envs import SEPARATOR, tasks_of
from headrace.envs.core.contract import EnvGroup, EnvSpec
from headrace.envs.core.description import describe_in_child
from headrace.envs.core.errors import EnvironmentFault, UnknownEnvironment, cause, faults
from headrace.envs.core.family_interface import Env, ParallelEnv
from headrace.envs.core.imports import NotCarried, import_files, imported, is_importing
from headrace.envs.core.last_step import last_step_names, with_last_step
from headrace.envs.core.registry import check_id, check_one, code_of, family_of, is_known
from headrace.envs.core.settings import default_options, one_family, options_of
from headrace.envs.core.spaces import spec_of
from headrace.envs.core.wrappers import render_without_screen
from headrace.envs.groups.local import LocalGroup
from headrace.envs.groups.multi_agent import multi_agent_group
from headrace.envs.groups.rewards import reward_transform
from headrace.envs.groups.tasks import TaskGroup, difference, spec_of_tasks
from headrace.envs.groups.vector import VectorGroup

# -- one environment ----------------------------------------------------------------------------------------------------


def make_env(env_id: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One environment for evaluation and video: whole games, raw rewards. All settings except `reward_scale` and those of
    clipping are applied.

    Raises `UnknownEnvironment`, `MissingExtra`, `ConfigError` for a render mode that the environment does not have, or
    `EnvironmentFault` where its constructor fails.
    """
    if render_mode is not None:
        render_without_screen()
    check_one(env_id)
    family, name = family_of(env_id)
    if family.make is None:
        ways = {"a multi-agent": family.make_parallel, "a tensor": family.make_tensor}
        kind = next((kind for kind, way in ways.items() if way is not None), "a vector")
        raise ConfigError(f"{env_id} is {kind} environment; there is no single environment to make")
    with _making(env_id, options.kwargs):
        env = family.make(name, options, render_mode=render_mode)
        if options.reward_weights:
            env.get_wrapper_attr("set_reward_weights")(dict(options.reward_weights))
    if render_mode is not None and render_mode not in (modes := (env.metadata or {}).get("render_modes", ())):
        env.close()
        raise ConfigError(f"{env_id} has no render mode {render_mode!r}; it has {', '.join(map(repr, modes)) or 'none'}")
    return env


@contextmanager
def _making(env_id: str, arguments: dict[str, Any] | None = None) -> Iterator[None]:
    """Turn what a constructor raises, except a `ConfigError`, into an `EnvironmentFault` that names the environment, and its
    `arguments` where they do not suit it."""
    try:
        yield
    except (ConfigError, EnvironmentFault):
        raise
    except SystemExit as error:
        raise EnvironmentFault(f"{env_id} cannot be made: it called sys.exit({error.code!r})") from error
    except faults() as error:
        unsuited = arguments is not None and isinstance(error, TypeError) and _UNSUITED.search(str(error))
        advice = f". Its arguments are those in envs.kwargs, which is {json.dumps(arguments, default=repr)}" if unsuited else ""
        raise EnvironmentFault(f"{env_id} cannot be made: {cause(error)}{advice}") from error


_UNSUITED = re.compile(r"missing \d+ required|unexpected keyword argument")


def make_parallel(env_id: str, options: EnvConfig, *, render_mode: str | None = None) -> ParallelEnv | None:
    """One match of a multi-agent environment; None if `env_id` is a single-agent environment, or several tasks.

    Raises what `make_env` raises.
    """
    check_id(env_id)
    if SEPARATOR in env_id:
        return None
    if render_mode is not None:
        render_without_screen()
    with _making(env_id):
        family, name = family_of(env_id)
        made = None if family.make_parallel is None else family.make_parallel(name, options, render_mode=render_mode)
        if not hasattr(made, "agent_iter"):
            return made
        from headrace.envs.families.pettingzoo import parallel  # imports PettingZoo

        return parallel(made)


def make_vec(
    env_id: str, num_envs: int, options: EnvConfig | None = None, *, autoreset_mode: AutoresetMode | str | None = None
) -> VectorEnv:
    """`num_envs` environments as a `gymnasium.vector.VectorEnv`, for use in another training loop.

    `options` default to those that `headrace train` uses for this environment. Episodes are whole games, rewards are raw. Atari
    games run as the native batch, six and more CartPoles as one batch too, other environments are stepped one after the other.
    `autoreset_mode`: as in Gymnasium; None: the mode of the batch, or NEXT_STEP where there is no batch. If a batch does not have
    the mode, its environments are stepped one after the other too. The metadata have the mode. Raises what `make_env` raises.
    """
    mode = None if autoreset_mode is None else AutoresetMode(autoreset_mode)
    check_one(env_id)
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}, must be at least 1")
    if options is None:
        options = default_options(env_id)
    with _making(env_id, options.kwargs):
        family, name = family_of(env_id)
        if family.make_vector is not None and (envs := family.make_vector(name, options, num_envs)) is not None:
            if mode in (None, envs.metadata.get("autoreset_mode")):
                return envs
            envs.close()
        return SyncVectorEnv([partial(make_env, env_id, options)] * num_envs, autoreset_mode=mode or AutoresetMode.NEXT_STEP)


def spaces_of(env_id: str, options: EnvConfig) -> tuple[Space[Any], Space[Any]]:
    """The observation space and the action space of one environment, also where there are only vector environments. Raises what
    `make_env` raises."""
    check_one(env_id)
    family, _ = family_of(env_id)
    if family.make is None and family.make_vector is not None:
        with closing(make_vec(env_id, 1, options)) as envs:
            return envs.single_observation_space, envs.single_action_space
    with closing(make_env(env_id, options)) as env:
        return env.observation_space, env.action_space


# -- environments stepped together --------------------------------------------------------------------------------------


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

    `threads`: threads that step the environments, in families that can use them. None: the calling thread.
    `number`: the group's number in the run. With `options.remote` it decides which server steps the environments. A group without
    a number, such as that of an evaluation, is remote only if this process cannot make the environment.
    `task`: number of the task that all environments play, if `env_id` names several. None: environment i plays task i modulo the
    number of tasks.
    `device`: where tensor environments, and on a GPU also native Atari consoles, are made. The group then takes rows of tensors
    on that device, and its attribute `tensors` is True. None: they are made on the CPU, and the group takes NumPy arrays. Other
    environments ignore it.
    `spec`: the run's specification; environments, and servers whose environments, differ from it are refused. None: any are
    accepted.

    Raises what `make_env` raises, and `UnsupportedSpace`.
    """
    if options.remote and (address := _address(env_id, options.remote, number)):
        return _remote("group").RemoteGroup(address, env_id, options, num_envs, training=training, spec=spec)
    check_id(env_id)
    group = _group_here(env_id, options, num_envs, task, {"training": training, "threads": threads, "device": device})
    if spec is not None and (differs := difference(spec, group.spec)):
        group.close()
        raise EnvironmentFault(f"{env_id} is another environment than when the run began, with other {differs}")
    return group


def _group_here(env_id: str, options: EnvConfig, num_envs: int, task: int | None, how: dict[str, Any]) -> EnvGroup:
    """The group of a known environment in this process. `how`: the arguments that `make_group` passes on."""
    device = how["device"]
    if SEPARATOR in env_id:
        return _group_of_tasks(env_id, options, num_envs, task, how)
    with _making(env_id, options.kwargs):
        family, name = family_of(env_id)
        if family.make_tensor is not None:
            from headrace.envs.groups.tensor import TensorGroup  # imports torch

            made = family.make_tensor(name, options, num_envs, device or "cpu")
            return TensorGroup(made, options, env_id, device=device or "cpu", tensors=device is not None)
        if (first := make_parallel(env_id, options)) is not None:
            envs = chain([first], iter(partial(make_parallel, env_id, options), None))
            return multi_agent_group(cast(Any, envs.__next__), options, num_envs, env_id, family.frameskip)
        if family.make_group is not None:
            return family.make_group(name, options, num_envs, **how)
        if family.make_vector is not None and (batch := family.make_vector(name, options, num_envs)) is not None:
            return VectorGroup(batch, options, env_id)
    return _local_group(env_id, options, num_envs, family.frameskip)


def _local_group(env_id: str, options: EnvConfig, num_envs: int, frameskip: int) -> LocalGroup:
    """A group of environments that this process steps one after the other."""
    with ExitStack() as opened:
        envs: list[Env] = []
        for _ in range(num_envs):
            envs.append(make_env(env_id, options))
            opened.callback(envs[-1].close)
        spec = spec_of(envs[0].observation_space, envs[0].action_space, env_id, options, frameskip=frameskip)
        for index, env in enumerate(envs):
            if (env.observation_space, env.action_space) != (envs[0].observation_space, envs[0].action_space):
                raise EnvironmentFault(f"{env_id}: environment {index} has other spaces than environment 0")
        opened.pop_all()
    return LocalGroup(envs, spec, reward_transform(options))


def _group_of_tasks(env_id: str, options: EnvConfig, num_envs: int, task: int | None, how: dict[str, Any]) -> TaskGroup:
    """The group of one task (`task`), or of all tasks with an equal number of environments each. Raises `ConfigError` if the
    tasks' specifications differ, or if `num_envs` is no multiple of the number of tasks."""
    tasks = tasks_of(env_id)
    chosen = tasks if task is None else tasks[task : task + 1]
    if num_envs % len(chosen):
        raise ConfigError(f"{num_envs} environments cannot be shared equally by {len(chosen)} tasks")
    own = [options_of(name, tasks, options) for name in chosen]
    if len(chosen) > 1 and all(each == own[0] for each in own) and (family := one_family(chosen)) is not None:
        names = [name.partition("/")[2] for name in chosen]
        mixed = None if family.make_mixed_group is None else family.make_mixed_group(names, own[0], num_envs, **how)
        if mixed is not None:
            return TaskGroup(tasks, [mixed])
    with ExitStack() as opened:
        parts: list[EnvGroup] = []
        for name, settings in zip(chosen, own, strict=True):
            parts.append(make_group(name, settings, num_envs // len(chosen), **how))
            opened.callback(parts[-1].close)
        group = TaskGroup(tasks, parts, task)
        opened.pop_all()
    return group


def _address(env_id: str, remote: str, number: int | None) -> str | None:
    """The server that steps a group's environments; None: this process steps them."""
    connect = _remote("connect")
    if number is None and is_known(env_id):
        return None
    entries = [entry for entry in connect.addresses(remote) if number is not None or entry != connect.LOCAL]
    entry: str = entries[(number or 0) % len(entries)] if entries else connect.LOCAL
    return None if entry == connect.LOCAL else entry


def _remote(module: str) -> ModuleType:
    """Import a module of `envs/remote`. Raises `MissingExtra` if grpcio is not installed."""
    return importlib.import_module(f"headrace.envs.remote.{module}")


# -- specifications -----------------------------------------------------------------------------------------------------


def describe(env_id: str, options: EnvConfig, *, elsewhere: bool = False) -> EnvSpec:
    """The specification of an environment. Raises what `make_group` raises.

    A child process makes one environment and closes it. A constructor that crashes, hangs or calls `sys.exit` ends only the
    child; this process raises `EnvironmentFault`. With `options.remote` an environment server sends its specification.

    `elsewhere`: other processes will make environments, so `ConfigError` is raised if only this process can, with what to do.
    Without it, environments that only this process knows are made here.
    """
    if options.remote:
        spec: EnvSpec = _remote("connect").describe(env_id, options)
        return spec
    check_id(env_id)
    # Daemonic processes may have no children. While a file is imported that asks this, a child would import the file again, whose
    # child would do so too, without end.
    if multiprocessing.current_process().daemon or is_importing():
        return describe_here(env_id, options)
    try:
        code = (*imported(), *code_of(env_id))
        return describe_in_child(partial(describe_here, env_id, options, code), env_id)
    except (NotCarried, UnknownEnvironment) as error:
        if elsewhere:
            raise NotCarried(env_id) from error
        return describe_here(env_id, options)


def describe_run(config: Config, elsewhere: bool = False) -> EnvSpec:
    """As `describe`, with what a run's policies observe beside the environment (`headrace.envs.core.last_step`)."""
    return with_last_step(describe(config.env, config.envs, elsewhere=elsewhere), last_step_names(config))


def describe_here(env_id: str, options: EnvConfig, imports: Iterable[str] = ()) -> EnvSpec:
    """As `describe`, but in this process, after importing these files and modules."""
    import_files(imports)
    if SEPARATOR in env_id:
        tasks = tasks_of(env_id)
        return spec_of_tasks(tasks, [describe_here(task, options_of(task, tasks, options)) for task in tasks])
    group = make_group(env_id, options, 1)
    try:
        return group.spec
    finally:
        group.close()
