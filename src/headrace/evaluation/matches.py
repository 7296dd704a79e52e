"""Matches between two players in a multi-agent environment: trained policies, or scripted opponents."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from headrace.accelerator.threads import using_threads
from headrace.config import ConfigError, EnvConfig
from headrace.config.seeds import Use, environment_seed, random_seed
from headrace.envs.groups.multi_agent import multi_agent_group
from headrace.evaluation.games import Game, Games, Player, check_count, evenly
from headrace.evaluation.hang_warnings import at_limit
from headrace.evaluation.intervals import wilson
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.evaluation.video import make_match, picture, video_of


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
    """Matches that differ in an observation, an action, a reward or the first player's place. Where neither players nor
    environment are random, matches repeat, and the interval says nothing of other matches."""
    seconds: float
    at_limit: int = 0
    """Matches of `envs.max_episode_steps` steps; cut off there, unless they ended with that very step. The results so far decide
    a match that is cut off."""

    def __str__(self) -> str:
        low, high = self.win_rate_ci95
        return (
            f"{self.wins} wins, {self.losses} losses, {self.ties} ties: win rate {self.win_rate:.3f} "
            f"(95 % CI {low:.3f} to {high:.3f}), score {self.score:.3f}"
            + (f", {self.distinct} distinct matches" if self.distinct < len(self.lengths) else "")
            + (f", {self.at_limit} at the limit of {max(self.lengths):,} steps" if self.at_limit else "")
        )


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
) -> MatchResults:
    """Play matches of one player against another. The first player acts for one agent, each in turn; the second for all others.

    The matches are shared out evenly over `num_envs` environments beforehand: taking the first to finish would favour short ones.
    A `UserWarning` is given if no match ends for a minute, or an environment does not answer for 30 seconds, and again each time
    that has doubled. `options.max_episode_steps` cuts matches off.

    Raises `ConfigError` where the environment has only one agent, `ValueError` if `matches` is no whole number from 1 on, and
    `EnvironmentFault` where many matches in a row were lost with a game process (`headrace.evaluation.games.MOST_LOST`).
    """
    check_count("matches", matches)
    started = time.perf_counter()
    with _players((one, other), env, options, min(matches, num_envs or 16), deterministic, seed) as games:
        shares = evenly(matches, games.group.num_envs)
        played = [*games.play(shares, environment_seed(Use.EVALUATION, seed))]
    differences = [_difference(game) for game in played]
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    ties, lengths = matches - wins - losses, [game.steps for game in played]
    distinct = {(game.first, *((episode.agent, episode.digest) for episode in game.episodes)) for game in played}
    return MatchResults(
        wins, losses, ties, wins / matches, wilson(wins, matches), (wins + ties / 2) / matches, lengths, len(distinct),
        time.perf_counter() - started, at_limit(lengths, options),
    )  # fmt: skip


def record_match(
    one: Player, other: Player, env: str, options: EnvConfig, path: os.PathLike[str] | str, *, deterministic: bool, seed: int
) -> None:
    """Record the first match of `play` with one environment as a video (mp4). Raises what `play` and `headrace.record` raise."""
    with ExitStack() as stack:
        games = stack.enter_context(_players((one, other), env, options, 1, deterministic, seed, render_mode="rgb_array"))
        drawn = games.group.matches[0].env  # type: ignore[attr-defined]
        video = stack.enter_context(video_of(drawn, path))
        for _ in games.play([1], environment_seed(Use.EVALUATION, seed), draw=lambda: video.add(picture(drawn, env))):
            pass


@contextmanager
def _players(
    players: tuple[Player, Player], env: str, options: EnvConfig, n: int, deterministic: bool, seed: int,
    render_mode: str | None = None,
) -> Iterator[Games]:  # fmt: skip
    """The two players at n environments. Raises as `play`."""
    with ExitStack() as stack:
        group = multi_agent_group(lambda: make_match(env, options, render_mode), options, n, env)
        stack.callback(group.close)
        if len(group.spec.agents) < 2:
            raise ConfigError(f"{env} has one agent, which plays against nobody; `headrace eval` plays it")
        if group.spec.of_agents:
            raise ConfigError(f"the agents of {env} have different spaces, so no player can take every place; use headrace eval")
        stack.enter_context(using_threads(1))
        for number, player in enumerate(players):
            if isinstance(player, TrainedPolicy) and (number == 0 or player is not players[0]):
                stack.enter_context(player.seeded(random_seed(Use.EVALUATION, seed, number)))
        yield Games(group, players, deterministic=deterministic)


def _difference(game: Game) -> float:
    """By how much the first player was better than the best of the others."""
    assert game.outcomes is not None
    return float(game.outcomes[game.first] - np.delete(game.outcomes, game.first).max())
