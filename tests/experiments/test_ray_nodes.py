"""`--on ray`: runs of an experiment on the nodes of a Ray cluster, which is several raylets on this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from ray_machines import Machines

from headrace import cli
from headrace.experiments import mirror
from headrace.experiments.mirror import Mirror
from headrace.experiments.places import LOST, Places
from headrace.experiments.plan import Plan
from headrace.experiments.runner import MOST_LOST, Runner

NEEDED = "Ray is not installed: pip install 'headrace[ray]'"
VARIABLES = ("AUTH_MODE", "AUTH_TOKEN", "gcs_rpc_server_reconnect_timeout_s", "ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "worker_niceness")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", range(20))
def test_a_mirror_ends_with_the_same_files(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are added to, replaced and removed at random, between two messages of a few bytes each."""
    monkeypatch.setattr(mirror, "MOST", 7)
    draw, here, there = random.Random(seed), tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    own = Mirror(here)
    for step in range(60):
        what, number = draw.randrange(5), draw.randrange(3)
        if what == 0:
            with open(here / f"{number}.jsonl", "ab") as file:
                file.write(draw.randbytes(draw.randrange(9)))
        elif what == 1:  # as `write_whole` does it
            (here / ".tmp-config.json").write_bytes(draw.randbytes(draw.randrange(20)))
            os.replace(here / ".tmp-config.json", here / "config.json")
        elif what == 2:  # as a checkpoint is written
            aside = here / "checkpoints" / f".tmp-{step}"
            aside.mkdir(parents=True)
            (aside / "tensors").write_bytes(draw.randbytes(20))
            os.rename(aside, here / "checkpoints" / f"{step:03d}")
        elif what == 3 and (checkpoints := sorted(here.glob("checkpoints/*"))):
            (checkpoints[0] / "tensors").unlink()
            checkpoints[0].rmdir()
        else:
            own.changes().write(there)
    for changes in own.all():
        changes.write(there)
    assert content(there) == content(here)
    assert sorted(path.name for path in there.glob("checkpoints/*")) == sorted(path.name for path in here.glob("checkpoints/*"))
    assert not own.changes().pieces, "what was sent is not sent again"


def test_metrics_that_arrive_reach_as_far_as_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the files are read, the run goes on: it writes a line, and then the checkpoint that the line belongs to."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "checkpoints").mkdir(parents=True)

    def run_on(step: int) -> None:
        with open(here / "metrics.jsonl", "a") as file:
            file.write(f"{step}\n")
        (here / "checkpoints" / f"{step:03d}").write_text("")

    run_on(0)
    opened, step = open, iter(range(1, 1000))

    def reading(*arguments: object) -> object:
        if next(steps, False):
            run_on(next(step))
        return opened(*arguments)  # type: ignore[call-overload]

    own = Mirror(here)
    for number in range(20):
        steps = iter([True] * number)
        with monkeypatch.context() as patched:
            patched.setattr(mirror, "open", reading, raising=False)
            changes = own.changes()
        changes.write(there)
        newest = max(int(path.name) for path in there.glob("checkpoints/*"))
        assert int((there / "metrics.jsonl").read_text().splitlines()[-1]) >= newest


class Scripted(Places):
    """Runs that end with given exit codes, one after the other."""

    count = 1
    free = True

    def __init__(self, codes: list[int]) -> None:
        self.codes, self.started = codes, list[str]()

    def start(self, arguments: object, folder: Path) -> Scripted:
        self.started.append(folder.name)
        self.free = False
        return self

    def poll(self) -> int:
        return self.codes.pop(0)

    def end(self, run: object) -> None:
        self.free = True


def test_a_run_whose_machine_is_lost_is_the_next_to_begin_and_fails_if_that_goes_on(tmp_path: Path) -> None:
    plan = Plan("gym/CartPole-v1", (), {}, (0, 1), "1k")
    places = Scripted([LOST, LOST, 0, 0])
    runner = Runner(plan, tmp_path / "x", places)
    assert runner.run(lambda runs: None)
    assert places.started == ["seed-0", "seed-0", "seed-0", "seed-1"]
    places = Scripted([LOST] * (MOST_LOST + 1) + [0])
    runner = Runner(plan, tmp_path / "y", places)
    assert not runner.run(lambda runs: None)
    assert [one.state for one in runner.runs] == ["failed", "done"]
    assert places.started == ["seed-0"] * (MOST_LOST + 1) + ["seed-1"]
    assert [text.partition(".")[0] for text in runner.failures()] == ["seed-0 lost its machine; the same command goes on with it"]
    runner = Runner(plan, tmp_path / "z", Scripted([-9, 1]))
    assert not runner.run(lambda runs: None)
    assert [text.partition(";")[0] for text in runner.failures()] == ["seed-0 was killed by signal 9", "seed-1 failed (1)"]


