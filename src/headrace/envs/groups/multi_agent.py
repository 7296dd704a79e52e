"""Groups of multi-agent environments with PettingZoo's ParallelEnv interface (1.27), which they need not import.

    possible_agents, agents                     names of all agents, and of those that are in the match now
    observation_space(agent), action_space(agent)
    reset(seed, options)                        -> observations, infos
    step(actions)                               -> observations, rewards, terminations, truncations, infos

Observations, infos and so on are dictionaries by agent. A *match* lasts from a reset until no agent is left. An *episode* belongs
to one agent: it begins with the agent's first observation and ends when the agent is terminated or truncated. The agent may come
back in the same match, with a new episode. docs/multi-agent.md says the rest: turns, last observations, outcomes, shaped rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.config import EnvConfig
from headrace.envs.core.actions import decoder
from headrace.envs.core.contract import MASK_KEY, ArraySpec, EnvGroup, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.core.errors import UnsupportedSpace
from headrace.envs.core.family_interface import ParallelEnv
from headrace.envs.core.spaces import specs_of
from headrace.envs.groups.base import close_all
from headrace.envs.groups.match import Match, MatchRules
from headrace.envs.groups.rewards import reward_transform


class MultiAgentGroup(EnvGroup):
    """Multi-agent environments, stepped one after the other in this process. Lane = match x A + agent. See `EnvGroup`."""

    lane_size = 1

    def __init__(self, envs: Sequence[ParallelEnv], rules: MatchRules) -> None:
        self.spec, self.num_envs = rules.spec, len(envs)
        self.matches = [Match(m, env, rules) for m, env in enumerate(envs)]
        self._decoders = [decoder(envs[0].action_space(name)) for name in envs[0].possible_agents]
        self.lanes = len(envs) * len(self._decoders)
        self.advanced = []
        self._remembers = False

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        rows = [LaneRow(None, StepRow.zeros(1), row) for row in out]  # the step before is not read
        for m, match in enumerate(self.matches):
            match.seed, match.number, match.over = seed + m, -1, True
        self.send(rows)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; finished on return. Begins a new match where one is over, and steps all others."""
        A = len(self._decoders)
        acting = [m * A + a for m, match in enumerate(self.matches) if not match.over for a in match.acting]
        actions = iter(self._decoded(acting, [rows[lane].actions for lane in acting]))
        ended: list[int] = []
        advanced: list[int] = []
        for m, match in enumerate(self.matches):
            self.called = m
            own = rows[m * A : (m + 1) * A]
            if match.over:
                match.begin(own)
            else:
                if self._remembers:
                    match.actions.append((match.acting, [own[a].actions.copy() for a in match.acting]))
                match.step({match.names[a]: next(actions) for a in match.acting}, own)
                if match.over:
                    ended.append(m)
            advanced += [m * A + a for a in match.advanced]
        self.ended, self.advanced = ended, advanced

    def outcomes(self, m: int) -> np.ndarray:
        """float64 [A]: the outcomes of the agents of match `m`, which has ended."""
        return self.matches[m].outcomes

    def set_reward_weights(self, m: int, weights: Sequence[dict[str, float]]) -> None:
        """Set the weights of the rewards' parts in match `m`, one dictionary for each agent. Raises `EnvironmentFault` if the
        environment fails."""
        self.matches[m].set_reward_weights(weights)

    def _decoded(self, agents: Sequence[int], actions: Sequence[np.ndarray]) -> list[Any]:
        """Convert action rows [1, A] of these agents (or lanes) to the actions that their environments take."""
        if not actions:
            return []
        if not self.spec.of_agents:
            return self._decoders[0](np.concatenate(actions))
        return [self._decoders[a % len(self._decoders)](row)[0] for a, row in zip(agents, actions, strict=True)]

    def remember(self) -> None:
        self._remembers = True

    def get_state(self) -> dict[str, Any] | None:
        """The seed and the actions of every match, or what the environments' own `get_state` returns."""
        return {"matches": [match.get_state() for match in self.matches]} if self._remembers else None

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`. Replays the matches from their seeds."""
        for match, saved in zip(self.matches, state["matches"], strict=True):
            match.set_state(saved, self._decoded)

    def close(self) -> None:
        close_all([match.env for match in self.matches])


def multi_agent_group(
    make: Callable[[], ParallelEnv], options: EnvConfig, num_envs: int, env_id: str, frameskip: int = 1
) -> MultiAgentGroup:
    """A group of `num_envs` environments, each from a call of `make`.

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
    rules = MatchRules(spec, reward_transform(options), options.max_episode_steps, options.info_action_mask)
    group = MultiAgentGroup(envs, rules)
    if options.reward_weights:
        for match in group.matches:
            match.set_reward_weights([options.reward_weights] * len(spec.agents))
    return group


def parallel_spec(env: ParallelEnv, options: EnvConfig, env_id: str, frameskip: int = 1) -> EnvSpec:
    """The specification of a multi-agent environment. Raises `UnsupportedSpace`, see `multi_agent_group`."""
    agents = tuple(map(str, env.possible_agents))
    specs = []
    for agent in env.possible_agents:
        observation, action = specs_of(env.observation_space(agent), env.action_space(agent), env_id)
        if options.info_action_mask:
            observation[MASK_KEY] = ArraySpec((action.mask_width,), np.dtype(np.uint8), 0, 1)
        its = EnvSpec(observation, action, options.frameskip or frameskip, name=env_id, agents=agents)
        specs.append(replace(its, info_metrics=options.info_metrics))
    return replace(specs[0], of_agents=tuple(specs)) if any(spec != specs[0] for spec in specs) else specs[0]
