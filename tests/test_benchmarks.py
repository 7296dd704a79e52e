"""What the benchmarks share: how a contender is run, how results are written, and that a benchmark runs at all."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("training_contest")


def test_a_contender_leaves_nothing_in_the_working_directory(
    contest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import time; open('left behind', 'w')\nfor n in range(1, 999): print(10 * n, flush=True); time.sleep(0.02)"

    def trains(env: str, folder: Path) -> contest.Command:
        return [sys.executable, "-c", code], lambda printed: [int(number) for number in printed.split()]

    assert contest.measure(trains, "any", 10, 0.2) > 0
    assert not list(tmp_path.iterdir())


def test_the_contenders_interpreter_is_found_from_anywhere(
    contest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    parser = contest.arguments("", [], "any.json")
    assert parser.parse_args(["venv/bin/python"]).python == str(python)
    with pytest.raises(argparse.ArgumentTypeError, match="no/such is no program"):
        contest.interpreter("no/such")
