"""Where a run's settings come from: base < environment < algorithm < preset < the user's flags; and whether they can work.

An environment's defaults are declared by its family (`headrace.envs`), an algorithm's by the algorithm (`headrace.learning`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from operator import attrgetter
from typing import Any

from gymnasium.envs.registration import EnvSpec

from headrace import config as configs
from headrace.config import Config, ConfigError, MatchesConfig, policy_configs
from headrace.config.envs import SEPARATOR
from headrace.config.policy_overrides import SHARED
from headrace.config.ranges import check
from headrace.config.validation import validate
from headrace.envs.core import contract
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.core.family_interface import Observes, kind_of
from headrace.envs.core.imports import (
    GUARD,
    NotCarried,
    absolute,
    check_given,
    import_files,
    is_importing,
    listed,
    name_environments,
    needed_code,
)  # fmt: skip
from headrace.envs.core.registry import check_id, code_of, observes, with_absolute_path
from headrace.envs.core.settings import defaults, without
from headrace.envs.families.python import id_of
from headrace.envs.make import describe
from headrace.learning.algorithm import declaration
from headrace.policies.errors import made, named
from headrace.population.pbt import check_pbt
from headrace.runs.changed_settings import compare, structural
from headrace.runs.files import occupy_standard_streams
from headrace.runs.folder import has_checkpoints

LEARNED_WITH = ("policy.", "sampling.", "learning.", "replay.", "q.")
"""Groups of settings whose defaults an environment server may determine, beside those of the environment itself."""

OF_POLICY = ("policy.", "learning.", "replay.", "q.")
"""Groups of settings that may differ between the policies of a population."""

OLDEST = 6
"""Batches in all slots. In MinAtar Breakout IMPALA learns from samples 8 updates old, but not 14 (docs/laboratory-results.md)."""


def make_config(
    env: str | Callable[..., Any] | EnvSpec | Sequence[Any],
    algorithm: str | Any | None = None,  # Any: for type checkers **{"run.goal": 475.0} may be any of the parameters
    imports: Iterable[str] | Any = (),
    **settings: Any,
) -> Config:
    """The configuration that `headrace train --env ENV` starts from, with dotted `settings` replaced.

    `env`: an id, a class or function that makes the environment (its arguments are `envs.kwargs`), or a `gymnasium.EnvSpec`; in a
    list several of these, the tasks of one policy. `algorithm` None: the environment's own choice. `imports`: Python files and
    modules that all processes import; those that define or register the environment are found without it.

    If the run folder already holds a run, `headrace.train` resumes it with its saved settings; only settings that are given here,
    or changed in the result, replace them (`continued`).

    Raises `ConfigError` for unknown environments, algorithms and settings.

        make_config("gym/CartPole-v1", **{"learning.total_steps": 100_000})
    """
    env = SEPARATOR.join(map(id_of, env)) if isinstance(env, list | tuple) else id_of(env)
    imports = listed(imports)
    if algorithm is not None:
        settings["learning.algorithm"] = algorithm
    given = {"env", *settings} | ({"imports"} if imports else set())
    import_files(imports)
    base = Config(env=env, imports=imports)
    name_environments(base.tasks)
    with _imports_of_run(base, settings):
        if settings.get("envs.remote") and len(base.tasks) == 1:
            of_env, observed = _defaults_of_server(env, configs.override(base, **_group(settings, "envs.remote")))
        else:
            check_id(env)
            base.env = env = with_absolute_path(env)
            of_env = dict(defaults(env))
            observed = observes(env) or _seen(configs.override(base, **_group({**of_env, **settings}, "envs.")))
        algorithm = settings.get("learning.algorithm") or of_env.get("learning.algorithm") or base.learning.algorithm
        declared = declaration(algorithm)
    preset = settings.get("learning.preset") or of_env.get("learning.preset") or base.learning.preset
    of_algorithm = declared.defaults_for(observed, of_env, preset)
    names = {"learning.algorithm": algorithm, "learning.experience": declared.experience}
    if len(base.tasks) > 1:
        asked = settings.pop("envs.task_options", {})
        of_env["envs.task_options"] = without(of_env["envs.task_options"], set(settings), asked)
    config = configs.override(base, **{**of_env, **of_algorithm, **names, **settings})
    for adapt in (_possible_placement, _for_tasks, _batch, _minibatches):  # each sees what those before it chose
        config = configs.override(config, **adapt(config, settings))
    config = configs.override(config, **_of_policies(config, settings))
    config.defaults = {name: attrgetter(name)(config) for name in configs.NAMES if name not in given}
    config.made_for = deepcopy(config.choices)
    return config


def _of_policies(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """`population.overrides` with the defaults of the algorithms and presets that they name: a policy begins with those of its
    own algorithm, as a run does, but for settings that all policies share."""
    whole: dict[str, Any] = {}
    for number, own in config.population.overrides.items():
        if isinstance(own, dict) and own.keys() & {"learning.algorithm", "learning.preset"}:
            learned = {name: value for name, value in given.items() if name.startswith(OF_POLICY)}
            alike = {name: attrgetter(name)(config) for name in configs.NAMES if name.startswith(("envs.", "sampling."))}
            try:
                alone = make_config(
                    config.env, imports=config.imports, **{**learned, **alike, "population.size": config.population.size, **own}
                )
            except ConfigError as error:
                raise ConfigError(f"population.overrides of policy {number}: {error}") from error
            run, found = (configs.flattened(configs.to_dict(c)) for c in (config, alone))
            differs = [name for name in found if name.startswith(OF_POLICY) and found[name] != run[name] and name not in SHARED]
            whole[number] = {name: found[name] for name in differs} | own
    return {"population.overrides": {**config.population.overrides, **whole}} if whole else {}


def continued(config: Config) -> Config:
    """The configuration to train with. If the run folder holds a run, these are its saved settings, except those that were given
    now (see `Config.defaults`). If that run has no checkpoint yet, another environment, network or algorithm may be given; then
    none of its settings are kept.

    Raises `ConfigError` for settings that cannot change any more, and if the saved run imports Python files that were not given
    now.
    """
    folder, given = config.run_folder, configs.given(config)
    if config.defaults is None or not os.path.lexists(folder / "config.json"):
        return config
    before = configs.load(folder / "config.json")
    check_given(before, (*config.imports, *(needed_code(config) if "env" in given else ())), folder)
    before.run.folder, before.run.must_be_new = config.run.folder, config.run.must_be_new  # about this start, not about the run
    begun = has_checkpoints(folder)
    if not begun and any(structural(name) and attrgetter(name)(before) != value for name, value in given.items()):
        return config
    made = configs.override(before, **given)
    compare(before, made, folder, begun)
    return made


@contextmanager
def _imports_of_run(base: Config, settings: dict[str, Any]) -> Iterator[None]:
    """Where something within the context is not known, and the run folder holds a run that imports code which was not given, say
    that instead."""
    try:
        yield
    except ConfigError:
        folder = configs.override(base, **_group(settings, "run."), seed=settings.get("seed", base.seed)).run_folder
        if (folder / "config.json").is_file():
            check_given(configs.load(folder / "config.json"), base.imports, folder)
        raise


def _seen(config: Config) -> Observes:
    """What an environment observes, found by making one, where its registration does not say. An environment that cannot be made
    counts as one of vectors; the run will report why it cannot be made."""
    try:
        return kind_of(describe(config.env, replace(config.envs, remote=None)))  # several tasks have no servers: `validate`
    except (ConfigError, EnvironmentFault):
        return "vectors"


def _possible_placement(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Another placement than `device`, if the environment and not the user chose that, and the settings do not work in it, or the
    user gave a number of worker processes."""
    if config.sampling.placement != "device" or "sampling.placement" in given:
        return {}
    r = config.replay
    newest = config.policy.core == "none" and r.evict_alpha is None and r.copies == 1 and config.sampling.weights_period == 1
    elsewhere = config.envs.remote or config.cluster.nodes is not None
    works = (newest or not config.uses_replay) and not elsewhere and config.population.size == 1
    workers = {"sampling.num_workers", "sampling.num_policy_workers"} & given.keys()
    return {} if works and not workers else {"sampling.placement": Config().sampling.placement}


