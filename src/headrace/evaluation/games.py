"""The loop that plays whole games: for evaluations, matches and videos.

A *game* is what one environment plays from a reset to its end: an episode of its agent, or a match of several agents. A *seat* is
the place of one agent in one environment. The seats of a group are numbered like the rows of its lanes, environment by
environment: with A agents, seat m * A + a is agent a of environment m.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow, Script, StepRow
from headrace.envs.core.last_step import last_step_names, remember_last_step
from headrace.envs.groups.base import Completion
from headrace.evaluation.hang_warnings import LIMIT, EndlessEpisodes, HungEnvironments, environment_of
from headrace.evaluation.trained_policy import TrainedPolicy

Player = TrainedPolicy | Script
MOST_LOST = 10  # matches in a row that one environment may lose with a game process: they are played again, but not for ever


class Episode(NamedTuple):
    """One agent's episode in a game."""

    env: int  # the number of its environment
    agent: int
    player: int  # who acted, by the number in `Games.players`
    episode_return: float  # raw: neither scaled nor clipped
    length: int  # Steps
    digest: int  # CRC-32 of its observations, actions and rewards
    task: int  # the number of its task, where there are several
    infos: tuple[float, ...] = ()  # its numbers for `envs.info_metrics`


class Game(NamedTuple):
    """One whole game."""

    env: int  # the number of its environment
    steps: int
    episodes: list[Episode]  # in the order in which they ended; in a match agents may have several, or none
    outcomes: np.ndarray | None  # float64 [A]: the values that decide a match, by agent; None if there is one agent
    first: int  # the agent for which the first of two players acted

    @property
    def lost(self) -> bool:
        """Whether the game process failed, so that the game has no result."""
        return self.outcomes is not None and bool(np.isnan(self.outcomes).any())


def check_count(name: str, count: object) -> None:
    """Raise `ValueError` for what is no number of games, environments or steps; `name`: of the argument."""
    if not isinstance(count, Integral) or count < 1:
        raise ValueError(f"{name} is {count!r}; it must be a whole number, at least 1")


