"""Writers never wait for a terminal that was stopped, nor for who reads a pipe."""

from __future__ import annotations

import os
import pty
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.processes.output import BackgroundOutput, never_waiting

pytestmark = pytest.mark.process


@pytest.fixture
def pipe() -> Iterator[tuple[int, BackgroundOutput]]:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        yield reader, BackgroundOutput(stream, limit=100_000)
        os.close(reader)


def test_all_is_written_in_order(pipe: tuple[int, BackgroundOutput]) -> None:
    reader, output = pipe
    for i in range(100):
        print(f"line {i}: ü", file=output)
    assert output.drain(30)
    assert os.read(reader, 1 << 20).decode() == "".join(f"line {i}: ü\n" for i in range(100))


def test_its_thread_ends_when_there_is_nothing_to_write(
    pipe: tuple[int, BackgroundOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each training of a program would leave one."""
    monkeypatch.setattr("headrace.processes.output.IDLE", 0.1)
    reader, output = pipe
    for text in ("once", "again"):
        output.write(text)
        assert output.drain(30)
        assert os.read(reader, 100).decode() == text
        if (thread := output._thread) is not None:
            thread.join(30)
        assert output._thread is None


def test_nobody_waits_for_a_pipe_that_is_not_read(pipe: tuple[int, BackgroundOutput]) -> None:
    reader, output = pipe
    began = time.monotonic()
    for _ in range(10_000):
        output.write("x" * 99 + "\n")  # a megabyte; the pipe takes 64 KiB
    assert not output.drain(0.1)
    assert time.monotonic() - began < 60
    text = ""
    while "nobody read them)" not in text:
        text += os.read(reader, 1 << 20).decode()
    assert 100_000 < len(text) < 300_000
    assert "more texts are left out here: nobody read them)" in text
    assert output.drain(30)
    output.write("and on")
    assert output.drain(30)
    assert os.read(reader, 1 << 20).decode().endswith("and on")


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        os.close(reader)
        output = BackgroundOutput(stream)
        for _ in range(100):
            output.write("x" * 10_000)
            assert output.drain(30)


def test_nobody_waits_for_a_stopped_terminal() -> None:
    terminal, there = pty.openpty()
    tty.setraw(there)
    with open(there, "w") as stream:
        output = never_waiting(stream)
        assert isinstance(output, BackgroundOutput)
        assert output.isatty()
        output.write("before ")
        assert output.drain(30)
        termios.tcflow(there, termios.TCOOFF)  # Ctrl-S
        output.write("after")
        assert not output.drain(0.2)
        assert os.read(terminal, 100) == b"before "
        termios.tcflow(there, termios.TCOON)
        assert output.drain(30)
        assert os.read(terminal, 100) == b"after"
    os.close(terminal)


def test_files_and_streams_without_a_descriptor_are_written_to_directly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert never_waiting(sys.stdout) is sys.stdout
    with open(tmp_path / "file", "w") as file:
        assert never_waiting(file) is file