def _for_tasks(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that give several tasks equal shares, none for one task. Settings that the user gave are left out.

    The number of environments is rounded up, and the batch size to whole trajectories. Equal compute: the number of workers is a
    multiple of the number of tasks, and the group size a divisor of the default one. Equal samples: the group size is a multiple
    of the number of tasks."""
    s, r, K = config.sampling, config.learning, len(config.tasks)
    if K == 1:
        return {}
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
        unit = math.lcm(s.rollout * lane, config.minibatch_unit * r.num_minibatches)
        sizes["learning.batch_size"] = max(1, round(r.batch_size / unit)) * unit
    return {name: value for name, value in sizes.items() if name not in given}


def _batch(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """A batch size that fits the number of environments; in the device placement one of both follows from the other."""
    if config.sampling.placement == "device":
        return _one_part(config, given)
    fixed = config.uses_replay or "learning.batch_size" in given or config.learning.preset == "paper"
    return {} if fixed else {"learning.batch_size": _whole_batch(config)}


def _minibatches(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """The next smaller number of minibatches that divides the batch, whose size the user may have given."""
    if "learning.num_minibatches" in given or config.uses_replay:
        return {}
    numbers, units = range(config.learning.num_minibatches, 1, -1), config.minibatch_units
    return {"learning.num_minibatches": next((n for n in numbers if units % n == 0), 1)}


def _whole_batch(config: Config) -> int:
    """The default batch size as whole trajectories of a group, whose size the user may have given; it is rounded up.

    Without PPO's clip (`impala`, `a2c`) it also grows with the number of groups, so that all slots, which bound how old samples
    get, hold at most `OLDEST` batches: those that groups fill, those under way from nodes, and two batches that wait."""
    s, r, c = config.sampling, config.learning, config.cluster
    unit = s.rollout * config.lane_size
    number = -(-r.batch_size // unit)
    if r.ppo_clip is None:
        slots = config.most_lanes if c.nodes is None else (config.most_lanes + c.window) * c.most_nodes // c.learners
        number = max(number, -(-slots // (OLDEST - 2)))
    return number * unit


def _one_part(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the device placement: a batch holds T steps of all environments. Number of environments = batch size / T; if
    the user gave the number of environments, batch size = number x T; if the user gave both, nothing changes."""
    T, size, K = config.sampling.rollout, config.learning.batch_size, len(config.tasks)
    if config.uses_replay:  # the batch size does not depend on the number of environments
        return {} if "sampling.weights_period" in given else {"sampling.weights_period": 1}
    if not {"sampling.num_workers", "sampling.envs_per_worker", "sampling.num_groups"} & given.keys():
        unit = math.lcm(K * T, config.minibatch_unit * config.learning.num_minibatches) // T if K > 1 else 1
        n = -(-max(1, size // T) // unit) * unit
        batch = {"learning.batch_size": T * n} if K > 1 and "learning.batch_size" not in given else {}
        return {"sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": n, **batch}
    return {} if "learning.batch_size" in given else {"learning.batch_size": T * config.num_envs}


def _defaults_of_server(env: str, base: Config) -> tuple[dict[str, Any], str]:
    """Ask an environment server for the environment's default settings and for the kind of its observations ("images" or
    "vectors"). The settings of the group `envs` are the server's. The environment's packages need not be installed here."""
    from headrace.envs.remote.connect import ask

    welcome = ask(env, base.envs)
    # a server may set how to learn, how rewards are scaled and clipped here, and the goal; no paths or addresses of this run
    of_env = {name: x for name, x in welcome.defaults.items() if name.startswith((*LEARNED_WITH, "envs.reward_", "run.goal"))}
    return of_env | {f"envs.{name}": value for name, value in welcome.options.items()}, welcome.observes


def _group(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name.startswith(prefix)}


def to_train(config: Config | Any) -> Config:
    """The configuration with which `train` begins: see `continued`. The files and modules that register its environments are
    added to its imports, and the objective of a population to `envs.info_metrics`. Files and its folder are made absolute: an
    environment may change the working directory, and processes on other machines have another one.

    Raises `ConfigError` while a process of a run imports such a file: the file trains without an `if __name__ == "__main__"`
    guard.
    """
    if is_importing():
        raise ConfigError(f"this file trains when it is imported. Put the training behind a guard:\n{GUARD}")
    occupy_standard_streams()  # the program that trains may have none
    config = config if isinstance(config, Config) else make_config(config)
    check(config)  # before a copy leaves out a misspelt attribute
    if config.made_for not in (None, config.choices):  # another algorithm has other defaults
        settings = {name: value for name, value in configs.given(config).items() if name not in ("env", "imports")}
        config = make_config(config.env, imports=config.imports, **settings)
    config = continued(config)
    import_files(config.imports)  # they may register the environment
    code: tuple[str, ...] = ()
    if not config.envs.remote:
        with suppress(NotCarried):  # `describe` says so where other processes need it
            code = code_of(config.env)
    found = {"imports": tuple(dict.fromkeys(map(absolute, (*config.imports, *code))))}
    if config.pbt.on and config.pbt.objective == contract.OBJECTIVE:
        found["envs.info_metrics"] = tuple(dict.fromkeys((*config.envs.info_metrics, contract.OBJECTIVE)))
    return configs.override(config, **found, **{"run.folder": os.path.abspath(config.run_folder)})


def for_agents(config: Config, spec: contract.EnvSpec) -> Config:
    """The configuration with as many agents as the environment has: lanes, slots and batches depend on it. Raises `ConfigError`
    where that cannot work."""
    agents = len(spec.agents) or None
    if agents is None and config.matches != MatchesConfig():
        raise ConfigError(f"{config.env} is for one agent, so there are no matches: leave the settings matches.* out")
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
    own = declared.check
    who = named(own, "", "the check of learning.algorithm", declared.name)
    made(own, who, "(config)", lambda: own(config), lambda nothing: True, "")
