"""Groups of multi-agent environments: whatever offers PettingZoo's ParallelEnv interface (1.27).

    possible_agents, agents                     names: all there can be, and those that are in the match now
    observation_space(agent), action_space(agent)
    reset(seed, options)                        -> observations, infos
    step(actions)                               -> observations, rewards, terminations, truncations, infos

All are dictionaries by agent. An environment need not import PettingZoo for that. A *match* lasts from a reset until no agent is
left. An *episode* is one agent's: it begins with its first observation and ends when the agent is terminated or truncated. An
agent may come back later in the same match, with a new episode.

**Who acts.** An agent acts on every observation that it is given. One that is in `agents` but gets no observation in a step, or
whose info says ``"is_active": False``, does not act in the next step, and is in none of its `actions`: that is how turns are
taken. The rewards that it gets until its next observation are added up and belong to its last action.

**Ends.** An agent's last observation comes with its termination or truncation, in the same step. A terminated agent may go
without one, a truncated agent may not, since its value is needed. A match in which every agent was truncated is over, as is one
in which every agent was terminated.

**Outcome.** Agents of a match are compared by the sum of their rewards, or by `info["outcome"]` of their last step, a number,
where rewards are not what decides (shaped rewards, say). NaN says that the match was lost: it counts for nobody, and returns of
episodes that end with it are not reported.

**Shaped rewards.** An environment whose rewards have parts gets their weights by ``set_reward_weights({agent: {name: weight}})``
before a match begins: those of `EnvConfig.reward_weights`, or of the policy that acts for the agent in that match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gymnasium
import numpy as np

from headrace.config import EnvConfig
from headrace.envs.contract import (
    FAULTS,
    MASK_KEY,
    ArraySpec,
    Categorical,
    EnvironmentFault,
    EnvSpec,
    LaneRow,
    ObsRow,
    StepRow,
    StepsAtOnce,
)
from headrace.envs.group import LARGEST, RewardTransform, absurd, close_all, objective_of, reward_transform, too_large
from headrace.envs.spaces import UnsupportedSpace, decoder, leaves, specs_of

INACTIVE = "is_active"
"""Info key: False where the agent's action would have no effect in the next step."""
OUTCOME = "outcome"
"""Info key: the number by which the agents of a match are compared when it ends."""
INFO_MASK = "action_mask"
"""Info key of the action mask, see `EnvConfig.info_action_mask`."""
SEED_STEP = 1_000_003
"""Match k of an environment with seed s is reset with the seed s + k times this, so that it can be played again alone."""


class ParallelEnv(Protocol):
    """PettingZoo's interface, as much as is used of it."""

    possible_agents: list[Any]
    agents: list[Any]

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """What the agent observes; always the same."""
        ...

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """What the agent does; always the same."""
        ...

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """Begin a match: observations, infos."""
        ...

    def step(
        self, actions: dict[Any, Any]
    ) -> tuple[Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any], Mapping[Any, Any]]:
        """Take the actions of the agents that act: observations, rewards, terminations, truncations, infos."""
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...


class Match:
    """What the group knows of one environment's present match. A: its agents."""

    def __init__(self, env: ParallelEnv, agents: Sequence[Any]) -> None:
        self.env, self.agents = env, list(agents)
        self.number = -1
        """Matches that this environment has begun before."""
        self.seed = 0
        """Seed of its first match."""
        self.weights: list[dict[str, float]] = []
        """By agent: of the parts of its rewards; empty where nobody has set them."""
        self.clear()
        self.over = True

    @property
    def reset_seed(self) -> int:
        """The seed of the present match."""
        return (self.seed + self.number * SEED_STEP) % 2**31

    def clear(self) -> None:
        """A match begins."""
        n = len(self.agents)
        self.steps = 0
        self.over = False
        self.playing = [False] * n
        """In an episode: from the first observation to the end."""
        self.acting: list[int] = []
        """Agents (indices) that act in the next step."""
        self.pending = [0.0] * n
        """Rewards since the agent's last action."""
        self.returns = [0.0] * n
        """Raw return of the episode."""
        self.lengths = [0] * n
        """Actions of the episode."""
        self.outcomes = np.zeros(n)
        """float64 [A]: by which agents are compared: the sum of all rewards, or what the infos say."""
        self.given: dict[int, float] = {}
        """Outcomes that infos gave."""
        self.actions: list[tuple[list[int], list[np.ndarray]]] = []
        """With `MultiAgentGroup.remember`: who acted in each step of the match, and how."""


