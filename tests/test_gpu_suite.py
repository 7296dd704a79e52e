"""The measurements of a GPU run on the CPU too, so that they are not broken when a GPU is at hand."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from types import ModuleType
from typing import Any

import pytest

from headrace_atari import kernels as atari_kernels
from headrace_atari.device import DeviceVector

pytestmark = pytest.mark.process

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


def test_a_part_that_takes_too_long_leaves_its_rows_and_no_process(
    suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "part.py"
    script.write_text(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print('said by a library')\n"
        """print('row: {"what": "one", "child": %d}' % child.pid, flush=True)\n"""
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(suite, "__file__", str(script))
    late = suite.measured_apart("any", [], limit=1.5)
    assert late["error"].startswith("took longer than")
    (row,) = late["rows"]
    assert row["what"] == "one"
    text = suite.table("any", late)
    assert "| one |" in text
    assert "FAILED after" in text

    def lives() -> bool:
        with suppress(OSError):
            return "zombie" not in Path(f"/proc/{row['child']}/status").read_text()
        return False

    ends = perf_counter() + 10
    while lives() and perf_counter() < ends:
        sleep(0.05)
    assert not lives()


def test_what_there_is_no_time_for_is_not_begun(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {}

    def measured(name: str, arguments: list[str], limit: float) -> dict[str, Any]:
        limits[name] = limit
        return {"rows": [{"what": name}], "seconds": 0.0}

    monkeypatch.setattr(suite, "measured_apart", measured)
    names = ["transfers", "atari compilation", "atari throughput", "training"]
    results = dict(suite.measure_all(names, [], suite.FULL, perf_counter() + 100))
    assert list(results) == names
    assert all("error" not in result for result in results.values())
    assert 99 < limits["transfers"] <= 100  # no part goes on when the minutes are over
    results = dict(suite.measure_all(names, [], suite.FULL, perf_counter() + 10))
    assert all(result["error"] == "not begun: the time was over" for result in results.values())
    sizes = suite.FULL
    shares = sum(suite.gpu_atari.SHARES.values())
    assert shares == pytest.approx(1)
    assert 60 * 7.8 - sizes.atari - sizes.compilation > 0


# --- consoles: the kernels on the CPU ---


@pytest.fixture
def atari(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    from host_kernels import HostKernels

    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: HostKernels())
    return suite.gpu_atari


def test_a_game_that_differs_is_named(atari: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(atari.exactness(0.0, ["pong", "breakout"], each=2, least=8))
    assert [row["autoreset"] for row in rows] == ["NextStep", "SameStep"]
    assert all(row["games that differ"] == "none" and row["steps of each"] == 8 and row["consoles"] == 4 for row in rows)
    recv, calls = DeviceVector.recv, []

    def wrong(self: DeviceVector) -> tuple[Any, ...]:
        results = recv(self)
        calls.append(1)
        if len(calls) == 4:  # the third step
            results[0][3, -1] ^= 1  # one pixel of the second console of Breakout
        return results

    monkeypatch.setattr(DeviceVector, "recv", wrong)
    rows = list(atari.exactness(0.0, ["pong", "breakout"], each=2, least=8))
    assert [row["games that differ"] for row in rows] == ["breakout at step 3", "none"]


def test_frames_of_consoles_are_counted(atari: ModuleType) -> None:
    row = atari.throughput("pong", 3, 0.0, "interpreter")
    kinds = ("emulation", "with observations", "with inference", "with training")
    assert all(row[kind] > 0 for kind in kinds)
    assert atari.throughput("pong", 2, 0.0, "interpreter", decorrelated=False, learns=False)["with training"] == ""
    assert [row["game"] for row in atari.throughputs(-1.0)] == [f"{len(atari.cases())} cases not measured: the time was over"]


def test_a_measurement_frees_its_consoles(atari: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """65,536 of them are 9 GB: a few batches that wait for the garbage collector would fill a GPU."""
    made: list[Any] = []
    init = DeviceVector.__init__
    monkeypatch.setattr(DeviceVector, "__init__", lambda self, *args: (made.append(weakref.ref(self)), init(self, *args))[1])
    gc.collect()
    gc.disable()
    try:
        atari.throughput("pong", 2, 0.0, "interpreter")
        assert [vector() for vector in made] == [None]
    finally:
        gc.enable()


def test_every_game_is_measured_at_every_number_of_consoles(atari: ModuleType) -> None:
    cases = atari.cases()
    assert [case["name"] for case in cases[:6]] == atari.GAMES  # the median and the least are of these
    found = {(str(case["name"]), case["count"], case.get("decorrelated", True)) for case in cases if "emulator" not in case}
    assert found == {(name, count, way) for name in atari.GAMES for count in atari.COUNTS for way in (True, False)}
    assert [case["count"] for case in cases if case["name"] == atari.ATARI57] == [57 * 288]
    assert len(set(atari.ATARI57)) == 57


@pytest.mark.slow
def test_the_time_to_a_goal_is_taken(atari: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"sampling.envs_per_worker": 8, "sampling.rollout": 8, "learning.batch_size": 64, "learning.num_minibatches": 1}
    monkeypatch.setattr(atari, "PONG", atari.PONG | small)
    (row,) = atari.time_to_pong(25.0, "cpu")
    assert row["seconds"] == "not reached"
    assert row["steps/s"] > 0


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = subprocess.run([sys.executable, SUITE, "--device", "cpu", "--tiny", "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(out.read_text())["parts"]
    assert list(parts) == ["transfers", "acting", "learning", "training", "training of tensors"]
    assert all(part["rows"] for part in parts.values())
