"""What the learner is given, and what gives it: a typed batch of trajectories or of replayed transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:  # nodes of a cluster do without torch where they only pass on what arrives
    from torch import Tensor

_floats, _counts = partial(np.empty, 0, np.float32), partial(np.empty, 0, np.int32)


@dataclass
class Arrivals:
    """What came in since it was last asked for: numbers in host memory. The k episodes are those that ended, of the environments
    that are reported (`Algorithm.reported_envs`)."""

    steps: int  # transitions, over all environments
    returns: np.ndarray = field(default_factory=_floats)  # float32 [k]: unclipped returns of the episodes
    lengths: np.ndarray = field(default_factory=_counts)  # int32 [k]: their lengths in steps
    infos: np.ndarray = field(default_factory=_floats)  # float32 [k, n]: their numbers for `envs.info_metrics`; else empty
    tasks: np.ndarray = field(default_factory=_counts)  # int32 [k]: the number of their task, where there are several; else empty
    agents: np.ndarray = field(default_factory=_counts)
    """int32 [k]: the number of their agent, in a multi-agent environment; else empty."""
    versions: np.ndarray = field(default_factory=_counts)
    """int32 [k]: the version of the weights that chose their last action; empty where that is not known."""
    task_steps: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    """int64 [K or less]: transitions of each task, where there are several; else empty."""

    @classmethod
    def of(cls, fields: Mapping[str, np.ndarray], reported: np.ndarray | bool = True) -> Arrivals:
        """What trajectories of T steps brought.

        Args:
            fields: of the trajectory store: `valid`, bool [T or more, ...], whose rows from T on do not count; `episode_return`
                (NaN where no episode ended) and `episode_length`, [T, ...]; `episode_info`, `task`, `agent` if there.
            reported: bool [T, ...], the environments whose episodes are reported.
        """
        ended, valid = ~np.isnan(fields["episode_return"]) & reported, fields["valid"][: len(fields["episode_return"])]
        arrivals = cls(int(valid.sum()))
        for name, source in EPISODE_FIELDS.items():
            if source in fields:
                setattr(arrivals, name, fields[source][ended])
        if "task" in fields:
            arrivals.task_steps = np.bincount(fields["task"][valid])
        return arrivals

    def since(self, version: int) -> Arrivals:
        """The same without the episodes whose last action older weights chose."""
        kept = self.versions >= version
        if not len(kept) or kept.all():
            return self
        return replace(self, **{name: own[kept] for name in EPISODE_FIELDS if len(own := getattr(self, name))})

    @classmethod
    def sum(cls, parts: Sequence[Arrivals]) -> Arrivals:
        """All of them together."""
        total = cls(sum(part.steps for part in parts))
        for name in EPISODE_FIELDS:
            if there := [own for part in parts if len(own := getattr(part, name))]:
                setattr(total, name, np.concatenate(there))
        total.task_steps = np.zeros(max((len(part.task_steps) for part in parts), default=0), np.int64)
        for part in parts:
            total.task_steps[: len(part.task_steps)] += part.task_steps
        return total


EPISODE_FIELDS = {
    "returns": "episode_return",
    "lengths": "episode_length",
    "infos": "episode_info",
    "tasks": "task",
    "agents": "agent",
    "versions": "version",
}
"""What `Arrivals` holds of each episode, and the field of a trajectory that it is taken from."""


@dataclass
class Batch:
    """Something to learn from: B trajectories of T steps, or B replayed transitions or sequences."""

    data: dict[str, Tensor]
    """The algorithm's fields, on the learner's device. Trajectories: every field of the trajectory store, [T+1, B, ...] or
    [T, B, ...] by its number of rows, `core` [B, S]. Replay: see the algorithm, such as `headrace.learning.apex_dqn.ApexDQN`. The
    dictionary is the learner's; the tensors are overwritten after `Experience.release`."""
    version: Tensor
    """int32, of the shape of the actions: version of the weights that chose each action. Trajectories: in host memory."""
    valid: Tensor | None  # bool [T+1, B], in host memory: rows that are transitions. None: every row is one (replay).
    keys: Any  # what `Experience.update_priorities` wants, as the replay has it. None: there are no priorities (trajectories).
    arrivals: Arrivals
    behind: Tensor | None = None
    """int32 [T, B], in host memory: newer versions that had been published when the action was chosen. None: not known (replay),
    or actors always have the newest weights."""


@dataclass
class Filling:
    """There is nothing to learn from yet: the replay is below its minimum, or held back by its samples-per-insert limit."""

    arrivals: Arrivals


class Experience(Protocol):
    """Gives the learner its batches. The methods that are implemented here suit trajectories, each learned from once: they have
    no priorities, no metrics and nothing to save. A replay overrides them."""

    def next(self, timeout: float | None = None) -> Batch | Filling | None:
        """The next batch. Waits up to `timeout` seconds (None: without a limit); None if there was nothing within that time, and
        at the end of the run. Raises what failed while batches were made."""
        ...

    def release(self) -> None:
        """Called when the learner has queued all its work on the newest batch. Once the device has done that work, the memory of
        the batch may be overwritten."""
        return None

    def update_priorities(self, keys: Any, priorities: Tensor) -> None:
        """New priorities, float [B] on any device, of what the batch with these keys held. Replay only."""
        raise TypeError("trajectories have no priorities")

    def metrics(self) -> dict[str, float]:
        """Numbers about the experience itself since the last call, by metric name."""
        return {}

    def save(self, folder: Path) -> None:
        """Write what a checkpoint keeps of the experience into the checkpoint's folder."""
        return None

    def get_state(self) -> dict[str, Any] | None:
        """What belongs to the checkpoint's own state, where everything stands still (serial)."""
        return None

    def restore(self, folder: Path, state: Any) -> list[str]:
        """Go on from what `save` and `get_state` gave; returns what the user should know."""
        return []
