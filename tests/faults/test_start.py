"""What goes wrong before and while a run starts and where it writes."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_kills import counting_run, goes_on, stop

pytestmark = pytest.mark.process


@pytest.mark.parametrize("seconds", [0.3, 2.5, *(pytest.param(i / 4, marks=pytest.mark.slow) for i in range(30))])
def test_ctrl_c_at_every_stage_of_the_start_ends_cleanly(tmp_path, seconds):
    run = counting_run(tmp_path / "run")
    with run:
        assert run.process is not None
        time.sleep(seconds)
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
        code = run.end()
        # While Python itself still starts, its own handler ends it by the signal, or, in the module `site`, with an error.
        of_python = code == 1 and ("init_import_site" in run.output or "Could not import runpy" in run.output)
        assert code in (130, -signal.SIGINT) or of_python, run.story
        run.assert_nothing_left()


def test_sigterm_to_every_process_ends_with_a_checkpoint(tmp_path):
    """As `timeout` and service managers send it."""
    with counting_run(tmp_path / "run", **{"run.checkpoint_interval": 1000}) as run:
        run.wait_for("the first steps", run.step)
        os.killpg(run.process.pid, signal.SIGTERM)
        assert run.end() == 130, run.story
        assert len(run.checkpoints()) == 1
        run.assert_nothing_left()


def test_rollout_workers_give_way_and_share_the_cores(tmp_path):
    cores = os.sched_getaffinity(0)
    with counting_run(tmp_path / "run", **{"sampling.num_workers": len(cores), "learning.batch_size": 7 * 3}) as run:
        run.wait_for("the first steps", run.step)
        workers = run.pids("rollout")
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in workers} == {min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)}
        for pid in run.pids("learner") + run.pids("policy"):
            assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
            assert os.sched_getaffinity(pid) == cores
        if len(cores) > 1:
            assert sorted(os.sched_getaffinity(pid).copy().pop() for pid in workers) == sorted(cores)
            assert all(len(os.sched_getaffinity(pid)) == 1 for pid in workers)
        stop(run)


@pytest.mark.parametrize("placement", ["served", "inline"])
def test_torch_is_imported_by_the_command_and_once_for_all_its_children(tmp_path, placement):
    with counting_run(tmp_path / "run", **{"sampling.placement": placement, "sampling.num_workers": 1}) as run:
        run.wait_for("the first steps", run.step)
        server = run.fork_server()
        assert "libtorch_cpu" in Path(f"/proc/{server}/maps").read_text()
        stop(run)


def test_a_run_in_one_process_starts_no_other_with_torch(tmp_path):
    with counting_run(tmp_path / "run", **{"sampling.placement": "serial"}) as run:
        run.wait_for("the first steps", run.step)
        with_torch = [pid for pid in run.pids() if "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()]
        assert with_torch == [run.process.pid]
        stop(run)


def test_importing_training_starts_no_cuda_no_grpc_and_no_thread_that_numpy_does_not():
    """Or children of a process that did so could not be forked from it."""
    program = (
        "import os, sys, numpy\n"
        "before = os.listdir('/proc/self/task')\n"
        "import headrace.train, torch\n"
        "assert os.listdir('/proc/self/task') == before\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'grpc' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_too_little_memory_is_said_before_anything_starts(tmp_path):
    huge = {"sampling.num_slots": 30_000, "sampling.rollout": 70_000, "learning.batch_size": 70_000 * 3}
    with counting_run(tmp_path / "run", **huge) as run:
        assert run.end() == 2
        last = run.output.strip().splitlines()[-1]
        assert "needs" in last
        assert "MiB are available" in last
        run.assert_nothing_left()


@pytest.mark.slow
def test_a_file_that_cannot_grow_stops_checkpoints_but_not_training(tmp_path):
    run = counting_run(tmp_path / "run")
    with run:
        run.wait_for("two checkpoints", lambda: len(run.checkpoints()) >= 2)
        learner = run.pids("learner")[0]
        # No file may grow beyond this any more: writing fails as it does on a full disk.
        resource.prlimit(learner, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        run.wait_for("the warning", lambda: "are untouched. Training goes on" in run.output)
        before = run.checkpoints()
        goes_on(run)
        resource.prlimit(learner, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.wait_for("a new checkpoint", lambda: run.checkpoints()[-1] not in before)
        stop(run)


@pytest.fixture
def disk(tmp_path):
    """A small file system."""
    folder = tmp_path / "run"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "headrace-test", folder], check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk):
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
    return ballast


@pytest.mark.slow
def test_a_learner_that_starts_again_on_a_full_disk_goes_on(disk):
    """Its metrics go back to its checkpoint when there is room, and hold no step twice."""
    run = counting_run(disk, **{"run.log_interval": 0.5})
    with run:
        run.wait_for("two checkpoints", lambda: len(run.checkpoints()) >= 2)
        ballast = fill(disk)
        run.wait_for("the warning", lambda: "metrics.jsonl cannot be written now" in run.output)
        printed = len(run.output)
        run.signal("learner", signal.SIGKILL)
        run.wait_for("the return", lambda: "Going on from" in run.output[printed:])
        run.wait_for("training", lambda: run.output[printed:].count(" | step ") > 5)
        ballast.unlink()
        run.wait_for("room", lambda: "metrics.jsonl is written again" in run.output)
        goes_on(run)
        stop(run)
        assert "Bad file descriptor" not in run.output
        assert run.output.count("metrics.jsonl cannot be written now") == 1
        rows = [(row["global_step"], row["time"]) for row in run.metrics()]
        assert rows == sorted(set(rows))


@pytest.mark.slow
def test_a_full_disk_stops_nothing_but_files(disk):
    """Metrics, log and checkpoints all lie on it; what could not be written follows when there is room."""
    run = counting_run(disk, **{"run.log_interval": 1.0})
    with run:
        run.wait_for("two checkpoints", lambda: len(run.checkpoints()) >= 2)
        ballast = fill(disk)
        run.wait_for("the warning", lambda: "are untouched. Training goes on" in run.output)
        lines = run.output.count(" | step ")
        run.wait_for("training", lambda: run.output.count(" | step ") > lines + 5)
        assert "cannot be written now" in run.output
        ballast.unlink()
        before = run.checkpoints()
        run.wait_for("a new checkpoint", lambda: run.checkpoints()[-1] not in before)
        goes_on(run)
        stop(run)
        rows = run.metrics()
        assert len(rows) == run.output.count(" | step ")
        # Every interval has a line, also one without an update: two lines may be of the same step, but none is written twice.
        assert [(row["global_step"], row["time"]) for row in rows] == sorted({(row["global_step"], row["time"]) for row in rows})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_damaged_checkpoints_are_passed_over(tmp_path):
    """Every file of a checkpoint: gone, cut short and with a flipped bit, in each of its regions."""
    run = counting_run(tmp_path / "run", **{"run.checkpoint_interval": 0.2})
    with run:
        for name in ("state.json", "tensors.safetensors", "manifest"):
            for place in (None, 0.0, 0.3, 0.6, 1.0):
                for damage in (cut, flip_a_bit) if place is not None else (remove,):
                    run.wait_for("three checkpoints", lambda: len(run.checkpoints()) >= 3)
                    stop(run)
                    newest = run.checkpoints()[-1]
                    file = newest / name
                    damage(file, 0 if place is None else round(place * (file.stat().st_size - 1)))
                    printed = len(run.output)
                    run.start()
                    run.wait_for("the return", lambda printed=printed: "Going on from" in run.output[printed:])
                    assert newest.name in run.output[printed:], "the damage is told"
                    assert f"Going on from {newest.name}" not in run.output[printed:]
                    # a run that is stopped before it made a step has nothing to save: the damaged one would stay the newest
                    run.wait_for("a newer checkpoint", lambda newest=newest: run.checkpoints()[-1] > newest)
                    goes_on(run)
        stop(run)


def remove(file: Path, at: int) -> None:
    file.unlink()


def cut(file: Path, at: int) -> None:
    os.truncate(file, at)


def flip_a_bit(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << at % 8
    file.write_bytes(data)
