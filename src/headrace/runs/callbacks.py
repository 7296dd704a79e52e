"""What `headrace.train` reports to its caller: during training by `Callbacks`, which may end it, and at the end by
`TrainResult`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.config.errors import ConfigError
from headrace.runs.messages import Message

if TYPE_CHECKING:
    from headrace.envs.core.contract import EnvSpec

Callback = Callable[[dict[str, Any]], object]
"""A function of one dictionary, whose entry `policy` is the number of the policy. If it returns True (Python's or NumPy's),
training ends with a checkpoint, for the reason "interrupted"."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks that `headrace.train` was given. They run in the process that called it. An error in one ends training
    with a checkpoint and is raised."""

    on_update: Callback | None = None
    """Called with the learner's metrics since its last call, every `run.log_interval` seconds (0: after every update), if there
    was an update meanwhile."""
    on_episode: Callback | None = None
    """Called just before `on_update`, for every episode that ended since, with its `return`, its `length` and
    its numbers for `envs.info_metrics`."""
    on_checkpoint: Callback | None = None
    """Called after every checkpoint except the last one, with its `global_step`."""
    _errors: list[Exception] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        for name in ("on_update", "on_episode", "on_checkpoint"):
            callback = getattr(self, name)
            if callback is not None and not callable(callback):
                raise ConfigError(f"{name} is {callback!r}, must be a function of a dictionary")

    def receive(self, message: Message) -> bool:
        """Call the callbacks for messages of this kind. Returns whether one of them asks for the end of training, or fails. Then
        none is called any more, and `raise_error` raises the error."""
        if self._errors:
            return False
        try:
            return self._call(message)
        except Exception as error:
            self._errors.append(error)
            return True

    def raise_error(self) -> None:
        """Raise the error of a callback, if there was one."""
        if self._errors:
            raise self._errors[0]

    def _call(self, message: Message) -> bool:
        policy = {"policy": message.policy}
        if message.kind == "metrics" and self.on_update is not None:
            updated = "lag/max" in message.content  # what every update tells of the samples that it was made of
            return updated and _is_true(self.on_update(message.content | policy))
        if message.kind == "saved" and self.on_checkpoint is not None:
            return _is_true(self.on_checkpoint({"global_step": message.content} | policy))
        if message.kind == "episodes" and self.on_episode is not None:
            ends = [_is_true(self.on_episode(episode | policy)) for episode in message.content]
            return any(ends)
        return False


def _is_true(answer: object) -> bool:
    """Whether a callback has returned True. Another object that Python takes for true, such as a list, does not end training."""
    return isinstance(answer, bool | np.bool_) and bool(answer)


@dataclass
class TrainResult:
    """How a run ended. `spec`: the specification of its environment."""

    folder: str
    reason: str
    """"total_steps", "goal", "max_minutes", "no_samples" or "interrupted"; with several policies that of the first."""
    global_step: int
    """Steps learned from, over all policies."""
    mean_return: float
    """Mean return of the last 100 episodes (of the first policy); NaN if none has ended."""
    spec: EnvSpec
