"""Several tasks for one policy (``atari/pong,atari/boxing``): which settings they have, and the group of their environments.

The tasks observe and act alike, or are refused. `TaskGroup` is the one place that knows which environment is of which task: it
writes the task's number into every row, and nobody else asks for it but statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from headrace.config import Config, ConfigError, EnvConfig, override
from headrace.config.tasks import tasks_of
from headrace.envs import registry
from headrace.envs.contract import EnvGroup, EnvironmentFault, EnvSpec, LaneRow, ObsRow
from headrace.envs.group import close_all

ADVICE = (
    "The tasks of one policy must observe and act alike: envs.resize, envs.frame_stack, envs.kwargs and others apply to all of "
    "them, envs.task_options to single ones"
)

# -- settings ---------------------------------------------------------------------------------------------------------


def common_defaults(tasks: Sequence[str]) -> dict[str, Any]:
    """The dotted settings that the defaults of more than half of the tasks agree on, and of `envs` those of all of them. Other
    ones of `envs` are in `envs.task_options`. Raises `ConfigError` for multi-agent environments, and what `registry.defaults`
    raises."""
    own = {task: registry.defaults(task) for task in tasks}
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


def without(options: dict[str, Any], given: set[str], asked: dict[str, Any]) -> dict[str, Any]:
    """`EnvConfig.task_options`: those made of defaults, without the settings (dotted names) that the user has `given` for all
    tasks, and those that the user has `asked` for."""
    kept = {task: {name: v for name, v in own.items() if f"envs.{name}" not in given} for task, own in options.items()}
    for task, own in asked.items():
        kept[task] = kept.get(task, {}) | own if isinstance(own, dict) else own
    return {task: own for task, own in kept.items() if own}


def options_of(task: str, tasks: Sequence[str], options: EnvConfig) -> EnvConfig:
    """The settings of one task: its own go before those of all, which go before what its family does so that the tasks agree.
    Raises `ConfigError` for settings that there are not."""
    own = options.task_options.get(task, {})
    if not isinstance(own, dict):
        raise ConfigError(f"envs.task_options of {task} is {own!r:.60}; it must be a JSON object of settings")
    if fixed := sorted({"task_share", "task_options", "remote", "num_agents"} & own.keys()):
        raise ConfigError(f"envs.task_options of {task}: {', '.join(fixed)} cannot be different for a single task")
    kwargs = agreement(tasks, options) | options.kwargs | own.get("kwargs", {})
    common = replace(options, kwargs={}, task_options={}, task_share="compute")
    settings = {f"envs.{name}": value for name, value in own.items()} | {"envs.kwargs": kwargs}
    return override(Config(envs=common), **settings).envs


def agreement(tasks: Sequence[str], options: EnvConfig) -> dict[str, Any]:
    """Arguments of the constructors with which tasks of one family agree, where the family knows such."""
    family: Any = registry.family_of(tasks[0])[0]
    if len(tasks) == 1 or not _one_family(tasks) or not hasattr(family, "agreement"):
        return {}
    return family.agreement([task.partition("/")[2] for task in tasks], options)


def summary(config: Config) -> list[str]:
    """What was chosen for several tasks, in sentences for the user; none for one task."""
    tasks, options = config.tasks, config.envs
    if len(tasks) == 1:
        return []
    shares = {
        "compute": f"each has {config.sampling.num_workers // len(tasks)} of {config.sampling.num_workers} rollout workers",
        "samples": f"each has {config.envs_per_group // len(tasks)} of the {config.envs_per_group} environments of every group",
    }
    lines = [f"{len(tasks)} tasks, {', '.join(tasks)}: {shares[options.task_share]}"]
    if chosen := {name: value for name, value in agreement(tasks, options).items() if name not in options.kwargs}:
        listed = ", ".join(f"{name} {value}" for name, value in chosen.items())
        lines.append(f"So that the tasks agree, their environments are made with {listed} (envs.kwargs goes before that)")
    return lines


# -- specification ----------------------------------------------------------------------------------------------------


def describe(tasks: Sequence[str], options: EnvConfig) -> EnvSpec:
    """The specification of environments of these tasks; one of each is made. Raises `ConfigError` where they do not agree."""
    specs = [registry.describe_here(task, options_of(task, tasks, options)) for task in tasks]
    return joint_spec(tasks, specs)


def joint_spec(tasks: Sequence[str], specs: Sequence[EnvSpec]) -> EnvSpec:
    """What the tasks' specifications have in common. Raises `ConfigError` naming the first task that differs, and how."""
    first = specs[0]
    for spec in specs[1:]:
        for what, ours, theirs in (
            ("actions", _actions(first), _actions(spec)),
            ("observations", _observations(first), _observations(spec)),
            ("frames per step", first.frameskip, spec.frameskip),
            ("frames per observation", first.frame_stack, spec.frame_stack),
            ("autoreset", first.autoreset, spec.autoreset),
            ("bounds of actions", first.action, spec.action),
        ):
            if ours != theirs:
                raise ConfigError(f"{spec.name} has other {what} than {first.name}: {theirs} instead of {ours}. {ADVICE}")
    return replace(first, name=",".join(tasks), tasks=tuple(tasks))


def _actions(spec: EnvSpec) -> str:
    return ", ".join(f"{part.n} choices" if hasattr(part, "n") else f"{part.width} numbers" for part in spec.action.parts)


