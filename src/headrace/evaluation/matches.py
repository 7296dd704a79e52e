"""Matches between two players in a multi-agent environment: trained policies, or scripted opponents."""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from headrace.accelerator.threads import using_threads
from headrace.config import ConfigError, EnvConfig
from headrace.config.seeds import Use, environment_seed, random_seed
from headrace.envs.contract import EnvironmentFault, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.multi_agent import MultiAgentGroup, multi_agent_group
from headrace.envs.registry import make_parallel
from headrace.evaluation.play import Game
from headrace.evaluation.policy import TrainedPolicy
from headrace.evaluation.video import RECORDING, picture, video_of
from headrace.evaluation.waiting import Answers, Waiting, at_limit, environment_of
from headrace.sampling.seating import Script

Player = TrainedPolicy | Script
MOST_LOST = 10
"""Matches in a row that one environment may lose with a game process: they are played again, but not for ever."""


@dataclass(frozen=True)
class MatchResults:
    """Results of the first player against the second."""

    wins: int
    losses: int
    ties: int
    win_rate: float
    """Share of the matches that it won."""
    win_rate_ci95: tuple[float, float]
    """95 % confidence interval of that share (Wilson 1927)."""
    score: float
    """The same with ties as half a win."""
    lengths: list[int]
    """Steps of each match."""
    distinct: int
    """Matches that differ in an observation, an action or the first player's place. Where neither players nor environment are
    random, matches repeat, and the interval says nothing of other matches."""
    seconds: float
    at_limit: int = 0
    """Matches as long as `envs.max_episode_steps` allows, which were cut off unless they ended with the same step. What the
    players had by then was compared."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.win_rate_ci95
        return (
            f"{self.wins} wins, {self.losses} losses, {self.ties} ties: win rate {self.win_rate:.3f} "
            f"(95 % CI {low:.3f} to {high:.3f}), score {self.score:.3f}"
            + (f", {self.distinct} distinct matches" if self.distinct < len(self.lengths) else "")
            + (f", {self.at_limit} at the limit of {max(self.lengths):,} steps" if self.at_limit else "")
        )


def wilson(wins: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share of `n` (1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    p, zz = wins / n, z * z
    middle, half = p + zz / (2 * n), z * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    return max(0.0, (middle - half) / (1 + zz / n)), min(1.0, (middle + half) / (1 + zz / n))


def play(
    one: Player,
    other: Player,
    env: str,
    options: EnvConfig,
    matches: int = 100,
    *,
    num_envs: int | None = None,
    deterministic: bool = False,
    seed: int = 0,
    video: os.PathLike[str] | str | None = None,
) -> MatchResults:
    """Play matches of one player against another, who is everybody else in the match. The first player takes every place in turn.

    The matches are shared out evenly over `num_envs` environments beforehand: taking the first to finish would favour short ones.
    `video`: an mp4 file with the first of them. A match without an end is waited for, with a `UserWarning` after a minute and
    then after twice as long each time; `options.max_episode_steps` cuts it off. Where an environment
    does not answer there is one after 30 seconds.

    Raises `ConfigError` where the environment has only one agent or has no pictures, `ValueError` if `matches` is below 1, and
    `EnvironmentFault` where `MOST_LOST` matches in a row were lost with a game process.
    """
    if matches < 1:
        raise ValueError(f"matches is {matches}; it must be at least 1")
    n = 1 if video is not None else min(matches, num_envs or 16)
    started = time.perf_counter()
    outcomes: list[tuple[float, int, int]] = []
    with ExitStack() as stack:
        group = multi_agent_group(lambda: _make(env, options, video), options, n, env)
        stack.callback(group.close)
        if len(group.spec.agents) < 2:
            raise ConfigError(f"{env} has one agent, which plays against nobody; `headrace eval` plays it")
        if group.spec.of_agents:
            raise ConfigError(f"the agents of {env} have different spaces, so no player can take every place; use headrace eval")
        stack.enter_context(using_threads(1))
        for number, player in enumerate((one, other)):
            if isinstance(player, TrainedPolicy) and (number == 0 or player is not one):
                stack.enter_context(player.seeded(random_seed(Use.EVALUATION, seed, number)))
        table = _Table(group, (one, other), deterministic, environment_seed(Use.EVALUATION, seed))
        share = [matches // n + (m < matches % n) for m in range(n)]
        frames = stack.enter_context(video_of(group.matches[0].env, video)) if video is not None else None
        played, waiting = [0] * n, Waiting("match", matches)
        stack.enter_context(table.answers)
        table.begin()
        while any(done < wanted for done, wanted in zip(played, share, strict=True)):
            if frames is not None and not outcomes:
                frames.add(picture(group.matches[0].env, env))
            for m in table.step():
                if played[m] < share[m] and not table.note_if_lost(m):
                    played[m] += 1
                    outcomes.append((table.difference(m), group.matches[m].steps, table.digests[m]))
                    if frames is not None and len(outcomes) == 1:
                        frames.add(picture(group.matches[0].env, env))
            waiting.look(len(outcomes), lambda: {m: group.matches[m].steps for m in range(n) if played[m] < share[m]})
    wins, losses = sum(d > 0 for d, *_ in outcomes), sum(d < 0 for d, *_ in outcomes)
    ties, lengths = matches - wins - losses, [length for _, length, _ in outcomes]
    return MatchResults(
        wins, losses, ties, wins / matches, wilson(wins, matches), (wins + ties / 2) / matches, lengths,
        len({digest for *_, digest in outcomes}), time.perf_counter() - started, at_limit(lengths, options),
    )  # fmt: skip


def _make(env: str, options: EnvConfig, video: Any) -> Any:
    made = make_parallel(env, options, render_mode=None if video is None else "rgb_array")
    if made is None:
        raise ConfigError(f"{env} is an environment of one agent; `headrace eval` plays it")
    return made


def _row(spec: EnvSpec) -> LaneRow:
    """An agent's action, and its next observation."""
    return LaneRow(np.zeros((1, spec.action.width), spec.action.dtype), StepRow.zeros(1), ObsRow.zeros(spec, 1))


