"""Matches of VizDoom (`vizdoom_match_cases.py`), in a process of their own: where its library crashes, that process ends."""

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
    done = subprocess.run(command, capture_output=True, text=True, cwd=CASES.parents[2], timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