def _observations(spec: EnvSpec) -> str:
    return ", ".join(f"{name} {array.dtype.name} {list(array.shape)}" for name, array in sorted(spec.observation.items()))


# -- the group --------------------------------------------------------------------------------------------------------


def make_group(
    env_id: str,
    options: EnvConfig,
    num_envs: int,
    *,
    training: bool = True,
    threads: int | None = None,
    task: int | None = None,
    device: str | None = None,
) -> TaskGroup:
    """See `registry.make_group`: environments of one task, or an equal share of all. Raises `ConfigError` where the tasks do not
    agree, or `num_envs` is no multiple of their number."""
    tasks = tasks_of(env_id)
    chosen = tasks if task is None else tasks[task : task + 1]
    if num_envs % len(chosen):
        raise ConfigError(f"{num_envs} environments cannot be shared equally by {len(chosen)} tasks")
    own = [options_of(name, tasks, options) for name in chosen]
    family: Any = registry.family_of(chosen[0])[0]
    if len(chosen) > 1 and all(each == own[0] for each in own) and _one_family(chosen) and hasattr(family, "make_mixed_group"):
        names = [name.partition("/")[2] for name in chosen]
        mixed = family.make_mixed_group(names, own[0], num_envs, training=training, threads=threads, device=device)
        if mixed is not None:
            return TaskGroup(tasks, [mixed])
    with ExitStack() as opened:
        parts: list[EnvGroup] = []
        for name, settings in zip(chosen, own, strict=True):
            n = num_envs // len(chosen)
            parts.append(registry.make_group(name, settings, n, training=training, threads=threads, device=device))
            opened.callback(parts[-1].close)
        group = TaskGroup(tasks, parts, task)
        opened.pop_all()
    return group


def _one_family(tasks: Sequence[str]) -> bool:
    return len({task.partition("/")[0] for task in tasks}) == 1


class TaskGroup:
    """Environments of several tasks in one lane: environment i is of task i modulo their number; or all of them are of one task.

    Args:
        tasks: ids of the run's tasks.
        parts: groups of one lane each: one for each task, or one that mixes them in that order.
        task: the number of the one task that all environments are of; None: equal shares of all.

    Raises `ConfigError` where the parts do not agree.
    """

    lanes = 1
    advanced: Sequence[int] | None = None
    ended: Sequence[int] = ()

    def __init__(self, tasks: Sequence[str], parts: Sequence[EnvGroup], task: int | None = None) -> None:
        self.spec = joint_spec(tasks, [part.spec for part in parts])
        self.parts = list(parts)
        self.num_envs = self.lane_size = sum(part.num_envs for part in parts)
        self.tasks = np.full(self.num_envs, task) if task is not None else np.arange(self.num_envs) % len(tasks)
        """int [E]: the number of each environment's task."""
        self.tensors = bool(getattr(parts[0], "tensors", False))
        """Rows are tensors on the environments' device (`headrace.envs.tensor`)."""
        if any(bool(getattr(part, "tensors", False)) != self.tensors for part in parts):
            raise ConfigError(f"{self.spec.name}: some of these tasks are environments of tensors and some are not")
        self._numbers: Any = None
        self._waiting: list[EnvGroup] = []
        self._called = 0
        """The part that was called last."""

    def _rows(self, part: int) -> slice:
        """Which environments are of this part."""
        return slice(part, None, len(self.parts))

    @property
    def called(self) -> int | None:
        """See `EnvGroup.called`."""
        number = self.parts[self._called].called
        return None if number is None else self._called + number * len(self.parts)

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`. The environments of part k are seeded one behind the other, from `seed` + k E / parts on."""
        (row,) = out
        for k, part in enumerate(self.parts):
            self._called = k
            part.reset(seed + k * part.num_envs, [row.map(itemgetter(self._rows(k)))])
        self._waiting = list(self.parts)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`."""
        (row,) = rows
        if row.step.task is not None:
            row.step.task[:] = self._task_numbers(row.step.task)
        if len(self.parts) == 1:
            self.parts[0].send(rows)
        else:
            for k, part in enumerate(self.parts):
                self._called = k
                part.send([row.map(itemgetter(self._rows(k)))])
        self._waiting = list(self.parts)

    def _task_numbers(self, like: Any) -> Any:
        """`tasks`, as an array of the kind that rows are."""
        if self._numbers is None:
            self._numbers = self.tasks if isinstance(like, np.ndarray) else like.new_tensor(self.tasks)
        return self._numbers

    def recv(self) -> bool:
        """See `EnvGroup.recv`."""
        self._waiting = [part for part in self._waiting if not part.recv()]
        return not self._waiting

    def notify(self, wake: Callable[[], None]) -> None:
        """See `EnvGroup.notify`."""
        for part in self.parts:
            part.notify(wake)

    def remember(self) -> None:
        """See `EnvGroup.remember`."""
        for part in self.parts:
            part.remember()

    def get_state(self) -> dict[str, Any] | None:
        """See `EnvGroup.get_state`."""
        states = [part.get_state() for part in self.parts]
        return None if any(state is None for state in states) else {"parts": states}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`."""
        if len(state["parts"]) != len(self.parts):
            raise EnvironmentFault(f"{self.spec.name}: the saved state is of {len(state['parts'])} tasks, not {len(self.parts)}")
        for part, of_part in zip(self.parts, state["parts"], strict=True):
            part.set_state(of_part)

    def close(self) -> None:
        """Close all parts, also when one of them fails to."""
        close_all(self.parts)
