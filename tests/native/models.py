"""The algorithms of native/ipc written as programs of atomic steps, for `interleave`, in the order of the C++ statements.

Ghost variables record what happened (`puts`, `gets` in the order of the swaps). `broken` names one step that is done
wrongly on purpose: exploration must then find a violation, which shows that it can.
"""
# ruff: noqa: B023 (a step is taken before the program goes on, so its loop variables are still the same)

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from interleave import Memory, Program, Sleep, Wake, When

Steps = Generator[Any, Any, Any]


def cas(memory: Memory, name: str, expected: Any, desired: Any) -> bool:
    if memory[name] != expected:
        return False
    memory[name] = desired
    return True


# Signal (futex.h). A word is (generation, flag).


def prepare(word: str, broken: str) -> Steps:
    while True:
        seen = yield lambda m: m[word]
        ticket = (seen[0] + (broken != "same generation"), int(broken != "no announcement"))
        if (yield lambda m: cas(m, word, seen, ticket)):
            return ticket


def notify(word: str, n: int, broken: str) -> Steps:
    while True:
        seen = yield lambda m: m[word]
        if not seen[1]:
            return
        following = (seen[0] + 1, 1)
        if not (yield lambda m: cas(m, word, seen, following)):
            continue
        woken = yield Wake(word, n)
        if woken < n:
            yield lambda m: cas(m, word, following, (following[0], 0))
        return


# Queue (queue.h). Cells are (turn, value).


def queue_memory(capacity: int) -> Memory:
    cells = {f"cell{i}": (0, None) for i in range(capacity)}
    return {"tail": 0, "head": 0, "arrived": (0, 0), "freed": (0, 0), "puts": (), "gets": (), **cells}


def _look(cell: str, turn: int, idle: str, capacity: int) -> Any:
    """Load a cell. Where that decides "full" or "empty" the queue must be so at this instant."""

    def step(m: Memory) -> Any:
        if m[cell][0] < turn:
            inside = len(m["puts"]) - len(m["gets"])
            assert inside == (0 if idle == "empty" else capacity), f"said {idle} with {inside} values inside"
        return m[cell]

    return step


def advance(hint: str, position: int) -> Steps:
    seen = yield lambda m: m[hint]
    while seen < position:
        if (yield lambda m: cas(m, hint, seen, position)):
            return
        seen = yield lambda m: m[hint]


