"""Matches of VizDoom (`vizdoom_match_cases.py`), in a process of their own: where starting a game fails, the library aborts the
process that it is used in."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

CASES = Path(__file__).parents[1] / "vizdoom_match_cases.py"


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_cases(which: str) -> None:
    pytest.importorskip("vizdoom")
    command = [sys.executable, "-m", "pytest", "-q", "-m", which, str(CASES)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, cwd=CASES.parents[2], timeout=900)
        if done.returncode >= 0:  # a signal is the library's crash, which training survives by replacing the worker
            break
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
