"""Who plays whom, against what the settings promise; ratings and past versions, and what goes wrong with them elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace.accelerator.weights import FlatWeights, weights_nbytes
from headrace.config import Config, ConfigError, MatchesConfig
from headrace.envs.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.evaluation.matches import wilson
from headrace.population import matchmaking
from headrace.population import past_versions as past_versions_module
from headrace.population.matchmaking import fixed, league, make_crew, priorities, self_play, uniform
from headrace.population.past_versions import K, PastVersions, expected_score, rate
from headrace.sampling.seating import Match, Matchmaking, Population, Seating
from headrace.shm.standings import GAMES, SCORE, Standings
from headrace.shm.weight_store import WeightStore

AGENTS = ("a", "b")
DRAWS = 4000


def standings(P: int = 1, V: int = 0, opponents: int = 0, W: int = 1) -> Standings:
    return Standings(W, P, V, opponents, 1200.0)


def population(table: Standings, **settings: Any) -> Population:
    return Population(table, MatchesConfig(**settings))


def near(count: float, probability: float, n: int = DRAWS) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(count - n * probability) < 5 * np.sqrt(n * probability * (1 - probability)) + 1e-9


def draw(choose: Any, p: Population, agents: tuple[str, ...] = AGENTS, number: int = 0) -> list[tuple[int, ...]]:
    generator = np.random.default_rng(1)
    return [tuple(choose(Match(number, k, agents), p, generator)) for k in range(DRAWS)]


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
    match, generator = Match(0, 0, AGENTS), np.random.default_rng(0)
    first = self_play(match, p, generator)[1]
    assert {self_play(match, p, generator)[1] for _ in range(50)} == {first}
    table.close(first)
    second = self_play(match, p, generator)[1]
    assert second != first
    table.now[0] = 50
    assert len({self_play(Match(0, 0, AGENTS, dict(match.memory)), p, generator)[1] for _ in range(100)}) == 2


def play(table: Standings, member: int, scores: list[float]) -> None:
    """Policy 0 plays so against the member, and its learner hears of every game at once."""
    for score in scores:
        table.add_result(0, 0, member, score)
        table.remember(0, table.take_unrated(0))


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


# -- seats ------------------------------------------------------------------------------------------------------------


class Group:
    """What a seating looks at."""

    spec = SimpleNamespace(agents=AGENTS)

    def __init__(self, outcome: tuple[float, float]) -> None:
        self._outcome = np.array(outcome)

    def outcomes(self, m: int) -> np.ndarray:
        return self._outcome


def seating(table: Standings, choose: Any, worker: int = 0) -> Seating:
    spec = EnvSpec({}, ActionSpec(()), agents=AGENTS)
    return Seating(worker, table, Matchmaking(choose, {}, MatchesConfig()), spec, seed=0)


def test_nobody_is_seated_where_the_spaces_do_not_fit() -> None:
    kinds = [EnvSpec({}, ActionSpec((Categorical(n),)), agents=AGENTS) for n in (2, 3)]
    spec = EnvSpec({}, kinds[0].action, agents=AGENTS, of_agents=tuple(kinds))
    table = standings(P=4)
    chosen = iter([(0, 3), (2, 1), (1, 0)])
    seats = Seating(0, table, Matchmaking(lambda *_: next(chosen), {}, MatchesConfig()), spec, seed=0)
    assert list(seats(0, Group((0, 0)), 0, [0, 1])) == [0, 3]
    assert list(seats(0, Group((0, 0)), 0, [0, 1])) == [2, 1]
    with pytest.raises(ValueError, match="member 1 for a, which observes or acts otherwise"):
        seats(0, Group((0, 0)), 0, [0, 1])
    drawn = draw(uniform, Population(table, MatchesConfig(), spec))
    for pair in ((0, 1), (0, 3), (2, 1), (2, 3)):
        assert near(drawn.count(pair), 1 / 4), pair


def test_results_count_once_for_both_and_games_against_oneself_for_nobody() -> None:
    table = standings(P=2)
    pairs = iter([(0, 1), (1, 0), (0, 0), (1, 0)])
    seats = seating(table, lambda *_: next(pairs))
    for outcome in ((0, 0), (3, 1), (2, 2), (9, 1)):
        seats(0, Group(outcome), 0, [0, 1])  # type: ignore[arg-type]
    assert table.record()[0, 1].tolist() == [1.5, 2]  # a win, a draw
    assert table.record()[1, 0].tolist() == [0.5, 2]
    assert table.record()[0, 0].tolist() == table.record()[1, 1].tolist() == [0, 0]


def test_a_version_that_was_closed_meanwhile_is_not_seated_and_nobody_is_left_behind() -> None:
    table = standings(V=3)
    table.admit(1, 1, 0.0)
    chosen = iter([(0, 2), (0, 2), (0, 1), (0, 0)])
    seats = seating(table, lambda *_: next(chosen))
    assert list(seats(0, Group((0, 0)), 0, [0, 1])) == [0, 1]
    assert table.users[0].tolist() == [1, 1, 0, 0]
    seats(0, Group((0, 0)), 0, [0, 1])
    assert table.users[0].tolist() == [2, 0, 0, 0]


def test_a_new_worker_in_the_place_of_a_dead_one_plays_nobody_yet() -> None:
    table = standings(V=2)
    table.admit(1, 1, 0.0)
    seating(table, lambda *_: (0, 1))(0, Group((0, 0)), 0, [0, 1])
    assert table.users[0].tolist() == [1, 1, 0]
    seating(table, fixed)
    assert table.users[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("chosen", [(0,), (0, 1), (0, -1)])
def test_an_impossible_choice_is_an_error(chosen: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="matchmaker chose"):
        seating(standings(), lambda *_: chosen)(0, Group((0, 0)), 0, [0, 1])


def test_members() -> None:
    table = standings(P=2, V=3, opponents=2)
    assert [table.family(m) for m in range(table.N)] == [0, 1, 0, 0, 0, 1, 1, 1, 0, 0]
    assert not any(isinstance(value, np.ndarray) for value in table.__getstate__().values())  # children map the memory themselves


# -- ratings and past versions ----------------------------------------------------------------------------------------


def test_ratings_against_one_game_after_the_other() -> None:
    assert expected_score(1600, 1200) == pytest.approx(10 / 11)
    rating = 1200.0
    for turn in range(30):
        for other, mean, n in ((1000.0, 0.75, 20), (1500.0, 0.25, 30)):
            if turn < n:
                rating += K * (mean - 1 / (1 + 10 ** ((other - rating) / 400)))
    assert rate(1200.0, [(1000.0, 15.0, 20.0), (1500.0, 7.5, 30.0)]) == pytest.approx(rating)
    settled = rate(1200.0, [(1200.0, 750.0, 1000.0)] * 40)
    assert expected_score(settled, 1200.0) == pytest.approx(0.75, abs=0.01)


def test_a_game_against_oneself_moves_no_rating(tmp_path: Path) -> None:
    table = standings(V=3, opponents=1)
    past, learner, _ = past_versions(tmp_path, table, opponents=("random",))
    for outcome in ((1, 0), (0, 1), (1, 0)):
        seats = seating(table, lambda *_: (0, 0))
        seats(0, Group((0, 0)), 0, [0, 1])  # type: ignore[arg-type]
        seats(0, Group(outcome), 0, [0, 1])  # type: ignore[arg-type]
        learner.learn(10)
        past.after_update()
    assert table.rating.tolist() == [1200.0] * table.N
    assert past.metrics()["matches/games"] == 0
    table.add_result(0, 0, 4, 1.0)
    past.after_update()
    assert table.elo(0) > 1200 > table.elo(4)


def test_two_learners_that_rate_an_opponent_at_the_same_moment_both_move_its_rating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = standings(P=2, opponents=1)
    one, _, placement = past_versions(tmp_path, table, opponents=("random",))
    other = PastVersions(placement, 1, Learner())  # type: ignore[arg-type]
    for p in (0, 1):
        table.add_result(0, p, 2, 1.0)

    def interrupted(rating: float, games: list[tuple[float, float, float]]) -> float:
        monkeypatch.setattr(past_versions_module, "rate", rate)
        other.after_update()  # another process, between what this one reads and what it writes
        return rate(rating, games)

    def own_first(rating: float, games: list[tuple[float, float, float]]) -> float:
        monkeypatch.setattr(past_versions_module, "rate", interrupted)
        return rate(rating, games)

    monkeypatch.setattr(past_versions_module, "rate", own_first)
    one.after_update()
    assert table.elo(2) == pytest.approx(1200 - 2 * K / 2, abs=0.01)
    assert one.table()["elo"][2] == round(table.elo(2), 1)  # type: ignore[index]


class Learner:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.progress = SimpleNamespace(global_step=0, version=0)

    def learn(self, step: int) -> None:
        self.progress.global_step, self.progress.version = step, self.progress.version + 1
        torch.nn.init.constant_(self.model.weight, float(step))


def past_versions(folder: Path, table: Standings, **settings: Any) -> tuple[PastVersions, Learner, Any]:
    learner = Learner()
    config = configs.override(Config(), **{"run.folder": str(folder), **{f"matches.{k}": v for k, v in settings.items()}})
    policies = [SimpleNamespace(weights=WeightStore(weights_nbytes(learner.model))) for _ in range(table.N)]
    placement: Any = SimpleNamespace(config=config, memory=SimpleNamespace(standings=table, policies=policies))
    folder.mkdir(exist_ok=True)
    return PastVersions(placement, 0, learner), learner, placement  # type: ignore[arg-type]


def weight_of(placement: Any, member: int) -> float:
    model = torch.nn.Linear(1, 1)
    FlatWeights(model).read(placement.memory.policies[member].weights)
    return float(model.weight.detach())


def test_the_first_past_version_is_no_random_one(tmp_path: Path) -> None:
    table = standings(V=4)
    past, learner, placement = past_versions(tmp_path, table, save_steps=100, window=2)
    past.after_update()
    assert table.versions(0) == []
    for step in (40, 80, 120):
        learner.learn(step)
        past.after_update()
    (first,) = table.versions(0)
    assert (int(table.step[first]), weight_of(placement, first)) == (120, 120.0)


def test_a_version_that_left_the_window_is_gone_when_nobody_plays_it(tmp_path: Path) -> None:
    table = standings(V=4)
    past, learner, placement = past_versions(tmp_path, table, save_steps=10, window=2)
    for step in (10, 20):
        learner.learn(step)
        past.after_update()
    oldest = table.versions(0)[0]
    assert table.enter(0, oldest)  # a match that does not end
    for step in range(30, 200, 10):
        learner.learn(step)
        past.after_update()
        assert len(table.versions(0)) == 2
        assert [weight_of(placement, m) for m in table.versions(0)] == [step - 10, step]
        assert not table.open[oldest]
        assert weight_of(placement, oldest) == 10.0  # what plays is not replaced
    assert not table.enter(0, oldest)
    table.leave(0, oldest)
    places = set()
    for step in range(200, 300, 10):
        learner.learn(step)
        past.after_update()
        places |= set(table.versions(0))
    assert oldest in places  # nothing is kept alive


def test_a_newer_version_in_an_old_place_has_played_nobody(tmp_path: Path) -> None:
    table = standings(V=3)
    past, learner, _ = past_versions(tmp_path, table, save_steps=10, window=1)
    learner.learn(10)
    past.after_update()
    (member,) = table.versions(0)
    for _ in range(5):
        table.add_result(0, 0, member, 1.0)
    past.after_update()
    assert table.rating[0] > 1200
    assert table.rating[member] == 1200  # a copy keeps its rating
    for step in range(20, 100, 10):
        learner.learn(step)
        past.after_update()
    assert table.record()[0, member].tolist() == [0, 0]
    before = float(table.rating[0])
    past.after_update()
    assert table.rating[0] == before


def test_games_against_the_version_that_had_the_place_before_count_for_no_other(tmp_path: Path) -> None:
    """Its policy admits another version between two updates of the one that played both."""
    table = standings(P=2, V=1)
    past, learner, _ = past_versions(tmp_path, table)
    place = table.past(1)[0]
    table.admit(place, 10, 1200.0)
    for _ in range(5):
        table.add_result(0, 0, place, 0.0)
    learner.learn(10)
    past.after_update()
    before = float(table.rating[0])
    assert before < 1200
    table.add_result(0, 0, place, 0.0)  # against the old version, not rated yet
    table.close(place)
    table.admit(place, 20, 1200.0)
    for _ in range(7):
        table.add_result(0, 0, place, 1.0)
    past.after_update()
    assert table.rating[0] == rate(before, [(1200.0, 7.0, 7.0)])
    state = past.get_state()
    assert state is not None
    assert state["seen"][place].tolist() == state["record"][0, place].tolist() == [7, 7]


def test_a_result_that_is_half_written_is_rated_when_it_is_whole(tmp_path: Path) -> None:
    table = standings(P=2)
    past, learner, _ = past_versions(tmp_path, table)
    table.counts[0, 0, 1, SCORE] = 1  # a rollout worker is between two stores
    learner.learn(10)
    past.after_update()
    assert table.rating[0] == 1200
    table.counts[0, 0, 1, GAMES] = 1
    past.after_update()
    assert table.rating[0] > 1200


def test_standings_survive_a_restart(tmp_path: Path) -> None:
    table = standings(V=3, opponents=1)
    past, learner, _ = past_versions(tmp_path, table, save_steps=10, window=1, opponents=("random",))
    for step in (10, 20):
        learner.learn(step)
        past.after_update()
        for member in (*table.versions(0), 4):
            table.add_result(0, 0, member, 1.0)
    past.after_update()
    state = past.get_state()
    other = standings(V=3, opponents=1)
    again, learner, placement = past_versions(tmp_path, other, save_steps=10, window=1, opponents=("random",))
    learner.progress.global_step = 20
    again.set_state(state)
    np.testing.assert_array_equal(other.record(), table.record())
    np.testing.assert_array_equal(other.rating, table.rating)
    assert other.versions(0) == table.versions(0)
    assert weight_of(placement, other.versions(0)[0]) == 20.0
    assert again.table() == past.table()
    assert other.recent[0, 4, GAMES] > 1
    np.testing.assert_array_equal(other.recent, table.recent)
    assert other.record()[0, 4].tolist() == [2, 2]
    assert (SCORE, GAMES) == (0, 1)


@pytest.mark.parametrize(
    ("V", "opponents"), [(3, ("one", "another")), (4, ("one",))], ids=["another opponent", "one opponent less, a larger window"]
)
def test_members_whose_numbers_mean_somebody_else_begin_anew(V: int, opponents: tuple[str, ...], tmp_path: Path) -> None:
    table = standings(V=3, opponents=2)
    past, learner, _ = past_versions(tmp_path, table, save_steps=10, opponents=("one", "two"))
    for step in (10, 20, 30):
        learner.learn(step)
        past.after_update()
        table.add_result(0, 0, 5, 1.0)
    past.after_update()
    other = standings(V=V, opponents=len(opponents))
    again, _, _ = past_versions(tmp_path, other, opponents=opponents)
    assert "begin anew" in again.set_state(past.get_state())[0]
    assert not other.record().any(), "games against one count as games against the other"
    assert set(other.rating.tolist()) == {1200.0}


def test_a_learner_that_was_killed_counts_nothing_twice(tmp_path: Path) -> None:
    """It goes back to its checkpoint; games, ratings and copies since then are those of a run that went on."""
    table = standings(V=3, opponents=1)
    settings: dict[str, Any] = {"save_steps": 10, "window": 2, "opponents": ("random",)}
    past, learner, _ = past_versions(tmp_path, table, **settings)

    def play(step: int) -> None:
        learner.learn(step)
        past.after_update()
        for member in (*table.versions(0), 4):
            table.add_result(0, 0, member, 1.0)
        past.after_update()

    play(10)
    state = past.get_state()
    play(20)
    expected = past.table()
    again, learner, placement = past_versions(tmp_path, table, **settings)
    for policy, member in ((placement.memory.policies[m], m) for m in table.versions(0)):  # the same memory is still there
        policy.weights.publish(np.full(policy.weights.nbytes, member, np.uint8), member)
    learner.progress.global_step = 10
    again.set_state(state)
    assert again.table() == expected
    again.after_update()
    assert again.table() == expected
    assert [m[0] for m in again.get_state()["copies"]] == table.versions(0)  # type: ignore[index]
    # Nor does one that was killed before its first checkpoint.
    fresh, learner, _ = past_versions(tmp_path, table, **settings)
    fresh.after_update()
    assert fresh.table() == expected


# -- names ------------------------------------------------------------------------------------------------------------

SPEC = EnvSpec({"obs": ArraySpec((1,), np.dtype(np.float32))}, ActionSpec((Categorical(3),)), name="test", agents=AGENTS)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"matches.matchmaker 'leage' is unknown; there are: fixed, uniform, self-play, league"):
        make_crew(configs.override(Config(), **{"matches.matchmaker": "leage"}), SPEC)
    with pytest.raises(ConfigError, match="neither a run folder nor a scripted opponent; of those there are: random"):
        make_crew(configs.override(Config(), **{"matches.opponents": ("rondom",)}), SPEC)
    with pytest.raises(ValueError, match="built-in"):
        matchmaking.register_matchmaker("league")


def test_single_agents_have_no_crew_and_fixed_seats_no_past() -> None:
    assert make_crew(Config(), EnvSpec(SPEC.observation, SPEC.action)) is None
    crew = make_crew(Config(), SPEC)
    assert crew is not None
    assert crew.frozen == []


def test_the_random_opponent_obeys_masks_and_bounds() -> None:
    spec = EnvSpec({}, ActionSpec((Categorical(3), Continuous((-1.0,), (2.0,)), Categorical(2))))
    act, generator = matchmaking.random_opponent(spec), np.random.default_rng(0)
    mask = np.array([1, 0, 1, 0, 1], np.uint8)
    drawn = np.array([act({MASK_KEY: mask}, generator) for _ in range(1000)])
    assert set(drawn[:, 0]) == {0, 2}
    assert set(drawn[:, 2]) == {1}
    assert -1 <= drawn[:, 1].min() < -0.9
    assert 1.9 < drawn[:, 1].max() <= 2


def test_wilson_interval() -> None:
    low, high = wilson(8, 10)  # Newcombe 1998, table I: 0.4902 to 0.9433
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson(0, 0) == (0, 1)