def try_put(value: Any, capacity: int, broken: str = "", wakes: bool = True) -> Steps:
    def fill(m: Memory) -> bool:
        if not cas(m, cell, seen, (empty + 1, value)):
            return False
        m["puts"] += (value,)
        return True

    def reserve(m: Memory) -> int:
        m["tail"] += 1
        m["puts"] += (value,)
        return m["tail"] - 1

    if broken == "reserve, then publish":
        position = yield reserve
        yield lambda m: m.update({f"cell{position % capacity}": (position // capacity * 2 + 1, value)})
        return True
    position = yield lambda m: m["tail"]
    done = False
    while not done:
        cell, empty = f"cell{position % capacity}", position // capacity * 2
        seen = yield _look(cell, empty, "full", capacity)
        ahead = seen[0] - empty
        if ahead < 0:
            break
        if broken == "hint first" and ahead == 0:
            yield from advance("tail", position + 1)
        if ahead == 0:
            if not (yield fill):
                continue
            done = True
        elif ahead > 1:
            tail = yield lambda m: m["tail"]
            position = max(position, tail - 1)
        position += 1
    yield from advance("tail", position)
    if done and wakes:
        yield from notify("arrived", 1, broken)
    return done


def try_get(n: int, capacity: int, broken: str = "", wakes: bool = True) -> Steps:
    def empty(m: Memory) -> bool:
        if not cas(m, cell, seen, (full if broken == "turn kept" else full + 1, None)):
            return False
        m["gets"] += (seen[1],)
        return True

    position = yield lambda m: m["head"]
    done = 0
    while done < n:
        cell, full = f"cell{position % capacity}", position // capacity * 2 + 1
        seen = yield _look(cell, full, "empty", capacity)
        ahead = seen[0] - full
        if ahead < 0:
            break
        if ahead == 0:
            if broken == "two steps to take":
                yield lambda m: m.update(gets=(*m["gets"], seen[1]))
                yield lambda m: m.update({cell: (full + 1, None)})
            elif not (yield empty):
                continue
            done += 1
        elif ahead > 1:
            head = yield lambda m: m["head"]
            position = max(position, head - 1)
        position += 1
    yield from advance("head", position)
    if done and wakes:
        yield from notify("freed", done, broken)
    return done


def trier(values: tuple[Any, ...], capacity: int, broken: str = "") -> Program:
    for value in values:
        yield from try_put(value, capacity, broken, wakes=False)


def taker(times: int, at_once: int, capacity: int, broken: str = "") -> Program:
    for _ in range(times):
        yield from try_get(at_once, capacity, broken, wakes=False)


def producer(values: tuple[Any, ...], capacity: int, broken: str = "") -> Program:
    for value in values:
        while not (yield from try_put(value, capacity, broken)):
            ticket = yield from prepare("freed", broken)
            if (yield from try_put(value, capacity, broken)):
                break
            yield Sleep("freed", ticket)


def consumer(wanted: int, capacity: int, at_once: int = 1, broken: str = "") -> Program:
    """Gets `wanted` values, or as many as can still come after a death."""
    got = 0
    while got < wanted:
        done = yield from try_get(min(at_once, wanted - got), capacity, broken)
        if not done:
            ticket = yield from prepare("arrived", broken)
            if broken != "no second look":
                done = yield from try_get(min(at_once, wanted - got), capacity, broken)
            if not done:
                yield Sleep("arrived", ticket)
        got += done
        if not done and (yield lambda m: bool(m["dead"]) and len(m["puts"]) == len(m["gets"])):
            return


# Slots (slots.h), with the queue as one atomic tuple: that it behaves like one is the property explored above. A slot's
# word is (life, owner); its contents are two cells, written one after the other.

NOBODY, LEARNER = 0, 9


def slots_memory(slots: int) -> Memory:
    words = {f"slot{s}": (0, NOBODY) for s in range(slots)}
    contents = {f"data{s}.{i}": None for s in range(slots) for i in range(2)}
    return {**words, **contents, "queue": (), "learned": (), "restarts": 0}


def rollout_worker(me: int, trajectories: int, slots: int, process: str, broken: str = "") -> Program:
    for k in range(trajectories):
        slot = None
        while slot is None:
            yield When(lambda m: any(m[f"slot{s}"][1] == NOBODY for s in range(slots)), lambda m: None)
            for s in range(slots):
                seen = yield lambda m: m[f"slot{s}"]
                if seen[1] != NOBODY:
                    continue
                if broken == "acquire without a swap":
                    yield lambda m: m.update({f"slot{s}": (seen[0], me)})
                elif not (yield lambda m: cas(m, f"slot{s}", seen, (seen[0], me))):
                    continue
                slot, life = s, seen[0]
                break
        for i in range(2):
            yield lambda m: m.update({f"data{slot}.{i}": (process, k)})
        # Twice, as where a supervisor is not sure whether the first one was lost.
        yield lambda m: m.update(queue=(*m["queue"], (life, slot), (life, slot)))


def learner(slots: int, workers: dict[str, int], broken: str = "") -> Program:
    def over(m: Memory) -> bool:
        return m["done"] == len(workers) and not m["queue"]

    def get(m: Memory) -> Any:
        if not m["queue"]:
            return None
        ticket, m["queue"] = m["queue"][0], m["queue"][1:]
        return ticket

    while True:
        ticket = yield When(lambda m: bool(m["queue"]) or over(m), get)
        if ticket is None:
            return
        life, slot = ticket
        seen = yield lambda m: m[f"slot{slot}"]
        stale = seen[0] != life and broken != "life ignored"
        if stale or seen[1] in (NOBODY, LEARNER):
            continue
        if not (yield lambda m: cas(m, f"slot{slot}", seen, (seen[0], LEARNER))):
            continue
        first = yield lambda m: m[f"data{slot}.0"]
        second = yield lambda m: m[f"data{slot}.1"]

        def learn(m: Memory) -> None:
            assert first == second, f"half written: {first} and {second}"
            assert first not in m["learned"], f"{first} learned twice"
            m["learned"] += (first,)

        yield learn
        yield lambda m: cas(m, f"slot{slot}", (seen[0], LEARNER), (seen[0] + (broken != "life kept"), NOBODY))


def supervised(me: int, trajectories: int, slots: int, broken: str = "") -> Program:
    """The parent for one worker: waits for its end, frees its slots, starts another in its place."""
    name = f"worker{me}"
    end = yield When(
        lambda m: name in m["dead"] or m[f"end{me}"] == "done",
        lambda m: m[f"end{me}"],
    )
    if end != "done":
        for s in range(slots):
            seen = yield lambda m: m[f"slot{s}"]
            if seen[1] == me and broken != "not reclaimed":
                yield lambda m: cas(m, f"slot{s}", seen, (seen[0] + (broken != "reclaimed with the old life"), NOBODY))
        yield from rollout_worker(me, trajectories, slots, f"{name} again", broken)
    yield lambda m: m.update(done=m["done"] + 1)


def first_life(me: int, trajectories: int, slots: int, broken: str = "") -> Program:
    yield from rollout_worker(me, trajectories, slots, f"worker{me}", broken)
    yield lambda m: m.update({f"end{me}": "done"})


# VersionedBuffer (versioned_buffer.h). A buffer's payload is two cells.


def versioned_buffer_memory() -> Memory:
    buffers = {f"{part}{b}": 0 for b in range(2) for part in ("version", "low", "high")}
    return {"begun": 0, "finished": 0, **buffers, "published": (0,)}


def writer(versions: tuple[int, ...], broken: str = "") -> Program:
    for version in versions:
        update = (yield lambda m: m["finished"]) + 1
        if broken != "not marked":
            yield lambda m: m.update(begun=update)
        buffer = 0 if broken == "one buffer" else update % 2
        for part in ("version", "low", "high"):
            yield lambda m: m.update({f"{part}{buffer}": version})
        yield lambda m: m.update(finished=update, published=(*m["published"], version))


def next_writer(last: int, versions: tuple[int, ...], broken: str = "") -> Program:
    yield When(lambda m: "writer" in m["dead"] or m["published"][-1] == last, lambda m: None)
    yield from writer(versions, broken)


def reader(reads: int, broken: str = "") -> Program:
    for _ in range(reads):
        before = yield lambda m: len(m["published"])
        while True:
            update = yield lambda m: m["finished"]
            buffer = 0 if broken == "one buffer" else update % 2
            version = yield lambda m: m[f"version{buffer}"]
            low = yield lambda m: m[f"low{buffer}"]
            high = yield lambda m: m[f"high{buffer}"]
            if (yield lambda m: m["begun"]) < update + 2 or broken == "not validated":
                break

        def check(m: Memory) -> None:
            assert version == low == high, f"half an update: {version}, {low}, {high}"
            assert version in m["published"][before - 1 :], f"read {version}, which was not the newest"

        yield check