class _Table:
    """The players at the environments of a group. Of two, in match k of an environment the first one is agent k modulo their
    number, and the second one is all others; unless `seats` has the number of the player for each agent."""

    def __init__(
        self, group: MultiAgentGroup, players: Sequence[Player], deterministic: bool, seed: int, seats: Sequence[int] = ()
    ) -> None:
        self.group, self.players, self.deterministic, self._seats = group, players, deterministic, seats
        self.A = len(group.spec.agents)
        self._seed, self.generator = seed, np.random.default_rng(seed)
        self.rows = [_row(group.spec.of_agent(lane % self.A)) for lane in range(group.lanes)]
        self._obs = [row.after for row in self.rows]
        self.digests = [0] * group.num_envs
        """CRC-32 of each match so far, or of the one that has just ended: who sat where, observations and actions."""
        self._cores = [p.initial_core(group.lanes) if isinstance(p, TrainedPolicy) else None for p in players]
        self._lost = [0] * group.num_envs
        """Matches of each environment that were lost since one was not."""
        self.answers = Answers(partial(environment_of, group))
        """To be entered before `begin`."""

    def begin(self) -> None:
        """Begin the first matches."""
        with self.answers.expected():
            self.group.reset(self._seed, self._obs)

    def seat(self, m: int) -> int:
        """Which agent of match m the first player is."""
        return (m + self.group.matches[m].number) % self.A

    def player(self, lane: int) -> int:
        """Who acts in a lane."""
        agent = lane % self.A
        return self._seats[agent] if self._seats else int(agent != self.seat(lane // self.A))

    def difference(self, m: int) -> float:
        """By how much the first player was better than the best of the others."""
        outcomes, seat = self.group.outcomes(m), self.seat(m)
        return float(outcomes[seat] - np.delete(outcomes, seat).max())

    def note_if_lost(self, m: int) -> bool:
        """Count match m, which has ended, if it was lost with a game process; whether it was, and is to be played again. Raises
        `EnvironmentFault` where `MOST_LOST` in a row were."""
        self._lost[m] = self._lost[m] + 1 if np.isnan(self.group.outcomes(m)).any() else 0
        if self._lost[m] >= MOST_LOST:
            raise self.group.fault(
                m,
                f"{MOST_LOST} matches in a row were lost with a game process that was ended, stopped or gave no answer. Look for "
                "what does that (too little memory, a limit, another program), or play fewer matches at a time (--num-envs)",
            )
        return self._lost[m] > 0

    def step(self) -> list[int]:
        """One step of all matches; which of them ended."""
        lanes = [lane for lane in self.group.advanced or () if self._obs[lane].valid[0]]
        sides: list[list[int]] = [[] for _ in self.players]
        for lane in lanes:
            sides[self.player(lane)].append(lane)
        for player, core, mine in zip(self.players, self._cores, sides, strict=True):
            if not mine:
                continue
            if isinstance(player, TrainedPolicy):
                self._ask(player, core, mine)
            else:
                for lane in mine:
                    observation = {name: array[0] for name, array in self._obs[lane].obs.items()}
                    self.rows[lane].actions[0] = player(observation, self.generator)
        for m, match in enumerate(self.group.matches):
            if match.over:
                self.digests[m] = 0
        for lane in lanes:
            m = lane // self.A
            for part in (np.array([lane % self.A, self.seat(m)]), *self._obs[lane].obs.values(), self.rows[lane].actions):
                self.digests[m] = zlib.crc32(np.ascontiguousarray(part).tobytes(), self.digests[m])
        with self.answers.expected():
            self.group.send(self.rows)
        return list(self.group.ended)

    def _ask(self, player: TrainedPolicy, core: Any, lanes: list[int]) -> None:
        """Write the player's actions in these lanes, and its core states after them."""
        obs = {name: np.concatenate([self._obs[lane].obs[name] for lane in lanes]) for name in self._obs[lanes[0]].obs}
        first = np.concatenate([self._obs[lane].first for lane in lanes])
        index = torch.tensor(lanes, device=core.device)
        actions, after = player.act_rows(obs, core[index], first, deterministic=self.deterministic)
        core[index] = after
        for lane, action in zip(lanes, actions, strict=True):
            self.rows[lane].actions[0] = action


def _whole_table(group: MultiAgentGroup, policy: TrainedPolicy, deterministic: bool, seed: int) -> _Table:
    """The policy acts for all agents; where their spaces differ, for those that it can, and its team for the others."""
    spec, team = group.spec, policy.team or [policy]
    numbers = [policy.number] if not spec.of_agents else [policy.number, *range(len(team))]
    seats = [next(p for p in numbers if spec.fits(p, a)) for a in range(len(spec.agents))]
    return _Table(group, team, deterministic, seed, seats if spec.of_agents else [0] * len(spec.agents))


def episodes_of(policy: TrainedPolicy, group: MultiAgentGroup, episodes: int, deterministic: bool, seed: int) -> list[Game]:
    """The agents' episodes where the policy acts for all agents (of its spaces: the others are acted for by its team), in matches
    that are shared out evenly over the group's environments; at least `episodes` of them, cut to as many. `seed`: of the
    environments. A match that is lost with a game process is played again. Raises `EnvironmentFault` where that is no use, and
    where the policy never acts."""
    n, table = group.num_envs, _whole_table(group, policy, deterministic, seed)
    share, digests = [-(-episodes // n)] * n, [0] * group.lanes
    played: list[tuple[tuple[int, int], Game]] = []
    """By environment and the number of its match."""
    lost: set[tuple[int, int]] = set()

    def unfinished() -> dict[int, int]:
        return {m: match.steps for m, match in enumerate(group.matches) if match.number < share[m]}

    waiting = Waiting("match", sum(share))  # agents may come and go in one that has no end
    with table.answers:
        table.begin()
        while any(match.number < most for match, most in zip(group.matches, share, strict=True)):
            counted = [match.number < most for match, most in zip(group.matches, share, strict=True)]
            ended = table.step()
            for m in ended:
                if counted[m] and table.note_if_lost(m):
                    lost.add((m, group.matches[m].number))
                    share[m] += 1
            for lane in group.advanced or ():
                if table.players[table.player(lane)] is not policy:
                    continue
                now = table.rows[lane].step
                for part in (*table.rows[lane].after.obs.values(), table.rows[lane].actions, now.reward):
                    digests[lane] = zlib.crc32(np.ascontiguousarray(part).tobytes(), digests[lane])
                if now.terminated[0] or now.truncated[0]:
                    if counted[m := lane // table.A] and not np.isnan(now.episode_return[0]):
                        game = Game(float(now.episode_return[0]), int(now.episode_length[0]), digests[lane])
                        played.append(((m, group.matches[m].number), game))
                    digests[lane] = 0
            waiting.look(sum(match.number for match in group.matches), unfinished)
    found = [game for match, game in played if match not in lost]
    if not found:
        raise EnvironmentFault(
            f"{group.spec.name}: no agent that policy {policy.number} acts for has ended an episode in {sum(share)} matches, so "
            "there is nothing to evaluate"
        )
    return found[:episodes]


def watch(
    policy: TrainedPolicy, path: os.PathLike[str] | str, matches: int, deterministic: bool, seed: int,
    max_steps: int | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """Record matches in which the policy acts for all agents; returns the agents' outcomes in each by name. `max_steps` ends the
    recording early: of a match that is cut short the outcomes so far."""
    env, options = policy.config.env, policy.config.envs
    group = multi_agent_group(lambda: _make(env, options, path), options, 1, env)
    found: list[dict[str, float]] = []
    steps, waiting = 0, Waiting("match", matches, RECORDING)
    try:
        table = _whole_table(group, policy, deterministic, environment_seed(Use.VIDEO, seed))
        actions = policy.seeded(random_seed(Use.VIDEO, seed))
        with using_threads(1), actions, table.answers, video_of(group.matches[0].env, path) as frames:
            table.begin()
            while len(found) < matches:
                cut = max_steps is not None and steps >= max_steps
                frames.add(picture(group.matches[0].env, env))
                if cut or table.step():
                    found.append(dict(zip(group.spec.agents, group.outcomes(0).tolist(), strict=True)))
                    if cut:
                        break
                    frames.add(picture(group.matches[0].env, env))
                steps += 1
                waiting.look(len(found), lambda: {0: group.matches[0].steps})
    finally:
        group.close()
    return found
