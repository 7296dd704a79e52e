"""Where a run's settings come from: base < environment < algorithm < preset < the user's flags; and whether they can work.

What an environment starts with its family declares (`headrace.envs`); an algorithm declares it too (`headrace.learning`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace import config as configs
from headrace.config import Config, ConfigError, policy_configs
from headrace.config.ranges import check
from headrace.config.tasks import SEPARATOR, tasks_of
from headrace.config.validation import validate
from headrace.envs.contract import EnvSpec
from headrace.envs.imports import import_files
from headrace.envs.registry import check_id, defaults, observes, with_absolute_path
from headrace.envs.tasks import without
from headrace.learning.algorithm import declaration
from headrace.population.pbt import check_pbt

LEARNED_WITH = ("policy.", "sampling.", "learning.", "replay.", "q.")
"""Groups of settings whose defaults an environment server may determine, beside those of the environment itself."""


def make_config(env: str | Sequence[str], algorithm: str | None = None, imports: Iterable[str] = (), **settings: Any) -> Config:
    """The configuration that `headrace train --env ENV` starts from, with dotted `settings` replaced. Several environments are
    the tasks of one policy.

    `algorithm` None: the environment's own choice. Raises `ConfigError` for unknown environments, algorithms and settings.

        make_config("gym/CartPole-v1", **{"learning.total_steps": 100_000})
    """
    env = env if isinstance(env, str) else SEPARATOR.join(env)
    imports = tuple(str(path) for path in imports)
    import_files(imports)
    base = Config(env=env, imports=imports)
    if settings.get("envs.remote") and len(base.tasks) == 1:
        of_env, observed = _defaults_of_server(env, configs.override(base, **_group(settings, "envs.remote")))
    else:
        check_id(env)
        base.env = env = with_absolute_path(env)
        of_env, observed = dict(defaults(env)), observes(env)
    algorithm = algorithm or settings.get("learning.algorithm") or of_env.get("learning.algorithm") or base.learning.algorithm
    declared = declaration(algorithm)
    of_algorithm = declared.defaults_for(observed, of_env, settings.get("learning.preset", base.learning.preset))
    names = {"learning.algorithm": algorithm, "learning.experience": declared.experience}
    if len(base.tasks) > 1:
        asked = settings.pop("envs.task_options", {})
        of_env["envs.task_options"] = without(of_env["envs.task_options"], set(settings), asked)
    config = configs.override(base, **{**of_env, **of_algorithm, **names, **settings})
    if config.sampling.placement == "device" and "sampling.placement" not in settings and not _can_be_in_process(config):
        config = configs.override(config, **{"sampling.placement": base.sampling.placement})
    if len(base.tasks) > 1:
        config = configs.override(config, **_for_tasks(config, settings))
    return configs.override(config, **_one_part(config, settings)) if config.sampling.placement == "device" else config


def _can_be_in_process(config: Config) -> bool:
    """Whether the device placement can do what is asked for, where it is only the environment's choice and not the user's."""
    r = config.replay
    newest = config.policy.core == "none" and r.evict_alpha is None and r.copies == 1 and config.sampling.weights_period == 1
    return (newest or not config.uses_replay) and not config.envs.remote and config.population.size == 1


def task_flags(env: str, arguments: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
    """Of the flags of `headrace train`, for several tasks: the settings that determine others' defaults, and the dotted names of
    all settings of `envs` that are given. Empty for one task. Raises `ConfigError` for what is no JSON object."""
    if len(tasks_of(env)) == 1:
        return {}, set()
    values: dict[str, Any] = {}
    for flag, following in zip(arguments, (*arguments[1:], ""), strict=True):
        name, equals, value = flag.removeprefix("--").partition("=")
        if flag.startswith("--envs."):
            values[name.replace("-", "_")] = value if equals else following
    options = values.pop("envs.task_options", "{}")
    try:
        found = {"envs.task_options": dict(json.loads(options))}
    except (ValueError, TypeError):
        raise ConfigError(f"--envs.task-options is {options!r:.100}; it must be a JSON object") from None
    share = {name: value for name, value in values.items() if name == "envs.task_share"}
    return found | share, set(values)


def _for_tasks(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of several tasks: as many environments as one task has, or a few more, so that the tasks have equal shares; where
    that needs it, a batch of another size. The user's own settings stay.

    With equal shares of compute the number of workers is a multiple of the number of tasks, and a group is a part of what it was,
    so that batches are what they were and hold trajectories of all tasks. With equal shares of samples a group has a multiple of
    the number of tasks, and batches are made of such groups."""
    s, r, K = config.sampling, config.learning, len(config.tasks)
    sizes: dict[str, Any] = {}
    together = s.placement == "device" or config.uses_replay
    if together and "envs.task_share" not in given:
        sizes["envs.task_share"] = "samples"
    if (sizes.get("envs.task_share") or config.envs.task_share) == "samples":
        lane = -(-config.envs_per_group // K) * K
    else:
        unit = K * config.workers_per_round
        sizes["sampling.num_workers"] = workers = -(-s.num_workers // unit) * unit
        least = config.num_envs / (workers * s.num_groups)
        lane = min(n for n in range(1, config.envs_per_group + 1) if config.envs_per_group % n == 0 and n >= least)
    if "sampling.envs_per_worker" in given:
        lane = config.envs_per_group
    sizes["sampling.envs_per_worker"] = lane * s.num_groups
    if not config.uses_replay and s.placement != "device":
        unit = s.rollout * math.lcm(lane, r.num_minibatches)
        sizes["learning.batch_size"] = max(1, round(r.batch_size / unit)) * unit
    return {name: value for name, value in sizes.items() if name not in given}


def _one_part(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the device placement: one part, so that a batch holds T steps of all environments. The batch and T stay what
    the environment and the algorithm declare, and their quotient is the number of environments. Where the user gave the number
    of environments, the batch is their number times T. Where both are given, nothing changes."""
    T, size, K = config.sampling.rollout, config.learning.batch_size, len(config.tasks)
    if config.uses_replay:  # a batch has nothing to do with them; the environments act with the weights of every update
        return {} if "sampling.weights_period" in given else {"sampling.weights_period": 1}
    if not {"sampling.num_workers", "sampling.envs_per_worker", "sampling.num_groups"} & given.keys():
        unit = math.lcm(K, config.learning.num_minibatches) if K > 1 else 1
        n = -(-max(1, size // T) // unit) * unit
        batch = {"learning.batch_size": T * n} if K > 1 and "learning.batch_size" not in given else {}
        return {"sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": n, **batch}
    return {} if "learning.batch_size" in given else {"learning.batch_size": T * config.num_envs}


def _defaults_of_server(env: str, base: Config) -> tuple[dict[str, Any], str]:
    """What an environment server says that the environment is learned with, and what it observes: the environment's packages need
    not be here. The environment's own settings are those of the server."""
    from headrace.envs.remote.connect import ask

    welcome = ask(env, base.envs)
    # what to learn with; not where the run's files are, nor whom it connects to
    of_env = {name: value for name, value in welcome.defaults.items() if name.startswith(LEARNED_WITH)}
    return of_env | {f"envs.{name}": value for name, value in welcome.options.items()}, welcome.observes


def _group(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name.startswith(prefix)}


def for_agents(config: Config, spec: EnvSpec) -> Config:
    """The configuration with as many agents as the environment has: lanes, slots and batches depend on it. Raises `ConfigError`
    where that cannot work."""
    agents = len(spec.agents) or None
    if config.envs.num_agents == agents:
        return config
    config = configs.override(config, **{"envs.num_agents": agents})
    check_config(config)
    return config


def check_config(config: Config) -> None:
    """Raise `ConfigError`, with the reason, for settings that cannot work: out of range, impossible together, or refused by the
    algorithm. Imports the files that the configuration names, since they may define the algorithm."""
    check(config)
    import_files(config.imports)
    for own in policy_configs(config):
        _check_policy(own)
    check_pbt(config)


def _check_policy(config: Config) -> None:
    declared, experience = declaration(config.learning.algorithm), config.learning.experience
    if experience != declared.experience:
        raise ConfigError(
            f"learning.algorithm {declared.name} learns from {declared.experience}; it cannot work with "
            f"learning.experience {experience}"
        )
    validate(config)
    declared.check(config)
