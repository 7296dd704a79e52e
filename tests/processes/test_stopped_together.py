"""Ctrl-Z in a terminal stops the command, and with it the processes that have sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.experiments.places import start_run

COMMAND = """
import subprocess, sys
from headrace.processes.interrupt import stops_with_this
started = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
stops_with_this(started)
print(started.pid, flush=True)
sys.exit(started.wait())
"""


def wait_for_states(processes: list[psutil.Process], stopped: bool) -> None:
    deadline = time.monotonic() + 20
    while [one.status() == psutil.STATUS_STOPPED for one in processes] != [stopped] * len(processes):
        assert time.monotonic() < deadline, [one.status() for one in processes]
        time.sleep(0.01)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_z_stops_what_a_command_has_started_and_fg_continues_it(times: int) -> None:
    # A group of its own, as a shell gives every command.
    with subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True, process_group=0) as command:
        assert command.stdout is not None
        started = psutil.Process(int(command.stdout.readline()))
        while not (children := started.children()):
            time.sleep(0.01)
        everything = [psutil.Process(command.pid), started, *children]
        for _ in range(times):
            command.send_signal(signal.SIGTSTP)
            wait_for_states(everything, stopped=True)
            command.send_signal(signal.SIGCONT)
            wait_for_states(everything, stopped=False)
        os.killpg(started.pid, signal.SIGKILL)
    assert command.returncode == 256 - signal.SIGKILL  # it went on behind the line where it was stopped


def test_a_run_of_an_experiment_stops_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr("headrace.experiments.places.stops_with_this", noted.append)
    with start_run(["--help"], tmp_path) as run:
        assert noted == [run]


def test_ctrl_z_without_a_shell_stops_nothing() -> None:
    """As in `ssh -t host headrace compare ...`: nobody could continue it."""
    with subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True, start_new_session=True) as command:
        assert command.stdout is not None
        started = psutil.Process(int(command.stdout.readline()))
        command.send_signal(signal.SIGTSTP)
        time.sleep(0.5)
        wait_for_states([psutil.Process(command.pid), started], stopped=False)
        os.killpg(started.pid, signal.SIGKILL)
