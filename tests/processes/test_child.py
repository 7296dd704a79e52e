"""How the end of a child process is told."""

from __future__ import annotations

import signal

import pytest

from headrace.processes.child import how_it_ended


@pytest.mark.parametrize(("code", "words"), [
    (0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-signal.SIGRTMIN, "killed by SIGRTMIN"),
    (-(signal.SIGRTMIN + 6), f"killed by signal {signal.SIGRTMIN + 6}"),
])  # fmt: skip
def test_every_end_has_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words
