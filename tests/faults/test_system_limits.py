"""Limits of the system: no room for the last checkpoint, a folder that is deleted, too few files or too little memory, a daemonic
process."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import Commands, Ended
from test_kills import counting_run, goes_on

pytestmark = pytest.mark.process

TINY = ["--env", "gym/CartPole-v1", "--batch-size", "512", "--no-video", "--num-threads", "1", "--no-dashboard"]
SERIAL = [*TINY, "--placement", "serial"]


@pytest.fixture(scope="module")
def commands():
    with Commands() as found:
        yield found


def one_paragraph(ended: Ended, *words: str) -> None:
    """It ended with an error that is explained."""
    assert ended.problem == "", ended.output
    assert ended.code in (1, 2), ended.output
    assert 0 < len(ended.message) < 1500, ended.output
    for word in words:
        assert word in ended.message


# -- a daemonic process ------------------------------------------------------------------------------------------------


def _train(folder: str, placement: str, answer: multiprocessing.connection.Connection) -> None:
    import headrace

    settings = {"sampling.placement": placement, "learning.total_steps": 600, "run.folder": folder, "run.video": False}
    settings["learning.num_threads"] = 1
    try:
        answer.send(headrace.train(headrace.make_config("gym/CartPole-v1", **settings)).reason)
    except headrace.ConfigError as error:
        answer.send(str(error))


@pytest.mark.parametrize(("placement", "said"), [("served", "start it with daemon=False"), ("serial", "total_steps")])
def test_in_a_daemonic_process(tmp_path, placement, said):
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_train, args=(str(tmp_path), placement, there), daemon=True)
    process.start()
    assert here.poll(200)
    assert said in here.recv()
    process.join()


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """A small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "headrace-test", folder], check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a fork server may end a moment after its run


def fill(folder: Path) -> Path:
    """Use up the file system's room."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    return ballast


def test_no_room_for_the_last_checkpoint(disk):
    # The disk is the run folder, not the folder around it: what the run prints is written beside it, and must find room.
    with counting_run(disk, **{"run.checkpoint_interval": 1000, "run.log_interval": 0.1}) as run:
        run.wait_for("the first steps", run.step)
        assert run.process is not None
        ballast = fill(disk)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 1, run.story
        assert "cannot write a checkpoint" in run.story
        assert "No space left on device" in run.story
        assert "Traceback" not in run.story
        ballast.unlink()
        run.assert_nothing_left()


def test_no_room_for_the_last_checkpoint_in_one_process(disk, commands):
    fill(disk)
    (disk / "ballast").open("ab").truncate((disk / "ballast").stat().st_size - 60_000)  # for config.json and the log
    ended = commands.run(["train", *SERIAL, "--total-steps", "600", "--run.folder", str(disk / "run")], disk)
    one_paragraph(ended, "cannot write a checkpoint", "No space left on device")


@pytest.mark.slow
def test_a_folder_that_is_deleted_is_made_again_for_the_last_checkpoint(tmp_path):
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 1000}) as run:
        step = run.wait_for("the first steps", run.step)
        shutil.rmtree(run.folder)
        assert run.end() == 2, run.story
        assert "was deleted or moved while its run was going on" in run.story
        assert "Traceback" not in run.story
        assert len(run.checkpoints()) == 1
        run.assert_nothing_left()
        run.start()
        run.wait_for("the return", lambda: "Going on from" in run.output)
        goes_on(run)
        assert run.step() > step
        assert run.process is not None
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def exchange(one: Path, other: Path) -> None:
    """Let two folders have each other's name at once: a run must not find that its own is missing, and make it again."""
    here, and_there = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if ctypes.CDLL(None, use_errno=True).renameat2(here, bytes(one), here, bytes(other), and_there):
        pytest.skip(f"this file system cannot: {os.strerror(ctypes.get_errno())}")


def test_a_folder_that_now_is_another_runs_is_left_alone(tmp_path):
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 1000}) as run:
        run.wait_for("the first steps", run.step)
        shutil.copytree(run.folder, tmp_path / "copy")
        exchange(run.folder, tmp_path / "copy")
        assert run.end() == 2, run.story
        assert "another run has begun in" in run.story
        assert not run.checkpoints()
        run.assert_nothing_left()


# -- Ctrl-C within an update -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", "served"])
def test_ctrl_c_within_an_endless_update(tmp_path, commands, placement):
    long_update = ["--learning.num-epochs", "1000", "--policy.mlp", "2048", "2048", "--run.folder", "run"]
    began = time.monotonic()
    ended = commands.run(["train", *TINY, "--placement", placement, *long_update], tmp_path, deadline=90, interrupt=20)
    assert ended.code == 130, ended.output
    assert time.monotonic() - began < 20 + 25
    assert ended.problem == ""
    assert "Checkpoint 000001" in ended.output


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["serial", pytest.param("served", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("limit", "value", "word"),
    [
        pytest.param("NOFILE", 12, "ulimit -n", marks=pytest.mark.slow), ("NOFILE", 30, "ulimit -n"),
        ("FSIZE", 3000, "ulimit -f"), pytest.param("FSIZE", 50_000, "ulimit -f", marks=pytest.mark.slow),
    ],
)
def test_limits_of_the_system(tmp_path, commands, placement, limit, value, word):
    command = ["train", *TINY, "--placement", placement, "--total-steps", "600", "--run.folder", "run"]
    ended = commands.run(command, tmp_path, limits={limit: value})
    if ended.code != 0:
        one_paragraph(ended, word)


@pytest.mark.slow
def test_too_little_address_space(tmp_path, commands):
    """`ulimit -v`: what this process has now, and little more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for more in (1 << 20, 64 << 20, 512 << 20):
        command = ["train", *SERIAL, "--total-steps", "600", "--run.folder", f"run-{more}", "--sampling.envs-per-worker", "1024"]
        ended = commands.run([*command, "--batch-size", "32768"], tmp_path, limits={"AS": used + more})
        assert ended.problem == "", ended.output
        if ended.code != 0:
            one_paragraph(ended)
