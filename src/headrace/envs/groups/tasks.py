"""The group of several tasks for one policy (``atari/pong,atari/boxing``).

Tasks with different specifications are refused. `TaskGroup` alone knows the task of each environment and writes its number to
every row; only statistics read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.groups.base import close_all

ADVICE = (
    "The tasks of one policy must observe and act alike: envs.resize, envs.frame_stack, envs.kwargs and others apply to all of "
    "them, envs.task_options to single ones"
)


def spec_of_tasks(tasks: Sequence[str], specs: Sequence[EnvSpec]) -> EnvSpec:
    """The specification of several tasks together. Raises `ConfigError` that names the first task that differs, and how."""
    first = specs[0]
    for spec in specs[1:]:
        for what, ours, theirs in (
            ("actions", _actions(first), _actions(spec)),
            ("observations", _observations(first), _observations(spec)),
            ("frames per step", first.frameskip, spec.frameskip),
            ("frames per observation", first.frame_stack, spec.frame_stack),
            ("autoreset", first.autoreset, spec.autoreset),
            ("bounds of actions", first.action, spec.action),
            ("envs.info_metrics", first.info_metrics, spec.info_metrics),
        ):
            if ours != theirs:
                raise ConfigError(f"{spec.name} has other {what} than {first.name}: {theirs} instead of {ours}. {ADVICE}")
    return replace(first, name=",".join(tasks), tasks=tuple(tasks))


def difference(spec: EnvSpec, other: EnvSpec) -> str:
    """What the other's observations or actions are instead of those of `spec`; empty if policies of `spec` can act there."""
    for what, of in (("actions", _actions), ("observations", _observations)):
        ours, theirs = ([of(each) for each in (one, *one.of_agents)] for one in (spec, other))
        if ours != theirs:
            return f"{what}: {'; '.join(theirs)} instead of {'; '.join(ours)}"
    return ""


def _actions(spec: EnvSpec) -> str:
    return ", ".join(f"{part.n} choices" if hasattr(part, "n") else f"{part.width} numbers" for part in spec.action.parts)


def _observations(spec: EnvSpec) -> str:
    return ", ".join(f"{name} {array.dtype.name} {list(array.shape)}" for name, array in sorted(spec.observation.items()))


class TaskGroup(EnvGroup):
    """Environments of several tasks in one lane: environment i plays task i modulo their number; or all play the same task.

    Args:
        tasks: ids of the run's tasks.
        parts: groups of one lane each: one for each task, or one that mixes them in that order.
        task: the number of the task that all environments play; None: an equal number of environments for each task.

    Raises `ConfigError` if the parts' specifications differ.
    """

    def __init__(self, tasks: Sequence[str], parts: Sequence[EnvGroup], task: int | None = None) -> None:
        self.spec = spec_of_tasks(tasks, [part.spec for part in parts])
        self.parts = list(parts)
        self.num_envs = self.lane_size = sum(part.num_envs for part in parts)
        self.tasks = np.full(self.num_envs, task) if task is not None else np.arange(self.num_envs) % len(tasks)
        """int [E]: the number of each environment's task."""
        self.tensors = parts[0].tensors
        if any(part.tensors != self.tensors for part in parts):
            raise ConfigError(f"{self.spec.name}: some of these tasks are environments of tensors and some are not")
        self._numbers: Any = None
        self._waiting: list[EnvGroup] = []
        self._called = 0  # the part that was called last

    def _rows(self, part: int) -> slice:
        """The indices of a part's environments."""
        return slice(part, None, len(self.parts))

    @property
    def called(self) -> int | None:  # type: ignore[override]  # read while a part steps
        number = self.parts[self._called].called
        return None if number is None else self._called + number * len(self.parts)

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`. The environments of part k have successive seeds from `seed` + k E / parts on."""
        (row,) = out
        for k, part in enumerate(self.parts):
            self._called = k
            part.reset(seed + k * part.num_envs, [row.map(itemgetter(self._rows(k)))])
        self._waiting = list(self.parts)

    def send(self, rows: Sequence[LaneRow]) -> None:
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
        """`tasks`, as an array of the same kind as `like`."""
        if self._numbers is None:
            self._numbers = self.tasks if isinstance(like, np.ndarray) else like.new_tensor(self.tasks)
        return self._numbers

    def recv(self) -> bool:
        self._waiting = [part for part in self._waiting if not part.recv()]
        return not self._waiting

    def notify(self, wake: Callable[[], None]) -> None:
        for part in self.parts:
            part.notify(wake)

    def remember(self) -> None:
        for part in self.parts:
            part.remember()

    def get_state(self) -> dict[str, Any] | None:
        states = [part.get_state() for part in self.parts]
        return None if any(state is None for state in states) else {"parts": states}

    def set_state(self, state: dict[str, Any]) -> None:
        if len(state["parts"]) != len(self.parts):
            raise EnvironmentFault(f"{self.spec.name}: the saved state is of {len(state['parts'])} tasks, not {len(self.parts)}")
        for part, of_part in zip(self.parts, state["parts"], strict=True):
            part.set_state(of_part)

    def close(self) -> None:
        close_all(self.parts)
