"""The group of single-agent environments that run in the calling process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np

from headrace.envs.core.action_log import ActionLog, own_state
from headrace.envs.core.actions import decoder
from headrace.envs.core.contract import EnvSpec, ObsRow, StepRow
from headrace.envs.core.errors import EnvironmentFault, faults, naming
from headrace.envs.core.spaces import leaves
from headrace.envs.groups.base import OneAgentGroup, close_all
from headrace.envs.groups.checks import STEP, cause_of_call, first_observation, flag, parts_of
from headrace.envs.groups.episode_statistics import LIFE_LOST, numbers_of
from headrace.envs.groups.rewards import RewardTransform


class LocalGroup(OneAgentGroup):
    """Gymnasium environments with equal spaces, stepped one after the other in this process."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], spec: EnvSpec, to_learn: RewardTransform) -> None:
        super().__init__(spec, len(envs), leaves(envs[0].observation_space), to_learn)
        self.envs = list(envs)
        self._decode = decoder(envs[0].action_space)
        self._logs: list[ActionLog] = []
        """One for each environment, if `remember` was called and the environments give no state of their own; else empty."""
        self._last_obs: dict[str, np.ndarray] = {}
        """With logs: copies of the last observations, by name, for the check in `set_state`."""

    def remember(self) -> None:
        self._logs = [ActionLog(env) for env in self.envs]

    def _reset(self, seed: int, out: ObsRow) -> None:
        for i, log in enumerate(self._logs):
            log.start_episode(seed + i)
        for i, env in enumerate(self.envs):
            self.called = i
            try:
                observation = first_observation(env.reset(seed=seed + i), dict)
                for leaf in self._leaves:
                    leaf.put_one(out.obs[leaf.name], i, observation)
            except faults() as error:
                raise self.fault(i, f"reset failed: {cause_of_call(error)}") from error
        if self._logs and all(own_state(env) is not None for env in self.envs):  # before a reset they may have none
            self._logs = []
        self._copy_obs(out.obs)

    def _step(self, actions: np.ndarray, now: StepRow, after: ObsRow) -> None:
        for log, starts, action in zip(self._logs, self._ended, actions, strict=False):
            log.start_episode() if starts else log.append(action)
        raw, terminated, truncated = self._raw, now.terminated, now.truncated
        starting = self._ended.tolist()
        over = np.zeros(self.num_envs, bool)
        puts = [(leaf.put_one, after.obs[leaf.name]) for leaf in self._leaves]
        i = 0
        try:
            for i, (env, action) in enumerate(zip(self.envs, self._decode(actions), strict=True)):
                self.called = i
                if starting[i]:
                    observation = first_observation(env.reset(), dict)
                    raw[i], terminated[i], truncated[i] = 0.0, False, False
                else:
                    observation, reward, end, cut, info = parts_of(env.step(action), STEP)
                    plain = type(end) is bool and type(cut) is bool
                    terminated[i], truncated[i] = (end, cut) if plain else (flag(end), flag(cut))
                    try:
                        raw[i] = reward if reward is not None else ""  # NumPy would make NaN of None
                    except (TypeError, ValueError):
                        raise TypeError(f"the reward is {reward!r:.60}, but must be a number") from None
                    if not isinstance(info, dict):
                        raise TypeError(f"the info is a {type(info).__name__}, but must be a dictionary")
                    over[i] = (terminated[i] or truncated[i]) and not info.get(LIFE_LOST)
                    if now.episode_info is not None and over[i]:
                        now.episode_info[i] = numbers_of(info, self.spec.info_metrics)
                for put_one, row in puts:
                    put_one(row, i, observation)
        except faults() as error:
            raise self.fault(i, f"{'reset' if starting[i] else 'step'} failed: {cause_of_call(error)}") from error
        for log, starts, reward in zip(self._logs, starting, raw.tolist(), strict=False):
            if not starts:
                log.rewards.append(reward)
        after.first[:] = self._ended
        ended = terminated | truncated
        np.logical_not(ended, out=after.valid)
        self._finish(now, after, ~self._ended, ended, over)
        self._copy_obs(after.obs)

    def set_reward_weights(self, weights: dict[str, float]) -> None:
        """Set the weights of the reward's parts. Raises `EnvironmentFault` if an environment fails."""
        for i, env in enumerate(self.envs):
            with naming(partial(self.fault, i), f"set_reward_weights({weights}) failed"):
                env.get_wrapper_attr("set_reward_weights")(dict(weights))

    def _copy_obs(self, rows: dict[str, np.ndarray]) -> None:
        self._last_obs = {name: row.copy() for name, row in rows.items()} if self._logs else {}

    def get_state(self) -> dict[str, Any]:
        """The states of the environments: what `get_state()` of the outermost wrapper returns (wrappers have a state, too), or
        else the actions of the episode, if `remember` was called."""
        sources = self._logs or self.envs
        return self._own_state() | {"envs": [cast(Any, source).get_state() for source in sources], "last_obs": self._last_obs}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        lost = "its episode could not be brought back"  # the checkpoint is good, and its episodes can begin anew
        if not state["last_obs"]:  # the environments gave their states
            for i, (env, env_state) in enumerate(zip(self.envs, state["envs"], strict=True)):
                with naming(partial(self.fault, i), lost):
                    cast(Any, env).set_state(env_state)
            self._logs = []
            return
        self._last_obs = {name: np.zeros_like(row) for name, row in state["last_obs"].items()}
        for i, (log, env_state) in enumerate(zip(self._logs, state["envs"], strict=True)):
            with naming(partial(self.fault, i), lost):
                observation = log.set_state(env_state, self._decode)
                for leaf in self._leaves:
                    leaf.put_one(self._last_obs[leaf.name], i, observation)
        same = all(np.array_equal(row, self._last_obs[name]) for name, row in state["last_obs"].items())
        for log, env_state in zip(self._logs, state["envs"], strict=True):  # older checkpoints have no rewards
            same &= "rewards" not in env_state or np.array_equal(env_state["rewards"], log.rewards)
        if not same:
            raise EnvironmentFault(
                f"{self.spec.name}: the same actions from the same `np_random` did not lead back to the same observations and "
                "rewards; it has other sources of randomness, or a state that lasts over episodes"
            )

    def close(self) -> None:
        close_all(self.envs)