def evenly(count: int, n: int) -> list[int]:
    """The shares of `n` environments in `count` games."""
    return [count // n + (i < count % n) for i in range(n)]


def team_of(policy: TrainedPolicy, spec: EnvSpec) -> tuple[list[TrainedPolicy], list[int]]:
    """The players, and for each agent the number of its player. The policy acts for every agent whose spaces fit it, its team for
    the others."""
    if not spec.of_agents:
        return [policy], [0] * (len(spec.agents) or 1)
    team = policy.team or [policy]
    numbers = [policy.number, *range(len(team))]
    return team, [next(p for p in numbers if spec.fits(p, a)) for a in range(len(spec.agents))]


class Games:
    """Plays games in all environments of a group at the same time.

    `player_of`: for each agent the number of its player. Without it there are two players: in game k of environment m the first
    one is agent m + k (modulo their number), so it takes every place in turn, and the second one is all others.
    """

    def __init__(
        self, group: EnvGroup, players: Sequence[Player], player_of: Sequence[int] = (), *, deterministic: bool = False
    ) -> None:
        inputs = [last_step_names(player.config) for player in players if isinstance(player, TrainedPolicy)]
        group = remember_last_step(group, sorted({name for names in inputs for name in names}))
        self.group, self.players, self._player_of, self._deterministic = group, players, player_of, deterministic
        self.steps = 0  # steps of the group so far, over all calls of `play`
        self._A, self._C = len(group.spec.agents) or 1, group.lane_size
        self._rows = [_row(group.spec.of_agent(lane % self._A), self._C) for lane in range(group.lanes)]
        self._seats = np.arange(group.lanes * self._C).reshape(group.lanes, self._C)
        self._completion = Completion(group)
        self._lost = [0] * group.num_envs  # lost games in a row of each environment

    def play(
        self, shares: Sequence[int], seed: int, *, draw: Callable[[], None] | None = None, max_steps: int | None = None,
        advice: str = LIMIT,
    ) -> Iterator[Game]:  # fmt: skip
        """Reset the environments with this seed and play `shares[m]` games in environment m; gives each one when it has ended.

        Shares are fixed beforehand, since taking the first games to end would favour short ones. A game that was lost with a game
        process is played again. `draw` is called before every step and at the end of every game. Where `steps` reaches
        `max_steps`, the last game is the one of environment 0 as far as it was played. `advice`: what the user can do about games
        without an end; those are warned of, and environments that do not answer.

        Raises `EnvironmentFault` where `MOST_LOST` games of one environment in a row were lost.
        """
        left, ended = list(shares), False
        wanted = sum(shares)
        waiting = EndlessEpisodes("match" if self.group.spec.agents else "episode", wanted, advice)
        limit = math.inf if max_steps is None else max_steps
        if self.steps >= limit:
            return
        with HungEnvironments(partial(environment_of, self.group)) as environments:
            with environments.expected():
                self._begin(seed)
            while any(left) and self.steps < limit:
                self._act()
                with environments.expected():
                    if draw is not None and not ended:
                        draw()
                    self.group.send(self._rows)
                    self._completion.wait()
                games = [game for game in self._ended() if left[game.env] and not self._note_if_lost(game)]
                ended = bool(games)
                if draw is not None and (ended or self.steps >= limit):
                    draw()
                for game in games:
                    left[game.env] -= 1
                yield from games
                waiting.look(wanted - sum(left), lambda: {m: int(self._game_steps[m]) for m, more in enumerate(left) if more})
        if any(left) and self._game_steps[0]:
            yield self._game(0)

    def _begin(self, seed: int) -> None:
        n, seats = self.group.num_envs, self._seats.size
        self._generator = np.random.default_rng(seed)
        self._cores: list[Any] = [p.initial_core(seats) if isinstance(p, TrainedPolicy) else None for p in self.players]
        self._digests = [0] * seats  # CRC-32 of the episode so far
        self._returns = np.zeros(seats)  # sum of its rewards so far, scaled and clipped
        self._episodes: list[list[Episode]] = [[] for _ in range(n)]  # ended episodes of each environment's present game
        self._played, self._game_steps, self._between = [0] * n, np.zeros(n, np.int64), np.zeros(n, bool)
        """By environment: games that have ended, steps of the present one, whether the next step begins one."""
        self.group.reset(seed, [row.after for row in self._rows])
        self._completion.wait()

    # -- before a step: actions -----------------------------------------------------------------------------------------

    def _first(self, m: int) -> int:
        """The agent that the first player is in the present game of environment m."""
        return (m + self._played[m]) % self._A

    def _player(self, lane: int) -> int:
        m, agent = divmod(lane, self._A)
        return self._player_of[agent] if self._player_of else int(agent != self._first(m))

    def _act(self) -> None:
        """Write the actions of all lanes that have a new observation to act on."""
        advanced = self.group.advanced
        acting = range(self.group.lanes) if advanced is None else [i for i in advanced if self._rows[i].after.valid[0]]
        lanes_of: list[list[int]] = [[] for _ in self.players]
        for lane in acting:
            lanes_of[self._player(lane)].append(lane)
        for player, core, lanes in zip(self.players, self._cores, lanes_of, strict=True):
            if not lanes:
                continue
            if isinstance(player, TrainedPolicy):
                self._ask(player, core, lanes)
                continue
            for lane in lanes:
                observation = {name: array[0] for name, array in self._rows[lane].after.obs.items()}
                self._rows[lane].actions[0] = player(observation, self._generator)
        for lane in acting:
            row = self._rows[lane]
            for i in np.flatnonzero(row.after.valid):
                seat = self._seats[lane, i]
                if row.after.first[i]:
                    self._digests[seat], self._returns[seat] = 0, 0.0
                for part in (*(array[i] for array in row.after.obs.values()), row.actions[i]):
                    self._digests[seat] = zlib.crc32(part.tobytes(), self._digests[seat])

    def _ask(self, player: TrainedPolicy, core: torch.Tensor, lanes: Sequence[int]) -> None:
        """Write the player's actions in these lanes, and its core states after them."""
        rows = [self._rows[lane].after for lane in lanes]
        obs = {name: np.concatenate([row.obs[name] for row in rows]) for name in rows[0].obs}
        first = np.concatenate([row.first for row in rows])
        seats = torch.from_numpy(self._seats[lanes].ravel()).to(core.device)
        actions, after = player.act_rows(obs, core[seats], first, deterministic=self._deterministic)
        core[seats] = after
        for lane, own in zip(lanes, np.split(actions, len(lanes)), strict=True):
            self._rows[lane].actions[:] = own

    # -- after a step: what ended -----------------------------------------------------------------------------------------

    def _ended(self) -> list[Game]:
        """The games that ended with the step that was made."""
        self.steps += 1
        self._game_steps += ~self._between
        advanced, ended = self.group.advanced, self.group.ended
        for lane in range(self.group.lanes) if advanced is None else advanced:
            now = self._rows[lane].step
            for i, seat in enumerate(self._seats[lane].tolist()):
                self._digests[seat] = zlib.crc32(now.reward[i].tobytes(), self._digests[seat])
                self._returns[seat] += now.reward[i]
                if not np.isnan(now.episode_return[i]):
                    self._episodes[seat // self._A].append(self._episode(seat, now, i))
        if advanced is None:
            ended, self._between = [m for m, own in enumerate(self._episodes) if own], ~self._rows[0].after.valid
        else:
            self._between = np.isin(np.arange(self.group.num_envs), ended)
        games = [self._game(m) for m in ended]
        for m in ended:
            self._played[m] += 1
            self._game_steps[m], self._episodes[m] = 0, []
        return games

    def _episode(self, seat: int, now: StepRow, i: int) -> Episode:
        task = 0 if now.task is None else int(now.task[i])
        where = (*divmod(seat, self._A), self._player(seat // self._C))
        infos = () if now.episode_info is None else tuple(now.episode_info[i].tolist())
        return Episode(*where, float(now.episode_return[i]), int(now.episode_length[i]), self._digests[seat], task, infos)

    def _game(self, m: int) -> Game:
        """The game of environment m, as far as it was played."""
        steps, episodes = int(self._game_steps[m]), self._episodes[m]
        if self.group.spec.agents:
            outcomes: np.ndarray = self.group.outcomes(m).copy()  # type: ignore[attr-defined]
            return Game(m, steps, episodes, outcomes, self._first(m))
        unfinished = Episode(m, 0, 0, float(self._returns[m]), steps, self._digests[m], 0)
        return Game(m, steps, episodes or [unfinished], None, 0)

    def _note_if_lost(self, game: Game) -> bool:
        """Whether the game was lost. Raises as `play`."""
        m = game.env
        self._lost[m] = self._lost[m] + 1 if game.lost else 0
        if self._lost[m] >= MOST_LOST:
            raise self.group.matches[m].fault(  # type: ignore[attr-defined]
                f"{MOST_LOST} matches in a row were lost with a game process that was ended, stopped or gave no answer. Look for "
                "what does that (too little memory, a limit, another program), or play fewer matches at a time (--num-envs)",
            )
        return game.lost


def _row(spec: EnvSpec, C: int) -> LaneRow:
    """An action of each of C agents, what it led to, and the observation after it."""
    now = StepRow.zeros(C)
    if not spec.agents:
        now.task = np.zeros(C, np.int32)
    if spec.info_metrics:
        now.episode_info = np.zeros((C, len(spec.info_metrics)), np.float32)
    if spec.autoreset == "same-step":
        now.final_obs = ObsRow.zeros(spec, C).obs
    return LaneRow(np.zeros((C, spec.action.width), spec.action.dtype), now, ObsRow.zeros(spec, C))
