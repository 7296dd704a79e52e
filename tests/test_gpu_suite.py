"""The measurements of a GPU run on the CPU too, so that they are not broken when a GPU is at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SUITE = Path(__file__).parents[1] / "benchmarks" / "gpu_suite.py"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SUITE.parent))
    import gpu_suite

    return gpu_suite


def test_a_table_of_transfers_and_of_a_part_that_failed(suite: ModuleType) -> None:
    rows = suite.transfers("cpu", suite.TINY)
    assert all(row["GB/s"] > 0 for row in rows)
    assert "| to device, page-locked | 1 MiB |" in suite.table("transfers", {"rows": rows, "seconds": 1.0})
    failed = suite.measured_apart("no such part", ["--device", "cpu", "--tiny"], limit=120)
    assert "KeyError: 'no such part'" in failed["error"]
    assert "FAILED after" in suite.table("no such part", failed)
    slow = suite.measured_apart("transfers", ["--device", "cpu", "--tiny"], limit=0.1)
    assert slow["error"].startswith("took longer than")


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = subprocess.run([sys.executable, SUITE, "--device", "cpu", "--tiny", "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(out.read_text())["parts"]
    assert list(parts) == ["transfers", "acting", "learning", "training"]
    assert all(part["rows"] for part in parts.values())
