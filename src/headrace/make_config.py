"""Where a run's settings come from: base < environment < algorithm < preset < the user's flags; and whether they can work.

What an environment starts with its family declares (`headrace.envs`); an algorithm declares it too (`headrace.learning`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace import config as configs
from headrace.config import Config, ConfigError, policy_configs
from headrace.config.ranges import check
from headrace.config.validation import validate
from headrace.envs.contract import EnvSpec
from headrace.envs.imports import import_files
from headrace.envs.registry import check_id, defaults, observes, with_absolute_path
from headrace.learning.algorithm import declaration
from headrace.population.pbt import check_pbt

LEARNED_WITH = ("policy.", "sampling.", "learning.", "replay.", "q.")
"""Groups of settings whose defaults an environment server may determine, beside those of the environment itself."""


def make_config(env: str, algorithm: str | None = None, imports: Iterable[str] = (), **settings: Any) -> Config:
    """The configuration that `headrace train --env ENV` starts from, with dotted `settings` replaced.

    `algorithm` None: the environment's own choice. Raises `ConfigError` for unknown environments, algorithms and settings.

        make_config("gym/CartPole-v1", **{"learning.total_steps": 100_000})
    """
    imports = tuple(str(path) for path in imports)
    import_files(imports)
    base = Config(env=env, imports=imports)
    if settings.get("envs.remote"):
        of_env, observed = _defaults_of_server(env, configs.override(base, **_group(settings, "envs.remote")))
    else:
        check_id(env)
        base.env = env = with_absolute_path(env)
        of_env, observed = dict(defaults(env)), observes(env)
    algorithm = algorithm or settings.get("learning.algorithm") or of_env.get("learning.algorithm") or base.learning.algorithm
    declared = declaration(algorithm)
    of_algorithm = declared.defaults_for(observed, of_env, settings.get("learning.preset", base.learning.preset))
    names = {"learning.algorithm": algorithm, "learning.experience": declared.experience}
    config = configs.override(base, **{**of_env, **of_algorithm, **names, **settings})
    return configs.override(config, **_one_part(config, settings)) if config.sampling.placement == "device" else config


def _one_part(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the device placement: one part, so that a batch holds T steps of all environments. The batch and T stay what
    the environment and the algorithm declare, and their quotient is the number of environments. Where the user gave the number
    of environments, the batch is their number times T. Where both are given, nothing changes."""
    T, size = config.sampling.rollout, config.learning.batch_size
    if config.uses_replay:
        return {}
    if not {"sampling.num_workers", "sampling.envs_per_worker", "sampling.num_groups"} & given.keys():
        return {"sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": max(1, size // T)}
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
