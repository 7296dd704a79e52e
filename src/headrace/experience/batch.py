"""What the learner is given, and what gives it: a typed batch of trajectories or of replayed transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor


@dataclass
class Arrivals:
    """What came in since it was last asked for: numbers in host memory."""

    steps: int
    """Transitions, over all environments."""
    returns: np.ndarray
    """float32 [k]: unclipped returns of the episodes that ended (those that are reported, see `Algorithm.reported_envs`)."""
    lengths: np.ndarray
    """int32 [k]: their lengths in steps."""
    objectives: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    """float32 [k]: their objectives beside the return, where the environment is asked for them; else empty."""
    tasks: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32 [k]: the number of their task, where there are several; else empty."""
    task_steps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [K or less]: transitions of each task, where there are several; else empty."""
    agents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32 [k]: the number of their agent, in a multi-agent environment; else empty."""

    @classmethod
    def of(
        cls,
        valid: np.ndarray,
        returns: np.ndarray,
        lengths: np.ndarray,
        reported: np.ndarray | bool = True,
        objectives: np.ndarray | None = None,
        tasks: np.ndarray | None = None,
        agents: np.ndarray | None = None,
    ) -> Arrivals:
        """Of trajectories.

        Args:
            valid: bool [T or more, ...], rows that are transitions; those from T on do not count.
            returns, lengths: [T, ...], of the episodes that ended there; NaN where none did.
            reported: bool [T, ...], whose episodes to report.
            objectives: [T, ...], as `returns`.
            tasks: int32 [T, ...], where there are several.
            agents: int32 [T, ...], in a multi-agent environment.
        """
        ended, rows = ~np.isnan(returns) & reported, valid[: len(returns)]
        arrivals = cls(int(rows.sum()), returns[ended], lengths[ended])
        if objectives is not None:
            arrivals.objectives = objectives[ended]
        if tasks is not None:
            arrivals.tasks, arrivals.task_steps = tasks[ended], np.bincount(tasks[rows])
        if agents is not None:
            arrivals.agents = agents[ended]
        return arrivals

    @classmethod
    def sum(cls, parts: Sequence[Arrivals]) -> Arrivals:
        """All of them together."""
        returns = np.concatenate([np.empty(0, np.float32), *(part.returns for part in parts)])
        lengths = np.concatenate([np.empty(0, np.int32), *(part.lengths for part in parts)])
        objectives = np.concatenate([np.empty(0, np.float32), *(part.objectives for part in parts)])
        tasks = np.concatenate([np.empty(0, np.int32), *(part.tasks for part in parts)])
        task_steps = np.zeros(max((len(part.task_steps) for part in parts), default=0), np.int64)
        for part in parts:
            task_steps[: len(part.task_steps)] += part.task_steps
        agents = np.concatenate([np.empty(0, np.int32), *(part.agents for part in parts)])
        return cls(sum(part.steps for part in parts), returns, lengths, objectives, tasks, task_steps, agents)


@dataclass
class Batch:
    """Something to learn from: B trajectories of T steps, or B replayed transitions or sequences."""

    data: dict[str, Tensor]
    """The algorithm's fields, on the learner's device. Trajectories: every field of the trajectory store, [T+1, B, ...] or
    [T, B, ...] by its number of rows, `core` [B, S]. Replay: see the algorithm, such as `headrace.learning.apex_dqn.ApexDQN`. The
    dictionary is the learner's; the tensors are overwritten after `Experience.release`."""
    version: Tensor
    """int32, of the shape of the actions: version of the weights that chose each action. Trajectories: in host memory."""
    valid: Tensor | None
    """bool [T+1, B], in host memory: rows that are transitions. None: every row is one (replay)."""
    keys: Any
    """What `Experience.update_priorities` wants, as the replay has it. None: there are no priorities (trajectories)."""
    arrivals: Arrivals


@dataclass
class Filling:
    """There is nothing to learn from yet: the replay is below its minimum, or held back by its samples-per-insert limit."""

    arrivals: Arrivals


class Experience(Protocol):
    """Where batches come from."""

    def next(self, timeout: float | None = None) -> Batch | Filling | None:
        """The next batch. Waits up to `timeout` seconds (None: without a limit); None if there was nothing within that time, and
        at the end of the run. Raises what failed while batches were made."""
        ...

    def update_priorities(self, keys: Any, priorities: Tensor) -> None:
        """New priorities, float [B] on any device, of what the batch with these keys held. Replay only."""
        ...

    def release(self) -> None:
        """The learner has given its device all the work there is with the batch got last: behind that its memory may be
        overwritten."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers about the experience itself since the last call, by metric name."""
        ...

    def save(self, folder: Path) -> None:
        """Write what a checkpoint keeps of the experience into the checkpoint's folder."""
        ...

    def get_state(self) -> dict[str, Any] | None:
        """What belongs to the checkpoint's own state, where everything stands still (serial)."""
        ...

    def restore(self, folder: Path, state: Any) -> list[str]:
        """Go on from what `save` and `get_state` gave; returns what the user should know."""
        ...


class ConsumedOnce:
    """What an `Experience` of trajectories that are consumed once leaves out: it has no priorities, no metrics and nothing to
    save."""

    def update_priorities(self, keys: Any, priorities: Tensor) -> None:
        """Raises `NotImplementedError`."""
        raise NotImplementedError("trajectories have no priorities")

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def save(self, folder: Path) -> None:
        """Nothing."""

    def get_state(self) -> dict[str, Any] | None:
        """None."""
        return None

    def restore(self, folder: Path, state: Any) -> list[str]:
        """Nothing."""
        return []
