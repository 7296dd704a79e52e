"""Elo ratings and past versions: what a learner keeps of its matches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tables import ended, matches, standings

from headrace import config as configs
from headrace.accelerator.weights import FlatWeights, weights_nbytes
from headrace.config import Config
from headrace.population import past_versions as past_versions_module
from headrace.population.past_versions import PastVersions
from headrace.population.ratings import K, expected_score, rate
from headrace.shm.population import GAMES, SCORE, Standings
from headrace.shm.weight_store import WeightStore


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
        worker = matches(table, lambda *_: (0, 0))
        worker.begin(0, ended((0, 0)))
        worker.begin(0, ended(outcome))  # type: ignore[arg-type]
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


DROPPED = "1 past versions of policy 0 are dropped: matches.window leaves no room for them"


@pytest.mark.parametrize("V", [2, 3, 5])
def test_a_run_goes_on_with_other_opponents_and_another_window(V: int, tmp_path: Path) -> None:
    """Whoever is still there keeps his rating, his games and his weights, whatever his number is now."""
    table = standings(P=2, V=3, opponents=2)
    past, learner, placement = past_versions(tmp_path, table, save_steps=10, opponents=("one", "two"))
    other_policy = PastVersions(placement, 1, Learner())  # type: ignore[arg-type]
    for step in (10, 20, 30):
        learner.learn(step)
        past.after_update()
        for member, score in ((1, 0.0), (3, 1.0), (8, 0.5), (9, 1.0)):
            table.add_result(0, 0, member, score)
    past.after_update()
    other_policy.after_update()
    assert table.opponents == range(8, 10)
    after = standings(P=2, V=V, opponents=2)
    again, _, now = past_versions(tmp_path, after, opponents=("new", "one"))
    messages = again.set_state(past.get_state())
    assert messages == ([DROPPED] if V == 2 else [])
    assert PastVersions(now, 1, Learner()).set_state(other_policy.get_state()) == []  # type: ignore[arg-type]
    new, one = after.opponents
    for before, here in ((1, 1), (3, 3), (8, one)):
        assert after.record()[0, here].tolist() == table.record()[0, before].tolist() != [0, 0]
        assert after.record()[here, 0].tolist() == table.record()[before, 0].tolist()
        assert after.recent[0, here].tolist() == table.recent[0, before].tolist()
        assert after.elo(here) == pytest.approx(table.elo(before))
    assert after.elo(0) == table.elo(0) != 1200
    assert after.elo(new) == 1200
    assert not after.record()[0, new].any()
    assert [int(after.step[m]) for m in after.versions(0)] == [10, 20, 30][:V]
    assert [weight_of(now, m) for m in after.versions(0)] == [10.0, 20.0, 30.0][:V]
    again.after_update()
    assert after.elo(0) == table.elo(0), "old games moved a rating again"


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
