"""The tables of a population on a node follow those of the learner's machine, and results come back once, whatever is late."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.population_codec import ResultsCodec, StateCodec
from headrace.shm.population import GAMES, PopulationMemory, Standings
from headrace.transport.messages import ProtocolError

P, V, NODES, WORKERS = 2, 2, 2, 2
PLACES = range(P, P * (1 + V))


def standings() -> Standings:
    return Standings(NODES * WORKERS, P, V, 1, 1200.0)


def memory(table: Standings | None = None, population: PopulationMemory | None = None) -> Any:
    return SimpleNamespace(standings=table, population=population)


def test_reward_weights_are_set_once_for_each_change() -> None:
    here, there = (PopulationMemory([100, 100], {"a": 1.0, "b": 2.0}) for _ in range(2))
    of_learner, of_node = StateCodec(memory(None, here), 1), StateCodec(memory(None, there), 1)
    of_node.apply(of_learner.state(0)[0])
    assert there.reward_updates.tolist() == [0, 0]
    here.set_reward_weights(1, [3.0, 4.0])
    for _ in range(2):
        of_node.apply(of_learner.state(0)[0])
    assert there.reward_weights.tolist() == [[1, 2], [3, 4]]
    assert there.reward_updates.tolist() == [0, 1]
    with pytest.raises(ProtocolError):
        of_node.apply(of_learner.state(0)[0][:-1])


def test_what_runs_have_nothing_of_is_not_sent() -> None:
    assert not StateCodec(memory(), 0).needed
    assert not StateCodec(memory(None, PopulationMemory([100])), 0).needed
    assert StateCodec(memory(standings()), 0).needed


def test_a_node_knows_what_the_learners_know() -> None:
    rng, here, there = np.random.default_rng(0), standings(), standings()
    for _ in range(200):
        one, other = rng.choice(here.N, 2, replace=False)
        here.add_result(rng.integers(NODES), one, other, rng.choice([0, 0.5, 1]))
    here.baseline[:] = rng.integers(0, 2, here.baseline.shape)
    for name in ("rating", "moved", "recent"):
        getattr(here, name)[:] = rng.random(getattr(here, name).shape)
    here.now[:P], here.done[0] = (70, 80), 1
    here.admit(3, 60, 1300.0)
    ResultsCodec(there).count_on(ResultsCodec(here).counted(1), 1)
    for p in range(P):
        StateCodec(memory(there), p).apply(StateCodec(memory(here), p).state(1)[0])
    for name in ("rating", "moved", "recent", "now", "done", "step", "open"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    np.testing.assert_array_equal(there.record(), here.record())
    there.add_result(3, 0, 1, 1.0)  # its own games count at once
    assert (there.record() - here.record())[0, 1].tolist() == [1, 1]
    assert (there.record() - here.record())[1, 0].tolist() == [0, 1]


class Node:
    """A node's tables and matches, and the messages on their way, with the past version that is in each place."""

    def __init__(self, here: Standings, number: int, former: Counter[tuple[int, int]]) -> None:
        self.here, self.number = here, number
        here.users[number] = 0  # what the receiver does when a node is gone
        self.table = standings()
        self.truth = Counter(former)
        """Games by place and version."""
        self.matches: list[tuple[int, int, int]] = []
        self.reports: deque[tuple[bytes, Counter[tuple[int, int]]]] = deque()
        self.begin()

    def begin(self) -> None:
        """Streams are opened; what was on its way is lost."""
        self.down: list[deque[Any]] = [deque() for _ in range(P)]
        self.sent: list[dict[int, int]] = [{} for _ in range(P)]
        self.reports.clear()
        self.down[0].append(ResultsCodec(self.here).counted(self.number))

    def send(self, p: int) -> None:
        state, playable = StateCodec(memory(self.here), p).state(self.number)
        self.down[p].extend((m, step) for m, step in playable.items() if self.sent[p].get(m) != step)
        self.sent[p] = playable
        self.down[p].append(state)

    def receive(self, p: int, weights: dict[int, int]) -> None:
        if not self.down[p]:
            return
        message = self.down[p].popleft()
        if isinstance(message, tuple):
            assert not [match for match in self.matches if match[1] == message[0] and match[2] != message[1]]
            weights.update([message])
        elif len(message) == len(ResultsCodec(self.here).counted(0)):
            ResultsCodec(self.table).count_on(message, self.number)
        else:
            StateCodec(memory(self.table), p).apply(message)

    def play(self, worker: int, place: int, weights: dict[int, int]) -> None:
        if self.table.begun[0] and self.table.enter(worker, place):
            self.matches.append((worker, place, weights[place]))

    def end_match(self) -> None:
        if self.matches:
            worker, place, version = self.matches.pop(0)
            self.table.add_result(worker, 0, place, 1.0)
            self.truth[place, version] += 1
            self.table.leave(worker, place)

    def report(self) -> None:
        if (message := ResultsCodec(self.table).results()) is not None:
            self.reports.append((message, Counter(self.truth)))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_no_game_counts_for_another_version_and_none_twice(seed: int) -> None:
    """Learners, receivers, nodes and their workers take turns at random; messages are late, streams break, nodes die."""
    rng, here, step, reused = np.random.default_rng(seed), standings(), 0, 0
    counted: list[Counter[tuple[int, int]]] = [Counter() for _ in range(NODES)]
    nodes, weights = [Node(here, k, counted[k]) for k in range(NODES)], [dict[int, int]() for _ in range(NODES)]
    for _ in range(1500):
        k, p, worker, what = rng.integers(NODES), int(rng.integers(P)), int(rng.integers(WORKERS)), rng.random()
        node = nodes[k]
        if what < 0.05:
            for m in here.versions(p)[:1]:
                here.close(m)
        elif what < 0.15:
            if (place := here.free_place(p)) is not None:
                step += 1
                reused += here.step[place] >= 0
                here.admit(place, step, 1200.0)
        elif what < 0.3:
            node.send(p)
        elif what < 0.5:
            node.receive(p, weights[k])
        elif what < 0.65:
            node.play(worker, int(rng.choice(PLACES)), weights[k])
        elif what < 0.8:
            node.end_match()
        elif what < 0.88:
            node.report()
        elif what < 0.98:
            if node.reports:
                message, counted[k] = node.reports.popleft()
                ResultsCodec(here).take(message, int(k))
        elif what < 0.99:
            node.begin()
        else:
            nodes[k], weights[k] = Node(here, int(k), counted[k]), {}
        for m in PLACES:
            games = sum(of_node[m, int(here.step[m])] for of_node in counted)
            assert here.record()[0, m, GAMES] == here.record()[m, 0, GAMES] == games
    assert reused


def test_a_place_is_free_when_no_node_plays_its_version_any_more() -> None:
    here, weights = standings(), dict[int, int]()
    here.admit(2, 10, 1200.0)
    node = Node(here, 0, Counter())

    def pass_on() -> None:
        node.send(0)
        while node.down[0]:
            node.receive(0, weights)

    pass_on()
    node.play(0, 2, weights)
    here.close(2)
    pass_on()
    for _ in range(2):
        node.report()
        ResultsCodec(here).take(node.reports.popleft()[0], 0)
        assert here.free_place(0) == 3  # the one that had no version yet
    node.end_match()
    assert here.free_place(0) == 3  # until it is reported
    node.report()
    ResultsCodec(here).take(node.reports.popleft()[0], 0)
    assert here.free_place(0) == 2
