"""The settings of each policy of a population: those of the run, some of them replaced by the policy's own."""

from __future__ import annotations

from typing import Any

from headrace.config.errors import ConfigError
from headrace.config.io import override
from headrace.config.seeds import Use, random_seed
from headrace.config.settings import Config

SHARED = {
    "env": "all policies act in the same environments; multi-task training is for several",
    "seed": "it follows from the run's seed and the policy's number",
    "imports": "every process imports the same files",
    "envs": "the environments of a group are made before it is known which policy acts in them",
    "sampling": "policies share rollout workers, and all trajectories have the same length",
    "pbt": "it describes the whole population",
    "population": "it describes the whole population",
    "matches": "it describes who plays whom",
    "cluster": "all policies act on the same machines",
    "run": "all policies share the run folder",
    "learning.experience": "trajectories and replay divide the processor between sampling and learning in different ways",
}
"""Settings, or whole groups, that are the same for all policies, and why."""


def policy_config(config: Config, policy: int) -> Config:
    """The settings of one policy; `config` itself where there is only one and nothing is overridden.

    Raises `ConfigError` for settings that do not exist, have values that are not allowed, or cannot differ between policies.
    """
    own: dict[str, Any] = config.population.overrides.get(str(policy), {})
    if not isinstance(own, dict):
        raise ConfigError(
            f"population.overrides of policy {policy} is {own!r:.60}; it must be a JSON object of dotted settings, such as "
            '{"learning.learning_rate": 0.001}'
        )
    if not own and policy == 0:
        return config
    for name in own:
        if reason := SHARED.get(name) or SHARED.get(name.split(".")[0]):
            raise ConfigError(f"population.overrides: {name} of policy {policy} must be that of the run, since {reason}")
    try:
        made = override(config, **own)
    except ConfigError as error:
        raise ConfigError(f"population.overrides of policy {policy}: {error}") from error
    if policy:  # policies start with different weights, and the default name of the run folder follows from the seed
        made.run.folder, made.seed = str(config.run_folder), random_seed(Use.POLICY, config.seed, policy) % 2**31
    return made


def policy_configs(config: Config) -> list[Config]:
    """The settings of every policy, by its number. Raises `ConfigError` as `policy_config`, and for an unknown policy number."""
    size = config.population.size
    for number in config.population.overrides:
        if not number.isdecimal() or int(number) >= size or str(int(number)) != number:
            there = "there is policy 0 only" if size == 1 else f"there are policies 0 to {size - 1}"
            raise ConfigError(f"population.overrides names policy {number!r:.40}; {there} (population.size is {size})")
    return [policy_config(config, p) for p in range(size)]
