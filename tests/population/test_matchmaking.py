"""Who plays whom, against what the settings promise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import AGENTS, ended, matches, play, standings

import headrace
from headrace import config as configs
from headrace.config import Config, ConfigError, MatchesConfig
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.make_config import make_config
from headrace.population import matchmaking
from headrace.population.matchmaking import NextMatch, Population, fixed, league, priorities, self_play, uniform
from headrace.population.members import make_members
from headrace.shm.population import Standings

DRAWS = 4000


def population(table: Standings, **settings: Any) -> Population:
    return Population(table, MatchesConfig(**settings))


def near(count: float, probability: float, n: int = DRAWS) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(count - n * probability) < 5 * np.sqrt(n * probability * (1 - probability)) + 1e-9


def draw(choose: Any, p: Population, agents: tuple[str, ...] = AGENTS, number: int = 0) -> list[tuple[int, ...]]:
    generator = np.random.default_rng(1)
    return [tuple(choose(NextMatch(number, k, agents), p, generator)) for k in range(DRAWS)]


# -- matchmakers ------------------------------------------------------------------------------------------------------


def test_fixed() -> None:
    assert set(draw(fixed, population(standings(2)), ("a", "b", "c"))) == {(0, 1, 0)}


def test_uniform_draws_every_agent_alone() -> None:
    drawn = draw(uniform, population(standings(3)))
    for pair in np.ndindex(3, 3):
        assert near(drawn.count(pair), 1 / 9), pair


def test_self_play_newest_and_past_in_the_ratio_that_was_set_and_the_window_uniformly() -> None:
    table = standings(V=6)
    for i, member in enumerate((2, 3, 5)):
        table.admit(member, i, 0.0)
    drawn = draw(self_play, population(table, swap_steps=0, play_against_latest_model_ratio=0.4))
    assert near(drawn.count((0, 0)), 0.4)
    for member in (2, 3, 5):
        assert near(drawn.count((0, member)), 0.2)
    assert sum(drawn.count((0, m)) for m in (0, 2, 3, 5)) == DRAWS


def test_self_play_another_agent_learns_after_team_change() -> None:
    table = standings(V=3, opponents=1)
    p = population(table, team_change=100, swap_steps=0, opponent_share=1.0)
    rival = table.opponents[0]
    for steps, expected in ((0, (0, rival)), (99, (0, rival)), (100, (rival, 0)), (199, (rival, 0)), (200, (0, rival))):
        table.now[0] = steps
        assert set(draw(self_play, p)) == {expected}


def test_self_play_keeps_an_opponent_for_swap_steps_but_not_one_that_has_gone() -> None:
    table = standings(V=4)
    for member in (1, 2, 3):
        table.admit(member, member, 0.0)
    p = population(table, swap_steps=50, play_against_latest_model_ratio=0.0)
    match, generator = NextMatch(0, 0, AGENTS), np.random.default_rng(0)
    first = self_play(match, p, generator)[1]
    assert {self_play(match, p, generator)[1] for _ in range(50)} == {first}
    table.close(first)
    second = self_play(match, p, generator)[1]
    assert second != first
    table.now[0] = 50
    assert len({self_play(NextMatch(0, 0, AGENTS, dict(match.memory)), p, generator)[1] for _ in range(100)}) == 2


def test_league_draws_by_win_rate() -> None:
    table = standings(P=2, V=2, opponents=1)
    members = [2, 4, 6]  # a past version of each policy, and an opponent
    for member in members[:2]:
        table.admit(member, 1, 0.0)
    rates = []
    for member, (wins, games) in zip(members, ((9, 10), (2, 10), (0, 3)), strict=True):
        scores = [float(game < wins) for game in range(games)]
        play(table, member, scores)
        weights = 0.99 ** np.arange(games)[::-1]
        rates.append((weights @ scores + 0.5) / (weights.sum() + 1))
    expected = (1 - np.array(rates)) ** 3 / ((1 - np.array(rates)) ** 3).sum()
    p = population(table, hardness=3.0, play_against_latest_model_ratio=0.3)
    np.testing.assert_allclose(priorities(0, members, p), expected)
    rivals = [max(pair, key=lambda m: (m != 0, m)) for pair in draw(league, p)]
    for member, probability in zip(members, expected, strict=True):
        assert near(rivals.count(member), 0.7 * probability)
    assert near(rivals.count(1), 0.15)


def test_the_league_draws_somebody_where_everybody_is_beaten_for_sure() -> None:
    table = standings(opponents=2)
    for member in (1, 2):
        play(table, member, [1.0] * 3000)
    assert priorities(0, [1, 2], population(table, hardness=100.0)).tolist() == [0.5, 0.5]


def test_a_win_rate_is_of_recent_games() -> None:
    """In a game with a cycle a policy soon loses to versions that it once beat."""
    table = standings(V=2, opponents=1)
    table.admit(1, 1, 0.0)
    play(table, 1, [1.0] * 3000)
    p = population(table)
    assert p.win_rate(0, 1) > 0.99
    play(table, 1, [0.0] * 300)
    assert p.win_rate(0, 1) < 0.06
    assert p.win_rate(1, 0) == 1 - p.win_rate(0, 1)
    assert p.games(0, 1) == 3300
    table.admit(1, 2, 0.0)
    assert p.win_rate(0, 1) == 0.5, "a newer version in its place has played nobody"


def test_a_copy_of_a_policy_has_its_win_rates() -> None:
    table = standings(P=2, opponents=1)
    for opponent in (0, 2):
        for _ in range(20):
            table.add_result(0, 1, opponent, 1.0)
    table.remember(1, table.take_unrated(1))
    table.rating[1] = 1300.0
    play(table, 2, [0.0] * 20)
    table.take_over(0, 1)
    p = population(table)
    assert p.win_rate(0, 2) == p.win_rate(1, 2) > 0.9
    assert p.win_rate(0, 1) == 0.5
    assert table.rating[0] == 1300.0


def test_games_of_one_update_are_remembered_as_one_after_the_other() -> None:
    table, other = standings(opponents=1), standings(opponents=1)
    for _ in range(30):
        table.add_result(0, 0, 1, 0.5)
    table.remember(0, table.take_unrated(0))
    play(other, 1, [0.5] * 30)
    np.testing.assert_allclose(table.recent, other.recent)


# -- matches ----------------------------------------------------------------------------------------------------------


def test_nobody_plays_where_the_spaces_do_not_fit() -> None:
    kinds = [EnvSpec({}, ActionSpec((Categorical(n),)), agents=AGENTS) for n in (2, 3)]
    spec = EnvSpec({}, kinds[0].action, agents=AGENTS, of_agents=tuple(kinds))
    table = standings(P=4)
    chosen = iter([(0, 3), (2, 1), (1, 0)])
    worker = matches(table, lambda *_: next(chosen), spec)
    assert list(worker.begin(0, ended((0, 0)))) == [0, 3]
    assert list(worker.begin(0, ended((0, 0)))) == [2, 1]
    with pytest.raises(ValueError, match="member 1 for a, which observes or acts otherwise"):
        worker.begin(0, ended((0, 0)))
    drawn = draw(uniform, Population(table, MatchesConfig(), spec))
    for pair in ((0, 1), (0, 3), (2, 1), (2, 3)):
        assert near(drawn.count(pair), 1 / 4), pair


def test_results_count_once_for_both_and_games_against_oneself_for_nobody() -> None:
    table = standings(P=2)
    pairs = iter([(0, 1), (1, 0), (0, 0), (1, 0)])
    worker = matches(table, lambda *_: next(pairs))
    for outcome in ((0, 0), (3, 1), (2, 2), (9, 1)):
        worker.begin(0, ended(outcome))  # type: ignore[arg-type]
    assert table.record()[0, 1].tolist() == [1.5, 2]  # a win, a draw
    assert table.record()[1, 0].tolist() == [0.5, 2]
    assert table.record()[0, 0].tolist() == table.record()[1, 1].tolist() == [0, 0]


def test_a_version_that_was_closed_meanwhile_does_not_play_and_nobody_is_left_behind() -> None:
    table = standings(V=3)
    table.admit(1, 1, 0.0)
    chosen = iter([(0, 2), (0, 2), (0, 1), (0, 0)])
    worker = matches(table, lambda *_: next(chosen))
    assert list(worker.begin(0, ended((0, 0)))) == [0, 1]
    assert table.users[0].tolist() == [1, 1, 0, 0]
    worker.begin(0, ended((0, 0)))
    assert table.users[0].tolist() == [2, 0, 0, 0]


def test_a_new_worker_in_the_place_of_a_dead_one_plays_nobody_yet() -> None:
    table = standings(V=2)
    table.admit(1, 1, 0.0)
    matches(table, lambda *_: (0, 1)).begin(0, ended((0, 0)))
    assert table.users[0].tolist() == [1, 1, 0]
    matches(table, fixed)
    assert table.users[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("chosen", [(0,), (0, 1), (0, -1)])
def test_an_impossible_choice_is_an_error(chosen: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="matchmaker chose"):
        matches(standings(), lambda *_: chosen).begin(0, ended((0, 0)))


def test_members() -> None:
    table = standings(P=2, V=3, opponents=2)
    assert [table.policy_of(m) for m in range(table.N)] == [0, 1, 0, 0, 0, 1, 1, 1, 0, 0]
    assert not any(isinstance(value, np.ndarray) for value in table.__getstate__().values())  # children map the memory themselves


# -- names ------------------------------------------------------------------------------------------------------------

SPEC = EnvSpec({"obs": ArraySpec((1,), np.dtype(np.float32))}, ActionSpec((Categorical(3),)), name="test", agents=AGENTS)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"matches.matchmaker 'leage' is unknown; there are: fixed, uniform, self-play, league"):
        make_members(configs.override(Config(), **{"matches.matchmaker": "leage"}), SPEC)
    with pytest.raises(ConfigError, match="neither a run folder nor a scripted opponent; of those there are: random"):
        make_members(configs.override(Config(), **{"matches.opponents": ("rondom",)}), SPEC)
    with pytest.raises(ValueError, match="built-in"):
        matchmaking.register_matchmaker("league")


@pytest.mark.parametrize("matchmaker", ["fixed", "uniform", "self-play"])
def test_opponents_that_would_never_play_are_refused(matchmaker: str) -> None:
    given = configs.override(Config(), **{"matches.opponents": ("random",), "matches.matchmaker": matchmaker})
    with pytest.raises(ConfigError, match=f"opponents never play with .* {matchmaker}"):
        make_members(given, SPEC)
    for settings in ({"matches.matchmaker": "league"}, {"matches.matchmaker": "self-play", "matches.opponent_share": 0.1}):
        assert make_members(configs.override(given, **settings), SPEC) is not None


def test_single_agents_have_no_members_and_fixed_matches_have_no_past_versions() -> None:
    assert make_members(Config(), EnvSpec(SPEC.observation, SPEC.action)) is None
    members = make_members(Config(), SPEC)
    assert members is not None
    assert members.static == []


def test_the_random_opponent_obeys_masks_and_bounds() -> None:
    spec = EnvSpec({}, ActionSpec((Categorical(3), Continuous((-1.0,), (2.0,)), Categorical(2))))
    act, generator = matchmaking.random_opponent(spec), np.random.default_rng(0)
    mask = np.array([1, 0, 1, 0, 1], np.uint8)
    drawn = np.array([act({MASK_KEY: mask}, generator) for _ in range(1000)])
    assert set(drawn[:, 0]) == {0, 2}
    assert set(drawn[:, 2]) == {1}
    assert -1 <= drawn[:, 1].min() < -0.9
    assert 1.9 < drawn[:, 1].max() <= 2


def test_the_random_opponent_draws_where_no_choice_is_allowed_and_numbers_without_bounds() -> None:
    spec = EnvSpec({}, ActionSpec((Categorical(3), Continuous((0.0, -math.inf), (math.inf, math.inf)))))
    act, generator = matchmaking.random_opponent(spec), np.random.default_rng(0)
    drawn = np.array([act({MASK_KEY: np.zeros(3, np.uint8)}, generator) for _ in range(100)])
    assert set(drawn[:, 0]) == {0, 1, 2}
    assert drawn[:, 1].min() == 0
    assert drawn[:, 2].min() < 0 < drawn[:, 2].max()


@pytest.mark.parametrize("setting", [{"matches.matchmaker": "self-play"}, {"matches.opponents": ("random",)}])
def test_an_environment_for_one_agent_has_no_matches(tmp_path: Path, setting: dict[str, Any]) -> None:
    serial = {"sampling.placement": "serial", "run.folder": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match=r"gym/CartPole-v1 is for one agent, .* matches\.\* out"):
        headrace.train(make_config("gym/CartPole-v1", **serial, **setting))
    assert not (tmp_path / "run").exists()
