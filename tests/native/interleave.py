"""Explore every interleaving of a few small concurrent programs, and the death of any of them between any two steps.

A program is a generator. What it yields is one atomic step: a function of the shared memory (a dict), which may change it
and whose result the program gets back. `Sleep` and `Wake` are the futex calls, `When` a step that waits for a condition.
States are told apart by the memory and by where each program is with which local variables, so loops end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Memory = dict[str, Any]
Program = Generator[Any, Any, None]

READY, ASLEEP, DONE, DEAD = "ready", "asleep", "done", "dead"


@dataclass(frozen=True)
class Sleep:
    """FUTEX_WAIT: goes to sleep if the word still has this value."""

    word: str
    value: Hashable


@dataclass(frozen=True)
class Wake:
    """FUTEX_WAKE: wakes at most `n` sleepers, any of them; its result is how many."""

    word: str
    n: int


@dataclass(frozen=True)
class When:
    """A step that can only be taken while `condition(memory)` holds."""

    condition: Callable[[Memory], bool]
    step: Callable[[Memory], Any]


class Violation(AssertionError):
    """A reachable state breaks a promise; the message has the steps that lead there."""


@dataclass(frozen=True)
class _Process:
    results: tuple[Any, ...] = ()  # of its steps so far: enough to run it up to here again
    status: str = READY
    asleep_on: str = ""
    place: Hashable = None


@dataclass
class Exploration:
    """`programs`: name -> function that starts it. `mortal`: names of those that may die, `deaths` of them in all. The names
    of the dead are appended to memory["dead"]. `timeouts`: when nothing else can happen, sleepers wake up; without it a
    sleeper whom nobody wakes is a violation. `prune`: memories from which nothing more is explored, where the number of
    states has no bound."""

    programs: dict[str, Callable[[], Program]]
    memory: Memory
    invariant: Callable[[Memory], None] = lambda memory: None
    at_end: Callable[[Memory], None] = lambda memory: None
    mortal: Sequence[str] = ()
    deaths: int = 0
    timeouts: bool = False
    prune: Callable[[Memory], bool] = lambda memory: False
    states: int = field(default=0, init=False)

    def run(self) -> int:
        """Explore; returns the number of states. Raises Violation."""
        names = list(self.programs)
        first = tuple(self._arrive(name, ()) for name in names)
        stack: list[tuple[Memory, tuple[_Process, ...], Any]] = [({"dead": (), **self.memory}, first, None)]
        seen = {self._key(stack[0][0], first)}
        while stack:
            memory, processes, path = stack.pop()
            self.states += 1
            try:
                successors = list(self._successors(names, memory, processes))
                if not successors:
                    stuck = [n for n, p in zip(names, processes, strict=True) if p.status in (READY, ASLEEP)]
                    assert not stuck, f"{stuck} wait for ever"
                    self.at_end(memory)
                for _, after, _ in successors:
                    self.invariant(after)
            except AssertionError as error:
                raise Violation(f"{error} (memory {memory}) after {_steps(path)}") from error
            for who, after, now in successors:
                key = self._key(after, now)
                if key not in seen and not self.prune(after):
                    seen.add(key)
                    stack.append((after, now, (path, who)))
        return self.states

    @staticmethod
    def _key(memory: Memory, processes: tuple[_Process, ...]) -> Hashable:
        return tuple(memory.items()), tuple((p.status, p.asleep_on, p.place) for p in processes)

    def _arrive(self, name: str, results: tuple[Any, ...]) -> _Process:
        """The process after these results: at its next step, or at its end."""
        program, op = self._replay(name, results)
        if op is None:
            return _Process(results, DONE)
        place, frame = [], program
        while frame is not None:
            if frame.gi_frame is not None:
                local = {k: v for k, v in frame.gi_frame.f_locals.items() if isinstance(v, int | str | tuple | None)}
                place.append((frame.gi_frame.f_lasti, tuple(sorted(local.items(), key=lambda item: item[0]))))
            frame = frame.gi_yieldfrom
        return _Process(results, READY, "", tuple(place))

    def _replay(self, name: str, results: tuple[Any, ...]) -> tuple[Any, Any]:
        program = self.programs[name]()
        try:
            op = next(program)
            for result in results:
                op = program.send(result)
        except StopIteration:
            op = None
        return program, op

    def _successors(
        self, names: list[str], memory: Memory, processes: tuple[_Process, ...]
    ) -> Iterator[tuple[str, Memory, tuple[_Process, ...]]]:
        def having(changes: dict[int, _Process]) -> tuple[_Process, ...]:
            return tuple(changes.get(i, p) for i, p in enumerate(processes))

        moved = False
        for i, (name, process) in enumerate(zip(names, processes, strict=True)):
            if process.status == READY:
                for after, changes in self._step(names, i, memory, processes):
                    moved = True
                    yield name, after, having(changes)
            if name in self.mortal and process.status in (READY, ASLEEP) and len(memory["dead"]) < self.deaths:
                yield f"{name}-dies", {**memory, "dead": (*memory["dead"], name)}, having({i: _Process((), DEAD)})
        if not moved and self.timeouts:
            for i, (name, process) in enumerate(zip(names, processes, strict=True)):
                if process.status == ASLEEP:
                    awake = self._arrive(name, (*process.results, None))
                    yield f"{name}-timeout", memory, having({i: awake})

    def _step(
        self, names: list[str], i: int, memory: Memory, processes: tuple[_Process, ...]
    ) -> Iterator[tuple[Memory, dict[int, _Process]]]:
        name, process = names[i], processes[i]
        _, op = self._replay(name, process.results)

        def after(result: Any) -> _Process:
            return self._arrive(name, (*process.results, result))

        if isinstance(op, Sleep):
            if memory[op.word] != op.value:
                yield memory, {i: after(None)}
            else:
                yield memory, {i: _Process(process.results, ASLEEP, op.word, process.place)}
        elif isinstance(op, Wake):
            asleep = [j for j, p in enumerate(processes) if p.status == ASLEEP and p.asleep_on == op.word]
            count = min(op.n, len(asleep))
            for chosen in itertools.combinations(asleep, count):
                woken = {j: self._arrive(names[j], (*processes[j].results, None)) for j in chosen}
                yield memory, {**woken, i: after(count)}
        elif isinstance(op, When):
            if op.condition(memory):
                changed = dict(memory)
                result = op.step(changed)
                yield changed, {i: after(result)}
        else:
            changed = dict(memory)
            result = op(changed)
            yield changed, {i: after(result)}


def _steps(path: Any) -> str:
    steps = []
    while path:
        path, who = path
        steps.append(who)
    return " ".join(reversed(steps))