def test_without_ray_the_command_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(f"RAY_{name}", "")
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["compare", "gym/CartPole-v1", "--folder", str(tmp_path / "x"), "--budget", "1k", "--on", "ray"]
    assert cli.main(command) == 2
    assert '--on ray needs a package that is not installed: pip install "headrace[ray]"' in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


# -- with a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    pytest.importorskip("ray", reason=NEEDED)
    made = Machines(2, tmp_path)
    yield made
    made.close()


def wait_for(condition: Callable[[], object], seconds: float = 280) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def left() -> list[int]:
    """Processes of runs on nodes: they work in a folder there."""
    found = psutil.process_iter(["pid", "cwd"])
    return [process.info["pid"] for process in found if "/headrace-run-" in (process.info["cwd"] or "")]


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("headrace-run-*"))


def compare(folder: Path, budget: str, *more: str) -> list[str]:
    flags = ["--vary", "learning.gamma=0.9,0.99", "--seeds", "1", "--budget", budget, "--folder", str(folder), "--on", "ray",
             "--parallel", "2", "--placement", "serial", "--num-threads", "1", "--num-epochs", "1"]  # fmt: skip
    return [sys.executable, "-m", "headrace.cli", "compare", "gym/CartPole-v1", *flags, *more]


def runs_of(folder: Path) -> tuple[Path, Path]:
    return folder / "runs" / "gamma-0.9__seed-0", folder / "runs" / "gamma-0.99__seed-0"


