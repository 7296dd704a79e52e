"""Several tasks for one policy: environment ids with commas between them."""

from __future__ import annotations

from headrace.config.errors import ConfigError

SEPARATOR = ","


def tasks_of(env: str) -> tuple[str, ...]:
    """The tasks that an environment id names: ``atari/pong,atari/boxing`` are two, any id without a comma is one.

    Raises `ConfigError` for an empty id among several and for one that is there twice.
    """
    tasks = tuple(env.split(SEPARATOR))
    if len(tasks) > 1 and not all(tasks):
        raise ConfigError(f"the tasks {env!r} have an empty id among them: give family/name, separated by single commas")
    if twice := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ConfigError(f"the task {twice[0]} is there twice; every task is given once")
    return tasks
