"""One match of a multi-agent environment: which agents act, when their episodes begin and end, and the rows of each agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.config.seeds import RANGE
from headrace.envs.core.action_log import own_state
from headrace.envs.core.contract import MASK_KEY, EnvSpec, LaneRow
from headrace.envs.core.errors import EnvironmentFault, cause, faults, naming
from headrace.envs.core.family_interface import ParallelEnv
from headrace.envs.core.spaces import leaves
from headrace.envs.groups.checks import LARGEST, ObservationChecks, too_large
from headrace.envs.groups.episode_statistics import OUTCOME, numbers_of
from headrace.envs.groups.rewards import RewardTransform

INACTIVE = "is_active"  # info key: False if the agent's action would have no effect in the next step
INFO_MASK = "action_mask"  # info key of the action mask, see `EnvConfig.info_action_mask`
SEED_STEP = 1_000_003
"""Match k of an environment with seed s is reset with the seed s + k * SEED_STEP, so that it can be replayed on its own. After
the last seed of the `Use` that s belongs to comes its first."""

_SAVED = ("steps", "over", "playing", "acting", "pending", "returns", "lengths", "outcomes")  # of a `Match` in checkpoints
ByAgent = Mapping[Any, Any]


@dataclass(frozen=True)
class MatchRules:
    """Settings that all matches of a group share."""

    spec: EnvSpec
    to_learn: RewardTransform
    max_steps: int | None  # steps after which a match is truncated
    info_mask: bool  # the infos hold the action masks


class Match:
    """The current match of one environment. Agents are indices into `names`. `index`: of the environment in its group."""

    def __init__(self, index: int, env: ParallelEnv, rules: MatchRules) -> None:
        self.index, self.env, self._rules = index, env, rules
        self.names = list(env.possible_agents)
        self._leaves = [leaves(env.observation_space(name)) for name in self.names]
        self._checks = [
            ObservationChecks(rules.spec.of_agent(a), lambda _, what: self.fault(what), f" of {name}")
            for a, name in enumerate(self.names)
        ]
        self.number = -1  # matches that this environment has begun before
        self.seed = 0  # seed of its first match
        self.weights: list[dict[str, float]] = []  # the weights of each agent's reward parts; empty if they were never set
        self._clear()
        self.over = True

    def _clear(self) -> None:
        A = len(self.names)
        self.steps = 0
        self.over = False
        self.playing = [False] * A  # whether each agent is in an episode
        self.acting: list[int] = []  # agents that act in the next step
        self.advanced: list[int] = []  # agents to which the last step or reset wrote a new row
        self.pending = [0.0] * A  # sum of each agent's rewards since its last action
        self.returns, self.lengths = [0.0] * A, [0] * A  # raw return and number of actions of each agent's episode
        self.outcomes = np.zeros(A)
        """float64 [A]: sums of all rewards; after the match, the outcomes by which agents are compared."""
        self.given: dict[int, float] = {}  # outcomes from infos, by agent; they replace the sums
        self.actions: list[tuple[list[int], list[np.ndarray]]] = []
        """With `MultiAgentGroup.remember`: the agents that acted in each step of the match, and their actions."""

    @property
    def reset_seed(self) -> int:
        first = self.seed - self.seed % RANGE
        return first + (self.seed + self.number * SEED_STEP) % RANGE

    def begin(self, rows: Sequence[LaneRow]) -> None:
        """Begin the next match; `rows`: one for each agent."""
        self.number += 1
        self._clear()
        with naming(self.fault, "reset failed"):
            observations, infos = self.env.reset(seed=self.reset_seed)
            if not self.env.agents:
                raise ValueError("the match began without an agent")
            self._begin_episodes(observations, infos, rows)

    def step(self, actions: dict[Any, Any], rows: Sequence[LaneRow]) -> None:
        """Step the environment with the actions of the acting agents, by their names."""
        acted, self.acting, self.advanced = self.acting, [], []
        try:
            observations, rewards, terminations, truncations, infos = self.env.step(actions)
            for a in acted:
                self.lengths[a] += 1
                if rewards.get(self.names[a]) is None:  # None: neither an entry nor a number
                    raise self.fault(f"there is no reward for {self.names[a]}, which acted in this step")
            here = self.env.agents
            cut = self._rules.max_steps is not None and self.steps + 1 >= self._rules.max_steps
            over = all(terminations.get(name) or truncations.get(name) for name in here) or cut
            if cut:
                observations = self._with_last(observations)
            for a, name in enumerate(self.names):
                self._count(a, rewards.get(name), infos.get(name, ()))
                if not self.playing[a]:
                    continue
                terminated = bool(terminations.get(name))
                truncated = bool(truncations.get(name)) or (name not in here and not terminated) or (cut and not terminated)
                if terminated or truncated:
                    self._end_episode(a, rows[a], (terminated, truncated), observations, infos)
                elif name in observations and infos.get(name, {}).get(INACTIVE, True):
                    self._write(a, rows[a], observations[name], infos)
                    self.acting.append(a)
                    self.advanced.append(a)
            if over:
                self.over = True
                self.outcomes = np.array([self.given.get(a, value) for a, value in enumerate(self.outcomes)])
            else:
                self._begin_episodes(observations, infos, rows)
            self.steps += 1
        except EnvironmentFault:
            raise
        except faults() as error:
            raise self.fault(f"step failed: {cause(error)}") from error

    def _with_last(self, observations: ByAgent) -> ByAgent:
        """The observations of a step with which the match is cut off, and those of agents whose turn it is not."""
        if (observe := getattr(self.env, "observe", None)) is None:
            return observations
        waiting = [name for a, name in enumerate(self.names) if self.playing[a] and name in self.env.agents]
        return {name: observe(name) for name in waiting if name not in observations} | dict(observations)

    def _count(self, a: int, reward: Any, info: Any) -> None:
        """Add an agent's reward, in an episode or not, and keep the outcome in its info."""
        if reward:
            reward = float(reward)
            if not abs(reward) <= LARGEST:  # NaN is not, either
                raise self.fault(f"the reward of {self.names[a]} is {reward:g}{too_large(reward)}")
            self.pending[a] += reward
            self.returns[a] += reward
            self.outcomes[a] += reward
        if OUTCOME in info:
            self.given[a] = float(info[OUTCOME])

    def _begin_episodes(self, observations: ByAgent, infos: ByAgent, rows: Sequence[LaneRow]) -> None:
        """Begin the episodes of agents that get their first observation, unless their last one ended in this step."""
        for a, name in enumerate(self.names):
            if self.playing[a] or name not in observations or name not in self.env.agents or a in self.advanced:
                continue
            if not infos.get(name, {}).get(INACTIVE, True):
                continue
            self.playing[a], self.pending[a], self.returns[a], self.lengths[a] = True, 0.0, 0.0, 0
            self._write(a, rows[a], observations[name], infos, first=True)
            self.advanced.append(a)
            self.acting.append(a)
        self.acting.sort()

    def _end_episode(self, a: int, row: LaneRow, flags: tuple[bool, bool], observations: ByAgent, infos: ByAgent) -> None:
        """`flags`: terminated, truncated."""
        name, now = self.names[a], row.step
        if name not in observations and not flags[0]:
            raise self.fault(
                f"{name} was truncated without its last observation, whose value is what is to be expected of it. Where "
                "envs.max_episode_steps cuts matches off, a method observe(agent) of the environment can give it"
            )
        self._write(a, row, observations.get(name), infos, valid=False)
        now.terminated[0], now.truncated[0] = flags
        info = infos.get(name, {})
        if not math.isnan(info.get(OUTCOME, 0.0)):  # the return of an aborted match is unknown
            now.episode_return[0], now.episode_length[0] = self.returns[a], self.lengths[a]
            if now.episode_info is not None:
                now.episode_info[0] = numbers_of(info, self._rules.spec.info_metrics)
        self.playing[a], self.returns[a] = False, 0.0
        self.advanced.append(a)

    def _write(self, a: int, row: LaneRow, observation: Any, infos: ByAgent, *, first: bool = False, valid: bool = True) -> None:
        """Write the results of agent `a`'s last action and the observation after it; zeros if `observation` is None."""
        now, after = row.step, row.after
        now.reward[0] = self._rules.to_learn(np.float64(self.pending[a]))
        self.pending[a] = 0.0
        now.terminated[0] = now.truncated[0] = False
        now.episode_return[0], now.episode_length[0] = np.nan, 0
        after.first[0], after.valid[0] = first, valid
        if observation is None:
            for array in after.obs.values():
                array[0] = 0
        else:
            for leaf in self._leaves[a]:
                leaf.put_one(after.obs[leaf.name], 0, observation)
        if self._rules.info_mask:
            after.obs[MASK_KEY][0] = np.asarray(infos.get(self.names[a], {}).get(INFO_MASK, 1), np.uint8).ravel()
        self._checks[a].check(after.obs, after.valid)

    def fault(self, what: str) -> EnvironmentFault:
        """The error for this match; `what` went wrong."""
        where = f"environment {self.index} (seed {self.seed}), match {self.number + 1}, step {self.steps + 1}"
        return EnvironmentFault(f"{self._rules.spec.name}, {where}: {what}")

    def set_reward_weights(self, weights: Sequence[dict[str, float]]) -> None:
        if weights == self.weights:
            return
        self.weights = [dict(own) for own in weights]
        with naming(self.fault, "set_reward_weights failed"):
            self.env.set_reward_weights(dict(zip(self.names, self.weights, strict=True)))

    def get_state(self) -> dict[str, Any]:
        """The seed and the actions so far, or what the environment's own `get_state` returns."""
        own = own_state(self.env)
        log = [] if own is not None else [[acting, list(actions)] for acting, actions in self.actions]
        return {
            "seed": self.seed, "number": self.number, **{name: copy(getattr(self, name)) for name in _SAVED},
            "given": [[a, x] for a, x in self.given.items()], "env": own, "actions": log, "weights": self.weights,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any], decode: Callable[[Sequence[int], Sequence[np.ndarray]], list[Any]]) -> None:
        """Restore what `get_state` returned, by replaying the match from its seed. `decode`: `MultiAgentGroup._decoded`."""
        self.seed, self.number = state["seed"], state["number"]
        if state["weights"]:
            self.set_reward_weights(state["weights"])
        with naming(self.fault, "it could not be brought back"):  # the checkpoint is good, and its matches can begin anew
            if state["env"] is not None:
                self.env.set_state(state["env"])
            else:
                self.env.reset(seed=self.reset_seed)
                for acting, actions in state["actions"]:
                    self.env.step({self.names[a]: action for a, action in zip(acting, decode(acting, actions), strict=True)})
        for name in _SAVED:
            setattr(self, name, copy(state[name]))
        self.given = {int(a): float(x) for a, x in state["given"]}
        self.actions = [(list(acting), [np.array(row) for row in actions]) for acting, actions in state["actions"]]
        here = {name for a, name in enumerate(self.names) if self.playing[a]}
        if not self.over and not here <= set(self.env.agents):
            raise self.fault("the same actions from the same seed did not lead back: it has other sources of randomness")