def assert_no_step_is_there_twice(run: Path, last: int) -> None:
    steps = [json.loads(line)["global_step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] >= last


@pytest.mark.process
def test_two_runs_on_two_nodes(machines: Machines, tmp_path: Path) -> None:
    """With an environment of the user's, which is sent there."""
    (tmp_path / "world.py").write_text(
        "import os, gymnasium\nfrom headrace.envs import register\n@register('mine')\ndef make(options, *, render_mode=None):\n"
        "    print(f'made in {os.getcwd()} by {__file__}', flush=True)\n    return gymnasium.make('CartPole-v1')\n"
    )
    folder = tmp_path / "x"
    command = compare(folder, "3k", "--import", "world.py")
    command[command.index("gym/CartPole-v1")] = "mine"
    environ = os.environ | machines.variables
    done = subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("done ") == 2
    places = set()
    for run in runs_of(folder):
        assert_no_step_is_there_twice(run, 3000)
        assert (run / "ended.json").exists()
        assert list(run.glob("checkpoints/0*/manifest"))
        (made,) = {line for line in (run / "output.txt").read_text().splitlines() if line.startswith("made in")}
        _, _, where, _, file = made.split()
        assert "/headrace-run-" in where
        assert Path(file).is_relative_to(where)
        places.add(where)
    assert len(places) == 2
    token = machines.variables["RAY_AUTH_TOKEN"].encode()
    assert not [name for name, data in content(folder).items() if token in data]
    wait_for(lambda: not left() and not folders(), 10)


@pytest.mark.slow
def test_too_few_nodes_are_a_short_error(machines: Machines, tmp_path: Path) -> None:
    command, environ = compare(tmp_path / "x", "1h"), os.environ | machines.variables
    command[command.index("--parallel") + 1] = "3"
    done = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 2
    assert "each run needs a node with CPUs of its own; this Ray cluster has 2 machines, with 2, 2 CPUs" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_run_whose_node_dies_goes_on_on_another(machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    started = subprocess.Popen(compare(folder, "30k", "--run.checkpoint-interval", "0.5"), env=os.environ | machines.variables)
    wait_for(lambda: all(list(run.glob("checkpoints/0*/manifest")) for run in runs_of(folder)))
    machines.ask("kill")
    wait_for(lambda: "its machine is lost" in (folder / "log.txt").read_text(), 60)
    assert started.wait(280) == 0
    went_on = 0
    for run in runs_of(folder):
        assert_no_step_is_there_twice(run, 30_000)
        assert (run / "ended.json").exists()
        went_on += "Going on from" in (run / "log.txt").read_text()
    assert went_on == 1
    assert (folder / "log.txt").read_text().count("its machine is lost") == 1
    wait_for(lambda: not left() and not folders(), 10)


@pytest.mark.slow
def test_without_rays_head_the_command_ends_and_goes_on_in_another_cluster(machines: Machines, tmp_path: Path) -> None:
    """The first runs end while the head is silent, and others are due to begin."""
    folder = tmp_path / "x"
    command = compare(folder, "30s", "--run.checkpoint-interval", "0.5")
    command[command.index("--seeds") + 1] = "2"
    started = subprocess.Popen(command, env=os.environ | machines.variables, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all(list(run.glob("checkpoints/0*/manifest")) for run in runs_of(folder)))
    time.sleep(15)
    machines.ask("behead")
    began = time.monotonic()
    wait_for(lambda: "does not answer: this command ends" in (folder / "log.txt").read_text(), 30)
    _, said = started.communicate(timeout=100)
    print(f"the command ended {time.monotonic() - began:.1f} s after the head", flush=True)
    assert started.returncode == 1, said
    assert "has not answered for 30 s" in said
    assert "Traceback" not in said
    ended = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/ended.json")}
    assert len(ended) == 2
    machines.close()
    wait_for(lambda: not left() and not folders(), 120)

    (tmp_path / "another").mkdir()
    another = Machines(2, tmp_path / "another")
    try:
        done = subprocess.run(command, env=os.environ | another.variables, stdout=subprocess.PIPE, text=True, timeout=280)
    finally:
        another.close()
    assert done.returncode == 0, done.stdout
    for run in folder.glob("runs/*"):
        assert_no_step_is_there_twice(run, 1)
        assert (run / "ended.json").exists()
    assert ended == {path: path.stat().st_mtime_ns for path in ended}


@pytest.mark.slow
def test_kill_9_of_the_command_leaves_nothing_on_the_nodes_and_it_goes_on(machines: Machines, tmp_path: Path) -> None:
    folder, environ = tmp_path / "x", os.environ | machines.variables
    command = compare(folder, "150k", "--run.checkpoint-interval", "0.5")
    command[command.index("--parallel") + 1] = "1"
    first, second = runs_of(folder)
    started = subprocess.Popen(command, env=environ)
    wait_for(lambda: list(second.glob("checkpoints/0*/manifest")))
    assert left()
    started.kill()
    began = time.monotonic()
    started.wait()
    wait_for(lambda: not left() and not folders(), 30)
    print(f"nothing was left after {time.monotonic() - began:.1f} s", flush=True)
    ended = (first / "ended.json").stat().st_mtime_ns
    assert not (second / "ended.json").exists()
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    assert (first / "ended.json").stat().st_mtime_ns == ended
    assert "Going on from" in (second / "log.txt").read_text()
    assert_no_step_is_there_twice(second, 150_000)
    wait_for(lambda: not left() and not folders(), 10)


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_with_a_checkpoint(machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    environ = os.environ | machines.variables
    started = subprocess.Popen(compare(folder, "1h"), env=environ, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: all((run / "metrics.jsonl").exists() for run in runs_of(folder)))
    assert not list(folder.glob("runs/*/checkpoints/0*"))
    started.send_signal(signal.SIGINT)
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 130
    assert said.count("stopped ") == 2
    for run in runs_of(folder):
        assert list(run.glob("checkpoints/0*/manifest"))
        assert not (run / "ended.json").exists()
    wait_for(lambda: not left() and not folders(), 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("if name == 'headrace': raise ModuleNotFoundError(\"No module named 'headrace'\", name=name)",
         f'The module headrace is not installed there: pip install "headrace=={version("headrace")}"'),
        ("if name == 'headrace':\n            import importlib.metadata as m\n            m.version = lambda package: '0.0.9'",
         f"has other versions than this machine: headrace 0.0.9 instead of {version('headrace')}"),
    ],
    ids=["without", "another version"],
)  # fmt: skip
def test_a_node_without_headrace_or_with_another_version(machines: Machines, tmp_path: Path, lacks: str, said: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Lacks:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        {lacks}\nsys.meta_path.insert(0, Lacks())\n"
    )
    machines.ask(f"add PYTHONPATH={tmp_path}")
    command = compare(tmp_path / "x", "1h", "--seeds", "2")
    command[command.index("--parallel") + 1] = "3"
    environ = os.environ | machines.variables
    done = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    wait_for(lambda: not left() and not folders(), 10)


@pytest.mark.process
def test_no_ray_at_the_address_is_a_short_error(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=NEEDED)
    environ = os.environ | {"RAY_ADDRESS": "127.0.0.1:9"}
    done = subprocess.run(compare(tmp_path / "x", "1k"), env=environ, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 2
    assert "the Ray cluster at 127.0.0.1:9 (RAY_ADDRESS) cannot be joined" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_search_on_two_nodes(machines: Machines, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra lab is not installed")
    folder = tmp_path / "s"
    flags = ["--over", "learning-rate=1e-4:1e-2:log", "--trials", "3", "--seeds", "1", "--test-seeds", "1", "--budget", "3k",
             "--folder", str(folder), "--on", "ray", "--parallel", "2", "--placement", "serial", "--num-threads=1"]  # fmt: skip
    command = [sys.executable, "-m", "headrace.cli", "search", "gym/CartPole-v1", *flags]
    done = subprocess.run(command, env=os.environ | machines.variables, stdout=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    assert [trial["state"] for trial in json.loads((folder / "trials.json").read_text())] == ["complete"] * 3
    wait_for(lambda: not left() and not folders(), 10)
