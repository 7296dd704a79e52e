"""Base classes of groups, and `Completion`, which waits for a group."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from threading import Event
from typing import Any

import numpy as np

from headrace.envs.core.contract import Array, EnvGroup, EnvSpec, LaneRow, ObsRow, StepRow, on_host
from headrace.envs.core.errors import EnvironmentFault, cause, faults
from headrace.envs.core.spaces import Leaf
from headrace.envs.groups.checks import ObservationChecks, check_rewards
from headrace.envs.groups.episode_statistics import EpisodeStatistics
from headrace.envs.groups.rewards import RewardTransform
from headrace.processes.interrupt import time_limit

CLOSE_TIMEOUT = 5.0  # seconds that closing one environment may take


class Completion:
    """Blocks until a group's step is finished."""

    def __init__(self, group: EnvGroup) -> None:
        self._group, self._changed = group, Event()
        group.notify(self._changed.set)

    def wait(self) -> None:
        """Wait until the group's last `reset` or `send` is finished. Raises what `recv` raises."""
        while not self._group.recv():
            self._changed.wait()
            self._changed.clear()  # before `recv` is called, so that no call of `wake` after it is lost


def close_all(envs: Sequence[Any]) -> None:
    """Close every environment that has a `close`. If that fails, or takes longer than `CLOSE_TIMEOUT`, a `UserWarning` is given
    instead of an error, since the results of the environment are complete by then."""
    for i, env in enumerate(envs):
        try:
            with time_limit(CLOSE_TIMEOUT):
                getattr(env, "close", lambda: None)()
        except faults() as error:
            fault = EnvironmentFault(f"closing environment {i} ({type(env).__name__}) failed: {cause(error)}")
            fault.__cause__ = error  # `frames` is read from it
            warnings.warn(f"{fault}\n{fault.frames}".rstrip(), stacklevel=2)


class OneAgentGroup(EnvGroup):
    """Base class of `LocalGroup` and `VectorGroup`: one lane of single-agent environments, errors that name the environment.
    E: `num_envs`. `device`: rows are tensors there, whose numbers are not checked; None: rows are NumPy arrays."""

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        observation_leaves: Sequence[Leaf],
        to_learn: RewardTransform,
        device: str | None = None,
    ) -> None:
        library: Any = np if device is None else importlib.import_module("torch")
        where = {} if device is None else {"device": device}
        self.spec, self.tensors = spec, device is not None
        self.num_envs = self.lane_size = num_envs
        self._leaves = list(observation_leaves)
        self._checks = ObservationChecks(spec, self.fault)
        self._to_learn = to_learn
        self._seed = 0
        self._ended: Array = library.zeros(num_envs, dtype=library.bool, **where)
        """Bool [E]: the last step ended an episode, and the next one resets."""
        self._raw: Array = library.zeros(num_envs, dtype=library.float64, **where)  # [E]: the raw rewards of the last step
        self._statistics = EpisodeStatistics(num_envs, library, **where)

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        (row,) = out
        self._seed = seed
        self._ended[:] = False
        self._statistics.begin()
        row.first[:] = True
        row.valid[:] = True
        self._reset(seed, row)
        if not self.tensors:
            self._checks.check(row.obs, row.valid)
            self._checks.check_bounds(row.obs)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; the step is finished on return."""
        (row,) = rows
        self._step(row.actions, row.step, row.after)

    def _reset(self, seed: int, out: ObsRow) -> None:
        """Write the first observations."""
        raise NotImplementedError

    def _step(self, actions: Array, now: StepRow, after: ObsRow) -> None:
        """Take `actions` [E, A]; write their consequences and the next observations."""
        raise NotImplementedError

    def _finish(self, now: StepRow, after: ObsRow, counted: Array, ended: Array, over: Array) -> None:
        """Check observations and rewards and write the rest of `now`. `ended`: an episode ended; for the others
        see `EpisodeStatistics.step`."""
        if not self.tensors:
            check_rewards(self._raw, self.fault)
            self._checks.check(after.obs, after.valid)
            self._checks.check_bounds(after.obs, after_step=True)
        now.reward[:] = self._to_learn(self._raw)
        self._statistics.step(now, self._raw, counted, over)
        self._ended = ended

    def _own_state(self) -> dict[str, Any]:
        """The group's own state, under the names that it has in checkpoints."""
        return {"seed": self._seed, "_ended": on_host(self._ended)} | self._statistics.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._seed = state["seed"]
        self._ended[:] = state["_ended"]
        self._statistics.set_state(state)

    def fault(self, index: int, what: str) -> EnvironmentFault:
        """The error that says `what` went wrong in environment `index`."""
        game, step = self._statistics.games[index] + 1, self._statistics.lengths[index] + 1
        where = f"environment {index} (seed {self._seed + index}), game {game}, step {step}"
        return EnvironmentFault(f"{self.spec.name}, {where}: {what}")
