"""Deadlines of answers."""

from __future__ import annotations

from time import monotonic

from headrace.envs.remote import transport
from headrace.envs.remote.transport import Link


class Answered(Link):
    """Whose answer comes while the watcher looks."""

    looks = 0

    @property
    def sent_at(self) -> float:
        self.looks += 1
        return monotonic() if self.looks == 1 else 0.0

    @sent_at.setter
    def sent_at(self, value: float) -> None:
        pass


def test_only_a_late_answer_ends_the_stream() -> None:
    closed: list[str] = []
    late, answered = Link(iter(()), lambda: closed.append("late")), Answered(iter(()), lambda: closed.append("answered"))
    for link in (late, answered):
        transport._watched.add(link)
    late.sent_at = monotonic() - 61
    transport._close_late()
    assert (closed, late.ended, answered.ended) == (["late"], "no answer for 60 s", "")
    transport._watched.discard(late)
    transport._watched.discard(answered)
