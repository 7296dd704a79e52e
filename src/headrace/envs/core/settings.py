"""The settings for training an environment: the defaults of one, of several tasks together, and of each of these tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.config import Config, ConfigError, EnvConfig, override
from headrace.config.envs import tasks_of
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.family_interface import Family
from headrace.envs.core.registry import check_id, family_of
from headrace.envs.core.spaces import has_image_shape


def defaults(env_id: str) -> dict[str, Any]:
    """Default settings for training this environment, or several tasks, as dotted configuration overrides. Raises what `check_id`
    raises, and `ConfigError` for a multi-agent environment among several tasks.

    Several tasks: settings that more than half of the tasks' defaults share; settings of `envs` only if all share them. The other
    settings of `envs` go into `envs.task_options`.
    """
    check_id(env_id)
    own = {}
    for task in tasks_of(env_id):
        family, name = family_of(task)
        own[task] = family.defaults(name)
    return own[env_id] if env_id in own else _common(own)


def _common(own: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The defaults of several tasks, from those of each."""
    agreed = {}
    for name, value in ((name, value) for defaults in own.values() for name, value in defaults.items()):
        number = sum(name in defaults and defaults[name] == value for defaults in own.values())
        if number == len(own) or (2 * number > len(own) and not name.startswith("envs.")):
            agreed[name] = value
    options = {}
    for task, defaults in own.items():
        if defaults.get("envs.num_agents"):
            raise ConfigError(f"{task} is a multi-agent environment, which cannot be one of several tasks")
        differing = {name[5:]: v for name, v in defaults.items() if name.startswith("envs.") and name not in agreed}
        if differing:
            options[task] = differing
    return agreed | {"envs.task_options": options}


def default_options(env_id: str) -> EnvConfig:
    """The default `envs` settings of `headrace train` for this environment. Raises what `check_id` raises."""
    settings = {key: value for key, value in defaults(env_id).items() if key.startswith("envs.")}
    return override(Config(), **settings).envs


def without(options: dict[str, Any], given: set[str], asked: dict[str, Any]) -> dict[str, Any]:
    """`EnvConfig.task_options` from the defaults (`options`), without settings (dotted names) that the user has `given` for all
    tasks, updated with the task options that the user `asked` for."""
    kept = {task: {name: v for name, v in own.items() if f"envs.{name}" not in given} for task, own in options.items()}
    for task, own in asked.items():
        kept[task] = kept.get(task, {}) | own if isinstance(own, dict) else own
    return {task: own for task, own in kept.items() if own}


def options_of(task: str, tasks: Sequence[str], options: EnvConfig) -> EnvConfig:
    """The settings of one task; of the only one, `options`. Its own override those of all tasks, which override the family's
    `agreement`. Raises `ConfigError` for unknown settings."""
    if len(tasks) == 1:
        return options
    own = options.task_options.get(task, {})
    if not isinstance(own, dict):
        raise ConfigError(f"envs.task_options of {task} is {own!r:.60}; it must be a JSON object of settings")
    if fixed := sorted({"task_share", "task_options", "remote", "num_agents"} & own.keys()):
        raise ConfigError(f"envs.task_options of {task}: {', '.join(fixed)} cannot be different for a single task")
    kwargs = agreement(tasks, options) | options.kwargs | own.get("kwargs", {})
    common = replace(options, kwargs={}, task_options={}, task_share="compute")
    settings = {f"envs.{name}": value for name, value in own.items()} | {"envs.kwargs": kwargs}
    return override(Config(envs=common), **settings).envs


def one_family(tasks: Sequence[str]) -> Family | None:
    """The family that all these tasks belong to; None if they belong to several."""
    return family_of(tasks[0])[0] if len({task.partition("/")[0] for task in tasks}) == 1 else None


def agreement(tasks: Sequence[str], options: EnvConfig) -> dict[str, Any]:
    """`Family.agreement` of several tasks of one family; empty otherwise."""
    family = one_family(tasks) if len(tasks) > 1 else None
    if family is None or family.agreement is None:
        return {}
    return family.agreement([task.partition("/")[2] for task in tasks], options)


def summary(config: Config, spec: EnvSpec) -> list[str]:
    """Sentences that tell the user which settings were chosen for several tasks, and what is seen as a vector."""
    tasks, options = config.tasks, config.envs
    lines = []
    if spec.frame_stack > 1 and not any(array.is_image for array in spec.observation.values()):
        lines.append(f"envs.frame_stack {spec.frame_stack}: without images, the network sees successive vectors joined to one")
    lines += [
        f"Observation {name!r} has the shape of an image, {list(array.shape)}, and the network sees it as a vector: images "
        "have spaces from 0 to 255, or from 0 to 1 with three dimensions"
        for name, array in spec.observation.items()
        if not array.is_image and has_image_shape(array.shape)
    ]
    if len(tasks) == 1:
        return lines
    shares = {
        "compute": f"each has {config.sampling.num_workers // len(tasks)} of {config.sampling.num_workers} rollout workers",
        "samples": f"each has {config.envs_per_group // len(tasks)} of the {config.envs_per_group} environments of every group",
    }
    lines += [f"{len(tasks)} tasks, {', '.join(tasks)}: {shares[options.task_share]}"]
    if chosen := {name: value for name, value in agreement(tasks, options).items() if name not in options.kwargs}:
        listed = ", ".join(f"{name} {value}" for name, value in chosen.items())
        lines.append(f"So that the tasks agree, their environments are made with {listed} (envs.kwargs goes before that)")
    return lines
