"""The run folder: one owner at a time, settings compared, facts recorded without secrets."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from headrace import config as config_module
from headrace.config import Config, ConfigError
from headrace.runs import folder as folder_module
from headrace.runs.folder import FolderInUse, FolderUnusable, RunFolder, compare
from headrace.runs.report import Reporter


def settings(path, **changes):
    return config_module.override(Config(), **{"run.folder": str(path), **changes})


def test_a_second_run_in_the_folder_is_refused_with_the_pid(tmp_path):
    hold = "import sys, time; from headrace.runs.folder import RunFolder; f = RunFolder(sys.argv[1]); print(1, flush=True); "
    process = subprocess.Popen([sys.executable, "-c", hold + "time.sleep(60)", str(tmp_path)], stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        with pytest.raises(FolderInUse, match=f"process {process.pid}"):
            RunFolder(tmp_path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    RunFolder(tmp_path).close()  # the lock went with the killed process


def test_lock_is_released_on_close_and_within_one_process_too(tmp_path):
    with RunFolder(tmp_path), pytest.raises(FolderInUse):
        RunFolder(tmp_path)
    RunFolder(tmp_path).close()


def test_a_full_disk_is_reported_with_the_space_that_is_left(tmp_path):
    """In a process that may write no file at all: the kernel refuses as on a full device."""
    code = (
        "import resource, sys; from headrace.runs.folder import FolderUnusable, RunFolder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "try: RunFolder(sys.argv[1])\n"
        "except FolderUnusable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], capture_output=True, text=True, check=True)
    assert f"the run folder {tmp_path / 'r'} cannot be used: File too large" in done.stdout
    assert "MB free there" in done.stdout


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(FolderUnusable, match="cannot be used: File name too long"):
        RunFolder(tmp_path / ("x" * 300))


def test_new_run_then_resume(tmp_path):
    folder, changes = RunFolder.open(settings(tmp_path))
    assert changes == []
    folder.log("one\ntwo")
    folder.close()
    assert [line.split("  ")[1] for line in (folder.path / "log.txt").read_text().splitlines()] == ["one", "two"]

    folder, changes = RunFolder.open(settings(tmp_path, **{"learning.total_steps": 5_000_000}))
    folder.close()
    beginning = f"{tmp_path} holds a run without a checkpoint: training starts from the beginning"
    assert changes == ["learning.total_steps: 10000000 -> 5000000", beginning]
    assert config_module.load(folder.config_path).learning.total_steps == 5_000_000
    assert len(json.loads((tmp_path / "system.json").read_text())) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("env", "atari/breakout"), ("policy.core", "gru"), ("envs.frame_stack", 2), ("learning.algorithm", "ppo")]
)
def test_what_the_weights_depend_on_cannot_change(tmp_path, name, value):
    RunFolder.open(settings(tmp_path))[0].close()
    (tmp_path / "checkpoints" / "000001-step-1").mkdir(parents=True)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError, match=rf"cannot be resumed.*\n.*{name}: .* -> {value} \("):
        RunFolder.open(settings(tmp_path, **{name: value}))
    assert (tmp_path / "config.json").read_text() == before
    RunFolder(tmp_path).close()  # refused, and not left locked


def test_must_be_new_refuses_a_run_that_is_there(tmp_path):
    new = settings(tmp_path, **{"run.must_be_new": True})
    RunFolder.open(new)[0].close()
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.open(new)


def test_compare_sees_every_field():
    changed = Config(seed=3, envs=dataclasses.replace(Config().envs, kwargs={"a": 1}))
    assert compare(Config(), changed, None) == ["envs.kwargs: {} -> None", "envs.kwargs.a: None -> 1", "seed: 0 -> 3"]


def test_a_git_that_may_not_be_executed_is_none(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert folder_module.system_facts()["git"] is None


def test_system_facts_hold_no_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "s3cr3t-value")
    RunFolder.open(settings(tmp_path))[0].close()
    text = (tmp_path / "system.json").read_text()
    assert "s3cr3t-value" not in text
    facts = json.loads(text)[0]
    assert facts["packages"]["torch"]
    assert facts["cores"] == len(os.sched_getaffinity(0))


def test_a_folder_that_was_deleted_and_cannot_be_made_again_ends_with_that_error(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder = RunFolder(tmp_path / "r")
    shutil.rmtree(tmp_path / "r")
    monkeypatch.setattr(folder_module, "_lock", refuse)
    with pytest.raises(FolderUnusable, match="Permission denied"):
        folder.check()
    folder.close()


def test_a_lock_that_an_environment_has_closed_is_taken_again(tmp_path):
    folder = RunFolder(tmp_path)
    number = folder._lock
    os.close(number)
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    assert other == number, "the test shows nothing"
    with pytest.warns(UserWarning, match="has closed files of this process"):
        folder.check()
    with pytest.raises(FolderInUse):
        RunFolder(tmp_path)
    folder.check()
    os.close(folder._lock)
    folder.close()
    os.fstat(other)  # raises if it was closed
    os.close(other)
    RunFolder(tmp_path).close()


@pytest.mark.parametrize("failed", [False, True])
def test_a_last_line_that_cannot_be_written_is_told_and_hides_no_other_error(tmp_path, failed):
    class Records:
        def close(self):
            raise OSError(errno.ENOSPC, "No space left", str(tmp_path))

    folder, _ = RunFolder.open(config := settings(tmp_path / "r", **{"run.dashboard": False}))
    reporter = Reporter(config, 1, folder, Records())

    def report():
        with folder, reporter:
            if failed:
                raise ZeroDivisionError("the run's")

    kind, words = (ZeroDivisionError, "the run's") if failed else (FolderUnusable, "No space left")
    with pytest.raises(kind, match=words):
        report()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reporter._writers[0]._jsonl._fd)
