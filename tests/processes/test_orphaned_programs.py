"""Programs that a child process has started are found and ended when it is dead, also when they have hidden from it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.processes.orphaned_programs import end_programs, origin
from headrace.processes.start import start_child
from headrace.processes.started_here import StartedHere

pytestmark = pytest.mark.process

STARTERS = """
import os, subprocess, sys, time

SLEEP = ["sleep", "600"]

def plain():
    return [subprocess.Popen(SLEEP).pid]

def session():
    return [subprocess.Popen(SLEEP, start_new_session=True).pid]

def daemon():
    "As a launcher does that ends while its game goes on."
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    return [int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)]

def nest():
    "A program that starts another."
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    return [shell.pid, int(shell.stdout.readline())]

def child(how, connection):
    connection.send(globals()[how]())
    time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, list[int], Callable[[], None]]]:
    (tmp_path / "starters.py").write_text(STARTERS)
    monkeypatch.syspath_prepend(tmp_path)
    import starters  # type: ignore[import-not-found]

    def started(how: str) -> tuple[int, list[int], Callable[[], None]]:
        here, there = multiprocessing.Pipe()
        process = start_child(starters.child, (how, there), how)
        assert here.poll(120)

        def kill() -> None:
            process.kill()
            process.join()

        assert process.pid is not None
        return process.pid, here.recv(), kill

    yield started
    sys.modules.pop("starters")


@pytest.mark.parametrize("how", ["plain", "session", "daemon", "nest"])
def test_programs_of_a_child_that_was_killed_are_ended(start, how) -> None:
    pid, programs, kill = start(how)
    other_pid, others, kill_other = start("plain")
    kill()
    assert all(map(alive, programs)), "they outlive it, or there is nothing to test"
    assert end_programs(origin(), {pid}) == len(programs)
    gone(programs)
    assert all(map(alive, others)), "those of a child that lives go on"
    kill_other()
    assert end_programs(origin(), {other_pid}) == 1
    gone(others)


def test_programs_of_nobody_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as program:
        assert end_programs(origin(), {os.getpid(), 1}) == 0
        assert program.poll() is None
        program.kill()


PROGRAM = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
import starters
from headrace.processes.start import start_child

here, there = multiprocessing.Pipe()
process = start_child(starters.child_of_a_run, ("daemon", there), "child")
print(here.recv()[0], flush=True)
sys.stdin.read()
process.kill()
process.join()
"""


@pytest.mark.parametrize("end", ["killed", "ends"])
def test_programs_end_when_the_whole_run_does(tmp_path: Path, end: str) -> None:
    """Nobody is there any more to end them but the fork server."""
    more = "\ndef child_of_a_run(how, connection):\n    from headrace.processes.start import die_with_parent\n"
    (tmp_path / "starters.py").write_text(STARTERS + more + "    die_with_parent()\n    child(how, connection)\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        program = int(run.stdout.readline())
        assert alive(program)
        run.send_signal(signal.SIGKILL) if end == "killed" else run.communicate("", timeout=60)
    gone([program])


FORKS = """
import os, sys, time
from multiprocessing import resource_tracker
from headrace.processes.started_here import StartedHere

def fork():
    here, there = os.pipe()
    if os.fork() == 0:
        os.fork()
        os.write(there, b"%d " % os.getpid())
        time.sleep(600)
    pids = b""
    while pids.count(b" ") < 2:
        pids += os.read(here, 100)
    return pids.decode()

started, others = StartedHere(), fork()
with started.noted():
    theirs = fork()
    resource_tracker.ensure_running()
print(theirs, others, resource_tracker._resource_tracker._pid, flush=True)
started.end()
print("ended", flush=True)
sys.stdin.read()
os.killpg(0, 9)
"""


def test_what_environments_fork_in_this_process_ends_with_the_run_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    command = [sys.executable, str(tmp_path / "forks.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        assert program.stdout is not None
        *pids, tracker = map(int, program.stdout.readline().split())
        assert program.stdout.readline() == "ended\n"
        gone(pids[:2])
        assert all(map(alive, [*pids[2:], tracker])), "those of the user's program, and multiprocessing's own"
        program.communicate("", timeout=60)


@pytest.mark.parametrize("how", ["plain", "session", "nest"])
def test_what_environments_start_in_this_process_ends_with_the_run_and_nothing_else_does(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starters.py").write_text(STARTERS)
    monkeypatch.syspath_prepend(tmp_path)
    import starters  # type: ignore[import-not-found]

    started, before = StartedHere(), dict(os.environ)
    with started.noted():
        theirs = getattr(starters, how)()
    assert dict(os.environ) == before
    sys.modules.pop("starters")
    with subprocess.Popen(["sleep", "600"]) as other:
        assert all(map(alive, theirs))
        started.end()
        gone(theirs)
        assert other.poll() is None
        other.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while left := list(filter(alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.01)
