"""Where a run's settings come from: base < environment < algorithm < preset < the user's flags; and whether they can work.

What an environment starts with its family declares (`headrace.envs`); an algorithm declares it too (`headrace.learning`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.config.validation import validate
from headrace.envs.registry import check_id, defaults, import_files, observes, with_absolute_path
from headrace.learning.algorithm import declaration


def make_config(env: str, algorithm: str | None = None, imports: Iterable[str] = (), **settings: Any) -> Config:
    """The configuration that `headrace train --env ENV` starts from, with dotted `settings` replaced.

    `algorithm` None: the environment's own choice. Raises `ConfigError` for unknown environments, algorithms and settings.

        make_config("gym/CartPole-v1", **{"learning.total_steps": 100_000})
    """
    imports = tuple(str(path) for path in imports)
    import_files(imports)
    check_id(env)
    env = with_absolute_path(env)
    base = Config(env=env, imports=imports)
    of_env = dict(defaults(env))
    algorithm = algorithm or settings.get("learning.algorithm") or of_env.get("learning.algorithm") or base.learning.algorithm
    declared = declaration(algorithm)
    of_algorithm = declared.defaults_for(observes(env), of_env, settings.get("learning.preset", base.learning.preset))
    names = {"learning.algorithm": algorithm, "learning.experience": declared.experience}
    return configs.override(base, **{**of_env, **of_algorithm, **names, **settings})


def check_config(config: Config) -> None:
    """Raise `ConfigError`, with the reason, for settings that cannot work: out of range, impossible together, or refused by the
    algorithm. Imports the files that the configuration names, since they may define the algorithm."""
    import_files(config.imports)
    declared, experience = declaration(config.learning.algorithm), config.learning.experience
    if experience != declared.experience:
        raise ConfigError(
            f"learning.algorithm {declared.name} learns from {declared.experience}; it cannot work with "
            f"learning.experience {experience}"
        )
    validate(config)
    declared.check(config)
