"""The last action and the last reward as observations: further inputs of a recurrent core (`policy.previous_action`,
`policy.previous_reward`).

They are observations like the environment's own, so that stores, replays and checkpoints need not know of them. They are written
beside the environment, where a step's action and reward are known, and do not cross the wire to an environment server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from headrace.arrays import ArraySpec
from headrace.config import Config, ConfigError
from headrace.config.policy_overrides import policy_configs
from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow

PREVIOUS_ACTION, PREVIOUS_REWARD = "previous_action", "previous_reward"
"""Names of the observations. As the action array and as `StepRow.reward`; zeros in the first row of an episode."""


def last_step_names(config: Config) -> tuple[str, ...]:
    """Which of the two the run's policies have as inputs."""
    recurrent = [own.policy for own in policy_configs(config) if own.policy.core != "none"]
    return tuple(name for name in (PREVIOUS_ACTION, PREVIOUS_REWARD) if any(getattr(policy, name) for policy in recurrent))


def with_last_step(spec: EnvSpec, names: Sequence[str]) -> EnvSpec:
    """The specification with these observations. Raises `ConfigError` where the environment has one of that name."""
    if not names:
        return spec
    if taken := set(names) & set(spec.observation):
        raise ConfigError(f"{spec.name} has an observation {taken.pop()!r} of its own: leave policy.{PREVIOUS_ACTION} and "
                          f"policy.{PREVIOUS_REWARD} out")  # fmt: skip
    both = {
        PREVIOUS_ACTION: ArraySpec((spec.action.width,), spec.action.dtype),
        PREVIOUS_REWARD: ArraySpec((), np.dtype(np.float32)),
    }
    agents = tuple(with_last_step(agent, names) for agent in spec.of_agents)
    return replace(spec, observation=spec.observation | {name: both[name] for name in names}, of_agents=agents)


def without_last_step(spec: EnvSpec, names: Sequence[str]) -> EnvSpec:
    """The environment's own specification: the inverse of `with_last_step`."""
    own = {name: array for name, array in spec.observation.items() if name not in names}
    return replace(spec, observation=own, of_agents=tuple(without_last_step(agent, names) for agent in spec.of_agents))


def remember_last_step(group: EnvGroup, names: Sequence[str]) -> EnvGroup:
    """A group that also writes these observations; `group` itself where there are none."""
    return cast(EnvGroup, LastStepGroup(group, names)) if names else group


class LastStepGroup:
    """See `remember_last_step`. Whatever is not here is the group's."""

    def __init__(self, group: EnvGroup, names: Sequence[str]) -> None:
        self.inner, self._names = group, names
        self.spec = with_last_step(group.spec, names)
        self._begun: Sequence[ObsRow] = ()
        self._stepped: Sequence[LaneRow] = ()  # the rows of what has not finished yet

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        self._begun = out
        self.inner.reset(seed, [self._own(row) for row in out])

    def send(self, rows: Sequence[LaneRow]) -> None:
        self._stepped = rows
        steps = [replace(row.step, final_obs=self._without(row.step.final_obs)) for row in rows]
        self.inner.send([LaneRow(row.actions, step, self._own(row.after)) for row, step in zip(rows, steps, strict=True)])

    def recv(self) -> bool:
        if not self.inner.recv():
            return False
        for obs in self._begun:
            self._write_zeros(obs)
        lanes = range(len(self._stepped)) if self.inner.advanced is None else self.inner.advanced
        for row in [self._stepped[lane] for lane in lanes] if self._stepped else ():
            if row.actions is None:  # of an agent whose first episode begins
                self._write_zeros(row.after)
            else:
                self._write(row)
        self._begun = self._stepped = ()
        return True

    def _write_zeros(self, row: ObsRow) -> None:
        for name in self._names:
            row.obs[name][:] = 0

    def _write(self, row: LaneRow) -> None:
        """Into the observation after a step. NumPy arrays, or tensors on the environments' device."""
        last = {PREVIOUS_ACTION: row.actions, PREVIOUS_REWARD: row.step.reward}
        goes_on = {PREVIOUS_ACTION: ~row.after.first[:, None], PREVIOUS_REWARD: ~row.after.first}
        for name in self._names:
            row.after.obs[name][:] = last[name] * goes_on[name]
            if row.step.final_obs:
                row.step.final_obs[name][:] = last[name]

    def _own(self, row: ObsRow) -> ObsRow:
        return ObsRow(self._without(row.obs), row.first, row.valid)

    def _without(self, obs: dict[str, Any]) -> dict[str, Any]:
        return {name: array for name, array in obs.items() if name not in self._names}