@dataclass(frozen=True)
class AgentSpaces:
    """How one agent's observations and actions become arrays, and back."""

    leaves: list[Any]
    decode: Callable[[np.ndarray], list[Any]]
    floats: list[str]
    """Observations that must be finite."""
    choices: list[int]
    """Of each discrete part of an action, for its mask."""

    @classmethod
    def of(cls, env: ParallelEnv, agent: Any, spec: EnvSpec) -> AgentSpaces:
        """Of one agent, whose specification is `spec`."""
        floats = [name for name, array in spec.observation.items() if np.issubdtype(array.dtype, np.floating)]
        choices = [part.n for part in spec.action.parts if isinstance(part, Categorical)]
        return cls(leaves(env.observation_space(agent)), decoder(env.action_space(agent)), floats, choices)


class MultiAgentGroup(StepsAtOnce):
    """Multi-agent environments stepped one after the other in this process; see the module, and `EnvGroup` for the contract.

    Lane = match x A + agent.
    """

    lane_size = 1

    def __init__(
        self, envs: Sequence[ParallelEnv], spec: EnvSpec, to_learn: RewardTransform, max_steps: int | None, info_mask: bool
    ) -> None:
        self.spec, self.num_envs = spec, len(envs)
        self._names = list(envs[0].possible_agents)
        self.matches = [Match(env, env.possible_agents) for env in envs]
        self.lanes = len(envs) * len(self._names)
        self.advanced = []
        self._to_learn, self._max_steps, self._info_mask = to_learn, max_steps, info_mask
        self._spaces = [AgentSpaces.of(envs[0], name, spec.of_agent(a)) for a, name in enumerate(self._names)]
        self._remembers = False

    # -- steps ------------------------------------------------------------------------------------------------------------

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`; finished on return."""
        rows = [LaneRow(None, StepRow.zeros(1), row) for row in out]  # nobody reads what led to them
        self.advanced, self.ended = [], ()
        for m, match in enumerate(self.matches):
            match.seed, match.number = seed + m, -1
            self._begin(m, match, rows)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; finished on return."""
        A = len(self._names)
        acting = [m * A + a for m, match in enumerate(self.matches) if not match.over for a in match.acting]
        actions = iter(self._decoded(acting, [rows[lane].actions for lane in acting]))
        ended: list[int] = []
        self.advanced = []
        for m, match in enumerate(self.matches):
            if match.over:
                self._begin(m, match, rows)
                continue
            if self._remembers:
                match.actions.append((match.acting, [rows[m * A + a].actions.copy() for a in match.acting]))
            self._step(m, match, {self._names[a]: next(actions) for a in match.acting}, rows)
            if match.over:
                ended.append(m)
        self.ended = ended

    def outcomes(self, m: int) -> np.ndarray:
        """float64 [A]: by what the agents of match `m`, which has ended, are compared."""
        return self.matches[m].outcomes

    def set_reward_weights(self, m: int, weights: Sequence[dict[str, float]]) -> None:
        """Weigh the parts of the rewards in match `m` like this from now on, agent by agent. Raises `EnvironmentFault` where the
        environment cannot."""
        match = self.matches[m]
        if weights == match.weights:
            return
        match.weights = [dict(own) for own in weights]
        try:
            match.env.set_reward_weights(dict(zip(self._names, match.weights, strict=True)))  # type: ignore[attr-defined]
        except FAULTS as error:
            raise self.fault(m, f"set_reward_weights failed: {type(error).__name__}: {error}") from error

    def _decoded(self, agents: Sequence[int], actions: Sequence[np.ndarray]) -> list[Any]:
        """The actions [1, A] of these agents (or lanes), as their environments take them."""
        if not actions:
            return []
        if not self.spec.of_agents:
            return self._spaces[0].decode(np.concatenate(actions))
        return [self._spaces[a % len(self._names)].decode(row)[0] for a, row in zip(agents, actions, strict=True)]

    def _begin(self, m: int, match: Match, rows: Sequence[LaneRow]) -> None:
        match.number += 1
        match.clear()
        self.called = m
        try:
            observations, infos = match.env.reset(seed=match.reset_seed)
            if not match.env.agents:
                raise ValueError("the match began without an agent")
            acting: list[int] = []
            self._arrive(m, match, observations, infos, rows, acting)
        except EnvironmentFault:
            raise
        except FAULTS as error:
            raise self.fault(m, f"reset failed: {type(error).__name__}: {error}") from error
        match.acting = acting

    def _step(self, m: int, match: Match, actions: dict[Any, Any], rows: Sequence[LaneRow]) -> None:
        acting: list[int] = []
        self.called = m
        try:
            observations, rewards, terminations, truncations, infos = match.env.step(actions)
            match.steps += 1
            for a in match.acting:
                match.lengths[a] += 1
            here = match.env.agents
            cut = self._max_steps is not None and match.steps >= self._max_steps
            over = all(terminations.get(name) or truncations.get(name) for name in here) or cut
            for a, name in enumerate(self._names):
                reward = rewards.get(name)
                if reward:
                    reward = float(reward)
                    if not abs(reward) <= LARGEST:  # NaN is not, either
                        raise self.fault(m, f"the reward of {name} is {reward:g}{too_large(reward)}")
                    match.pending[a] += reward
                    match.returns[a] += reward
                    match.outcomes[a] += reward
                if OUTCOME in infos.get(name, ()):
                    match.given[a] = float(infos[name][OUTCOME])
                if not match.playing[a]:
                    continue
                terminated = bool(terminations.get(name))
                truncated = bool(truncations.get(name)) or (name not in here and not terminated) or (cut and not terminated)
                lane = m * len(self._names) + a
                if terminated or truncated:
                    self._end(m, match, a, rows[lane], terminated, truncated, observations, infos)
                elif name in observations and infos.get(name, {}).get(INACTIVE, True):
                    self._write(m, a, rows[lane], match.pending[a], observations[name], infos, False, True)
                    match.pending[a] = 0.0
                    acting.append(a)
                else:
                    continue
                self.advanced.append(lane)  # type: ignore[union-attr]
            if over:
                match.over = True
                match.outcomes = np.array([match.given.get(a, value) for a, value in enumerate(match.outcomes)])
            else:
                self._arrive(m, match, observations, infos, rows, acting)
        except EnvironmentFault:
            raise
        except FAULTS as error:
            raise self.fault(m, f"step failed: {type(error).__name__}: {error}") from error
        match.acting = acting

    def _arrive(
        self, m: int, match: Match, observations: Mapping[Any, Any], infos: Mapping[Any, Any], rows: Sequence[LaneRow],
        acting: list[int],
    ) -> None:  # fmt: skip
        """Begin the episodes of agents that are given their first observation, unless their last one ended with this step."""
        for a, name in enumerate(self._names):
            lane = m * len(self._names) + a
            if match.playing[a] or name not in observations or name not in match.env.agents or lane in self.advanced:  # type: ignore[operator]
                continue
            if not infos.get(name, {}).get(INACTIVE, True):
                continue
            match.playing[a], match.pending[a], match.returns[a], match.lengths[a] = True, 0.0, 0.0, 0
            self._write(m, a, rows[lane], 0.0, observations[name], infos, True, True)
            self.advanced.append(lane)  # type: ignore[union-attr]
            acting.append(a)
        acting.sort()

    def _end(
        self, m: int, match: Match, a: int, row: LaneRow, terminated: bool, truncated: bool, observations: Mapping[Any, Any],
        infos: Mapping[Any, Any],
    ) -> None:  # fmt: skip
        name = self._names[a]
        if name not in observations and not terminated:
            raise self.fault(m, f"{name} was truncated without its last observation, whose value is what is to be expected of it")
        self._write(m, a, row, match.pending[a], observations.get(name), infos, False, False)
        now = row.step
        now.terminated[0], now.truncated[0] = terminated, truncated
        info = infos.get(name, {})
        if not math.isnan(info.get(OUTCOME, 0.0)):  # else the match was lost, and nobody knows what its episodes would have paid
            now.episode_return[0], now.episode_length[0] = match.returns[a], match.lengths[a]
            if now.episode_objective is not None:
                now.episode_objective[0] = objective_of(info)
        match.playing[a], match.pending[a], match.returns[a] = False, 0.0, 0.0

    def _write(
        self, m: int, a: int, row: LaneRow, reward: float, observation: Any, infos: Mapping[Any, Any], first: bool, valid: bool
    ) -> None:
        """Finish a row of agent `a`: what the action before led to, and the observation after it. No observation: zeros."""
        name, own = self._names[a], self._spaces[a]
        now, after = row.step, row.after
        now.reward[0] = self._to_learn(np.float64(reward))
        now.terminated[0] = now.truncated[0] = False
        now.episode_return[0], now.episode_length[0] = np.nan, 0
        after.first[0], after.valid[0] = first, valid
        if observation is None:
            for array in after.obs.values():
                array[0] = 0
        else:
            for leaf in own.leaves:
                leaf.put_one(after.obs[leaf.name], 0, observation)
        for key in own.floats:
            if (place := absurd(after.obs[key])) is not None:
                value = after.obs[key][place]
                raise self.fault(m, f"observation {key!r} of {name} is {value:g} at index {list(place[1:])}{too_large(value)}")
        if MASK_KEY in after.obs:
            mask = after.obs[MASK_KEY][0]
            if self._info_mask:
                mask[:] = np.asarray(infos.get(name, {}).get(INFO_MASK, 1), np.uint8).ravel()
            self._check_mask(m, a, mask, valid)

    def _check_mask(self, m: int, a: int, mask: np.ndarray, valid: bool) -> None:
        at = 0
        for number, n in enumerate(self._spaces[a].choices):
            if not mask[at : at + n].any():
                if valid:
                    raise self.fault(m, f"the action mask of {self._names[a]} allows no choice in discrete part {number}")
                mask[at : at + n] = 1  # an action is computed for the last observation of an episode too, though it is ignored
            at += n

    def fault(self, m: int, what: str) -> EnvironmentFault:
        """The error for match `m`; `what` went wrong."""
        match = self.matches[m]
        where = f"environment {m} (seed {match.seed}), match {match.number + 1}, step {match.steps + 1}"
        return EnvironmentFault(f"{self.spec.name}, {where}: {what}")

    # -- exact resume -----------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """See `EnvGroup.remember`: the actions of every match are kept, to play it again."""
        self._remembers = True

    def get_state(self) -> dict[str, Any] | None:
        """Of every match its seed and the actions so far; or what the environments' own `get_state` returns."""
        if not self._remembers:
            return None
        return {"matches": [self._match_state(match) for match in self.matches]}

    def _match_state(self, match: Match) -> dict[str, Any]:
        own = match.env.get_state() if hasattr(match.env, "get_state") else None
        log = [] if own is not None else [[acting, list(actions)] for acting, actions in match.actions]
        return {
            "seed": match.seed, "number": match.number, "steps": match.steps, "over": match.over, "playing": list(match.playing),
            "acting": list(match.acting), "pending": list(match.pending), "returns": list(match.returns),
            "lengths": list(match.lengths), "outcomes": match.outcomes.copy(), "given": [[a, x] for a, x in match.given.items()],
            "env": own, "actions": log, "weights": match.weights,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`. Matches are played again from their seeds."""
        for m, (match, saved) in enumerate(zip(self.matches, state["matches"], strict=True)):
            match.seed, match.number = saved["seed"], saved["number"]
            if saved["weights"]:
                self.set_reward_weights(m, saved["weights"])
            if saved["env"] is not None:
                match.env.set_state(saved["env"])  # type: ignore[attr-defined]
            else:
                match.env.reset(seed=match.reset_seed)
                for acting, actions in saved["actions"]:
                    decoded = self._decoded(acting, actions)
                    match.env.step({self._names[a]: action for a, action in zip(acting, decoded, strict=True)})
            for name in ("steps", "over", "playing", "acting", "pending", "returns", "lengths"):
                setattr(match, name, saved[name])
            match.outcomes[:] = saved["outcomes"]
            match.given = {int(a): float(x) for a, x in saved["given"]}
            match.actions = [(list(acting), [np.array(row) for row in actions]) for acting, actions in saved["actions"]]
            self._check_players(m, match)

    def _check_players(self, m: int, match: Match) -> None:
        here = {name for a, name in enumerate(self._names) if match.playing[a]}
        if not match.over and not here <= set(match.env.agents):
            raise self.fault(m, "the same actions from the same seed did not lead back: it has other sources of randomness")

    def close(self) -> None:
        """Close every environment, also when one of them fails to."""
        close_all([match.env for match in self.matches])


def multi_agent_group(
    make: Callable[[], ParallelEnv], options: EnvConfig, num_envs: int, env_id: str, frameskip: int = 1
) -> MultiAgentGroup:
    """A group of environments that `make` makes, with the specification that their spaces give.

    Raises `UnsupportedSpace` for spaces without an array form, and for image settings, which only the environment itself can
    apply.
    """
    for name in ("resize", "grayscale", "frame_stack"):
        if getattr(options, name) is not None:
            raise UnsupportedSpace(f"{env_id}: envs.{name} is for environments of one agent; wrap the ParallelEnv instead")
    envs: list[ParallelEnv] = []
    try:
        for _ in range(num_envs):
            envs.append(make())
        spec = parallel_spec(envs[0], options, env_id, frameskip)
    except BaseException:
        close_all(envs)
        raise
    transform = reward_transform(options)
    group = MultiAgentGroup(envs, spec, transform, options.max_episode_steps, options.info_action_mask)
    if options.reward_weights:
        for m in range(num_envs):
            group.set_reward_weights(m, [options.reward_weights] * len(spec.agents))
    return group


def parallel_spec(env: ParallelEnv, options: EnvConfig, env_id: str, frameskip: int = 1) -> EnvSpec:
    """The specification of a multi-agent environment. Raises `UnsupportedSpace`, see `multi_agent_group`."""
    agents = tuple(map(str, env.possible_agents))
    specs = []
    for agent in env.possible_agents:
        observation, action = specs_of(env.observation_space(agent), env.action_space(agent), env_id)
        if options.info_action_mask:
            observation[MASK_KEY] = ArraySpec((action.mask_width,), np.dtype(np.uint8), 0, 1)
        specs.append(EnvSpec(observation, action, options.frameskip or frameskip, name=env_id, agents=agents))
    return replace(specs[0], of_agents=tuple(specs)) if any(spec != specs[0] for spec in specs) else specs[0]
