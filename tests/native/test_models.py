"""All interleavings of the queue, the slot credits and the buffer, with a participant that dies between any two steps."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from interleave import Exploration, Memory, Violation
from models import (
    NOBODY,
    consumer,
    first_life,
    learner,
    next_writer,
    producer,
    queue_memory,
    reader,
    slots_memory,
    supervised,
    taker,
    trier,
    versioned_buffer_memory,
    writer,
)


def slept_often(m: Memory) -> bool:
    """Two waiters can keep each other awake for ever (each announcement ends the other's), if nothing else happens: every
    such round is one generation of the signal, and this many are explored."""
    return m["arrived"][0] > 4 or m["freed"][0] > 4


def run_all(explorations: Iterable[Exploration]) -> None:
    for exploration in explorations:
        exploration.run()


def first_in_first_out(m: Memory) -> None:
    assert m["gets"] == m["puts"][: len(m["gets"])], "order"


def nothing_lost(m: Memory) -> None:
    cells = [m[name] for name in m if name.startswith("cell")]
    left = tuple(value for turn, value in cells if turn % 2)
    assert sorted(map(str, m["gets"] + left)) == sorted(m["puts"]), "lost or doubled"


def values_of(producer: int, each: int) -> tuple[str, ...]:
    return tuple(f"{producer}{k}" for k in range(each))


def swaps(
    producers: int,
    each: int,
    takers: int,
    times: int,
    capacity: int,
    deaths: int = 0,
    at_once: int = 1,
    broken: str = "",
) -> Exploration:
    """Puts and gets that do not wait. Whether one may say "full" or "empty" is checked at the step that decides it."""
    programs = {f"producer{p}": lambda p=p: trier(values_of(p, each), capacity, broken) for p in range(producers)} | {
        f"taker{t}": lambda: taker(times, at_once, capacity, broken) for t in range(takers)
    }
    return Exploration(
        programs, queue_memory(capacity), first_in_first_out, nothing_lost, mortal=list(programs), deaths=deaths
    )


def waits(producers: int, each: int, consumers: int, capacity: int, deaths: int = 0, broken: str = "") -> Exploration:
    """Puts and gets that sleep. Without deaths nobody may sleep on while there is something to do for it; after a death
    that is what the longest sleep (a timeout) is for."""

    def all_got(m: Memory) -> None:
        nothing_lost(m)
        assert m["dead"] or len(m["gets"]) == producers * each, "not everything was got"

    programs = {
        f"producer{p}": lambda p=p: producer(values_of(p, each), capacity, broken) for p in range(producers)
    } | {f"consumer{c}": lambda: consumer(producers * each // consumers, capacity, 1, broken) for c in range(consumers)}
    return Exploration(
        programs,
        queue_memory(capacity),
        first_in_first_out,
        all_got,
        mortal=list(programs),
        deaths=deaths,
        timeouts=deaths > 0,
        prune=slept_often,
    )


@pytest.mark.parametrize(
    ("producers", "each", "takers", "times", "capacity", "deaths", "at_once"),
    [(2, 1, 1, 2, 1, 1, 1), (1, 3, 1, 2, 2, 1, 2), (2, 1, 2, 1, 2, 0, 1), (1, 2, 2, 1, 1, 1, 1)],
)
def test_swaps(producers, each, takers, times, capacity, deaths, at_once):
    assert swaps(producers, each, takers, times, capacity, deaths, at_once).run() > 300


@pytest.mark.parametrize(
    ("producers", "each", "consumers", "capacity", "deaths"), [(1, 2, 1, 1, 0), (1, 3, 1, 2, 0), (1, 2, 1, 1, 1)]
)
def test_nobody_sleeps_too_long(producers, each, consumers, capacity, deaths):
    assert waits(producers, each, consumers, capacity, deaths).run() > 1000


@pytest.mark.slow
def test_larger():
    assert swaps(2, 1, 2, 2, 2, deaths=1).run() > 10_000
    assert waits(2, 1, 1, 2, deaths=0).run() > 10_000
    assert waits(1, 2, 2, 2, deaths=0).run() > 10_000
    assert slots(2, 1, 2, deaths=2).run() > 10_000


@pytest.mark.parametrize("broken", ["reserve, then publish", "hint first", "turn kept", "two steps to take"])
def test_broken_swaps_are_found(broken):
    with pytest.raises(Violation):
        run_all(swaps(*sizes, broken=broken) for sizes in ((2, 1, 1, 2, 2), (1, 3, 2, 2, 1)))


@pytest.mark.parametrize("broken", ["no second look", "no announcement"])
def test_broken_waits_are_found(broken):
    with pytest.raises(Violation):
        waits(1, 2, 1, 1, broken=broken).run()


def slots(workers: int, trajectories: int, slots: int, deaths: int, broken: str = "") -> Exploration:
    def all_free(m: Memory) -> None:
        assert all(m[f"slot{s}"][1] == NOBODY for s in range(slots)), "a slot was lost"
        if not m["dead"]:
            assert len(m["learned"]) == workers * trajectories, "a trajectory was lost"

    numbers = range(1, workers + 1)
    programs = {f"worker{w}": lambda w=w: first_life(w, trajectories, slots, broken) for w in numbers}
    mortal = list(programs)
    programs |= {f"parent{w}": lambda w=w: supervised(w, trajectories, slots, broken) for w in numbers}
    programs["learner"] = lambda: learner(slots, {f"worker{w}": w for w in numbers}, broken)
    memory = slots_memory(slots) | {"done": 0} | {f"end{w}": "" for w in numbers}
    return Exploration(programs, memory, at_end=all_free, mortal=mortal, deaths=deaths)


@pytest.mark.parametrize(
    ("workers", "trajectories", "n", "deaths"), [(1, 2, 1, 1), (1, 2, 2, 1), (2, 1, 1, 1), (2, 1, 2, 0)]
)
def test_slot_credits_return_exactly_once(workers, trajectories, n, deaths):
    assert slots(workers, trajectories, n, deaths).run() > 50


@pytest.mark.parametrize(
    "broken",
    ["acquire without a swap", "life ignored", "life kept", "not reclaimed", "reclaimed with the old life"],
)
def test_broken_slot_credits_are_found(broken):
    with pytest.raises(Violation):
        run_all(slots(*sizes, deaths=1, broken=broken) for sizes in ((1, 2, 1), (2, 1, 1), (1, 2, 2)))


def buffer(broken: str = "", deaths: int = 1) -> Exploration:
    programs = {
        "writer": lambda: writer((1, 2, 3), broken),
        "next": lambda: next_writer(3, (4, 5), broken),
        "reader": lambda: reader(2, broken),
    }
    return Exploration(programs, versioned_buffer_memory(), mortal=["writer"], deaths=deaths)


def test_versioned_buffer_never_shows_half_an_update():
    assert buffer().run() > 1000


@pytest.mark.parametrize("broken", ["one buffer", "not marked", "not validated"])
def test_broken_versioned_buffer_is_found(broken):
    with pytest.raises(Violation):
        buffer(broken).run()
