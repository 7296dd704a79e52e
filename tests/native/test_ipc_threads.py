"""The queue, the buffer and the slot credits under the thread sanitizer, as a C++ program without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]


def run_stress(include: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "stress"
    source = ROOT / "tests" / "native" / "ipc_stress.cpp"
    # -Wno-tsan: the sanitizer does not model fences; what the buffer orders by them it copies atomically there.
    options = ["-std=c++20", "-O2", "-g", "-fsanitize=thread", "-Wno-tsan", "-pthread", f"-I{include}"]
    subprocess.run(["g++", *options, str(source), "-o", str(program)], check=True)
    return subprocess.run([program], capture_output=True, text=True, timeout=240)


def test_no_race(tmp_path):
    result = run_stress(ROOT / "native", tmp_path)
    assert result.stdout == "ok\n", result.stderr[-4000:]
    assert result.returncode == 0


def test_a_race_would_be_found(tmp_path):
    shutil.copytree(ROOT / "native" / "ipc", tmp_path / "ipc")
    queue = tmp_path / "ipc" / "queue.h"
    ordered = "cell.compare_exchange_strong(seen, pack(empty + 1, values[done]))"
    relaxed = ordered[:-1] + ", std::memory_order_relaxed)"
    text = queue.read_text()
    assert ordered in text
    queue.write_text(text.replace(ordered, relaxed))
    result = run_stress(tmp_path, tmp_path)
    assert "data race" in result.stderr
