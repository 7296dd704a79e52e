"""Reports of children: whole or not at all, and never waited for."""

from __future__ import annotations

import math
import os
import threading
from typing import Any

import numpy as np
import pytest

from headrace.processes import reports
from headrace.processes.reports import ReportReader, ReportWriter, report_pipe

pytestmark = pytest.mark.process


@pytest.fixture
def pipe() -> tuple[ReportReader, ReportWriter]:
    return report_pipe()


def test_reports_arrive_in_order(pipe: tuple[ReportReader, ReportWriter]) -> None:
    here, there = pipe
    assert here.read() == []
    for number in range(5):
        there.send({"number": number})
    assert [report["number"] for report in here.read()] == [0, 1, 2, 3, 4]
    assert here.read() == []
    assert not here.ended
    there.close()
    assert here.read() == []
    assert here.ended
    assert here.read() == []


def test_a_report_arrives_when_it_is_whole(pipe: tuple[ReportReader, ReportWriter]) -> None:
    """Byte by byte."""
    here, there = pipe
    there.send("one")
    there.send("two")
    raw = os.read(here.fileno(), 1000)
    got: list[Any] = []
    for n in range(len(raw)):
        os.write(there._pipe.fileno(), raw[n : n + 1])
        got += here.read()
        assert len(got) == (n + 1 >= len(raw) // 2) + (n + 1 == len(raw))
    assert got == ["one", "two"]


def test_half_a_report_of_the_dead_is_none(pipe: tuple[ReportReader, ReportWriter]) -> None:
    here, there = pipe
    there.send("whole")
    os.write(there._pipe.fileno(), b'["half')
    there.close()
    assert here.read() == ["whole"]
    assert here.ended


@pytest.mark.parametrize("nbytes", [1 << 17, 1 << 22])
def test_reports_longer_than_the_pipe_and_than_one_look(pipe: tuple[ReportReader, ReportWriter], nbytes: int) -> None:
    here, there = pipe
    thread = threading.Thread(target=lambda: [there.send("x" * nbytes), there.send("end")])
    thread.start()
    got: list[Any] = []
    while not got or got[-1] != "end":
        got += here.read()
    thread.join()
    assert [len(report) for report in got] == [nbytes, 3]


def test_threads_of_a_child_do_not_mix_their_reports(pipe: tuple[ReportReader, ReportWriter]) -> None:
    here, there = pipe
    threads = [threading.Thread(target=lambda c=c: [there.send(c * 100_000) for _ in range(20)]) for c in "abc"]
    for thread in threads:
        thread.start()
    got: list[str] = []
    while len(got) < 60:
        got += here.read()
    assert {len(set(report)) for report in got} == {1}
    assert {len(report) for report in got} == {100_000}


@pytest.mark.parametrize("data", [b"no JSON\n", b"\xff" * 16 + b"\n", b"x" * 1001])
def test_what_is_no_report_is_refused_once(
    pipe: tuple[ReportReader, ReportWriter], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_BYTES", 1000)
    here, there = pipe
    os.write(there._pipe.fileno(), data)
    with pytest.raises(ValueError, match="cannot be read"):
        here.read()
    assert here.ended
    there.send("later")
    assert here.read() == []


def test_a_child_whose_supervisor_is_gone_is_told(pipe: tuple[ReportReader, ReportWriter]) -> None:
    here, there = pipe
    here.close()
    with pytest.raises(OSError, match="Broken pipe"):
        there.send("anybody")


def test_numbers_of_numpy_and_tuples_become_plain_ones(pipe: tuple[ReportReader, ReportWriter]) -> None:
    here, there = pipe
    there.send(("metrics", {"loss": np.float32(0.5), "nan": np.nan, "all": np.arange(3), "none": None, "ü": "\udcff\n"}))
    ((kind, metrics),) = here.read()
    assert kind == "metrics"
    assert math.isnan(metrics.pop("nan"))
    assert metrics == {"loss": 0.5, "all": [0, 1, 2], "none": None, "ü": "\udcff\n"}
    with pytest.raises(TypeError, match="cannot report a object"):
        there.send(object())
