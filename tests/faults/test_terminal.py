"""The terminal of a run goes away, or somebody sends SIGHUP: a clean stop with a checkpoint, as with Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import MARK, Run
from test_kills import counting_run

pytestmark = pytest.mark.process

SLOW = {"marks": pytest.mark.slow}


def only_at_the_end(folder: Path) -> Run:
    """A run that writes no checkpoint before it is stopped."""
    return counting_run(folder, **{"run.checkpoint_interval": 1000})


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["every process", "the run"])
def test_sighup_ends_with_a_checkpoint(tmp_path, whom):
    with only_at_the_end(tmp_path / "run") as run:
        run.wait_for("the first steps", run.step)
        assert run.process is not None
        (os.killpg if whom == "every process" else os.kill)(run.process.pid, signal.SIGHUP)
        assert run.end() == 130, run.story
        assert len(run.checkpoints()) == 1
        run.assert_nothing_left()


class Terminal:
    """A terminal with a program in it, which is its session's leader."""

    def __init__(self, program: list[str], environ: dict[str, str]) -> None:
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.execvpe(program[0], program, environ)

    def type(self, text: str) -> None:
        """As from the keyboard."""
        os.write(self._screen, text.encode())

    def read(self) -> None:
        """Take what is on the screen, or the programs would wait to write more."""
        while select.select([self._screen], [], [], 0)[0]:
            os.read(self._screen, 1 << 16)

    def close(self) -> None:
        """The window is closed, or the connection breaks: nothing can be written any more, and the kernel sends SIGHUP."""
        os.close(self._screen)


@pytest.mark.parametrize("started", ["by itself", pytest.param("in foreground", **SLOW), pytest.param("in background", **SLOW)])
def test_a_closed_terminal_ends_the_run_with_a_checkpoint(tmp_path, started):
    """`by itself`: the terminal's only program, as in `ssh -t host headrace train`; else by an interactive shell."""
    run = only_at_the_end(tmp_path / "run")
    run.command.remove("--run.no-dashboard")
    environ = {**run.environ, "TERM": "xterm"}
    if started == "by itself":
        terminal = Terminal(run.command, environ)
    else:
        # Without the mark in its environment, the harness does not take the shell for a part of the run.
        terminal = Terminal(["bash", "--norc", "-i"], {name: value for name, value in environ.items() if name != MARK})
        terminal.type(f"{MARK}={run.mark} {shlex.join(run.command)} {'&' if started == 'in background' else ''}\n")
    try:
        deadline = time.monotonic() + 200
        while not run.step():
            assert time.monotonic() < deadline
            terminal.read()
            time.sleep(0.1)
        terminal.close()
        os.waitpid(terminal.pid, 0)
        while run.pids() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(run.checkpoints()) == 1
        log = (run.folder / "log.txt").read_text()
        assert "Stopping: one more checkpoint" in log
        assert "Traceback" not in log
        run.assert_nothing_left()
    finally:
        for pid in run.pids():
            os.kill(pid, signal.SIGKILL)


def test_a_run_of_nohup_outlives_its_terminal_and_can_be_stopped(tmp_path):
    """With SIGTERM, since it ignores SIGHUP; and `headrace stop` says what it waits for."""
    run = only_at_the_end(tmp_path / "run")
    run.command.insert(0, "nohup")
    with run:
        step = run.wait_for("the first steps", run.step)
        os.kill(run.process.pid, signal.SIGHUP)
        run.wait_for("more steps", lambda: run.step() > step)
        os.kill(run.process.pid, signal.SIGSTOP)
        command = [*run.command[1:4], "stop", str(run.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stop:
            assert "is stopped" in stop.stdout.readline()
            os.kill(run.process.pid, signal.SIGCONT)
            assert "has ended" in stop.communicate(timeout=100)[0]
        assert run.end() == 130, run.story
        assert len(run.checkpoints()) == 1
        run.assert_nothing_left()


def test_output_that_cannot_be_written_harms_nobody(tmp_path):
    """A reader that goes away (`headrace train | head -3`) is no reason to stop training."""
    run = only_at_the_end(tmp_path / "run")
    read, write = os.pipe()
    run.process = subprocess.Popen(run.command, stdin=subprocess.DEVNULL, stdout=write, stderr=write, env=run.environ)
    os.close(write)
    os.read(read, 10)
    os.close(read)
    try:
        step = run.wait_for("the first steps", run.step)
        run.wait_for("more steps", lambda: run.step() > step + 1000)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130
        assert len(run.checkpoints()) == 1
        run.assert_nothing_left()
    finally:
        run.process.kill()
