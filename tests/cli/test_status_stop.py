"""`headrace status` and `headrace stop`: of a cluster whose terminal is gone, and of folders where nothing goes on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import cli
from headrace.cli import status
from headrace.config import hardware, load, override
from headrace.runs.folder import RunFolder

sys.path.append(str(Path(__file__).parents[1] / "cluster"))
sys.path.append(str(Path(__file__).parents[1] / "experiments"))
from cluster_runs import ClusterRun
from run_folders import write_run


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (None, "is no run folder: No such file or directory (run.lock)"),
        ("4194304 HERE\n", "no training is going on in {}: process 4194304 has ended"),
        ("THIS HERE\n", "no training is going on in {}: process THIS has ended"),
        ("17 elsewhere\n", "{} was last trained in by process 17 of elsewhere: use this command on that machine"),
        ("\0\xff", "run.lock is damaged: it does not say which process trains there"),
        ("", "run.lock is damaged"),
        ("9" * 5000, "no training is going on in {}"),
    ],
)
@pytest.mark.parametrize("command", ["status", "stop"])
def test_where_nothing_goes_on(
    command: str, lock: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def real(text: str) -> str:  # parameters have the same names in every process of a test run
        return text.replace("THIS", str(os.getpid())).replace("HERE", platform.node())

    if lock is not None:
        (tmp_path / "run.lock").write_text(real(lock))
    assert cli.main([command, str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert real(words).format(tmp_path) in errors
    assert "Traceback" not in errors


def test_the_status_of_an_experiment_names_the_runs_that_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended, going = (write_run(tmp_path / "x" / "runs" / f"seed-{seed}", seed=seed) for seed in (0, 1))
    (tmp_path / "x" / "plan.json").write_text("{}")
    (ended / "run.lock").write_text(f"4194304 {platform.node()}\n")
    with RunFolder(tmp_path / "x"), RunFolder(going):
        assert cli.main(["status", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert f"holds an experiment, which goes on (process {os.getpid()}); name one of its runs: {going}\n" in said


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ('{"global_step": 500, "time": 1790000600.0, "eval/episodic_return": 7.0}', "3,000"),  # of an evaluation
        ('{"global_step": 3050, "time": 1790000030.1, "charts/updates": 31}', "3,050"),  # an interval too short for a speed
    ],
)
def test_the_speed_is_shown_whatever_the_last_line_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, step: str
) -> None:
    run = write_run(tmp_path / "run", metrics={"charts/SPS_interval": 1234.0})
    (run / "log.txt").write_text("something\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    status._show(run, override(load(run / "config.json"), **{"run.dashboard": False, "run.folder": str(run)}))
    shown = capsys.readouterr().out
    assert f"{step} of" in shown
    assert "1,234" in shown


def test_the_metrics_are_those_after_the_slow_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What speed depends on is known after an import of torch, which takes seconds; meanwhile training goes on."""
    run = write_run(tmp_path / "run", metrics={"time/learner/wait": 0.0, "time/rollout/step": 1.0})
    (run / "log.txt").write_text("something\n")

    def device() -> str:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"global_step": 4321, "time": 1790000600.0, "time/learner/wait": 0.0, "time/rollout/step": 1.0}\n')
        return "cpu"

    monkeypatch.setattr(hardware, "default_device", device)
    how = {"run.dashboard": False, "run.folder": str(run), "sampling.placement": "served"}
    status._show(run, override(load(run / "config.json"), **how))
    assert "4,321 of" in capsys.readouterr().out


@pytest.mark.process
def test_a_cluster_is_shown_and_stopped_from_its_folder(tmp_path: Path) -> None:
    def headrace(command: str) -> tuple[int, str]:
        arguments = [sys.executable, "-m", "headrace.cli", command, str(tmp_path / "run")]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
        return done.returncode, done.stdout + done.stderr

    with ClusterRun(tmp_path / "run", **{"learning.total_steps": 10**9, "run.checkpoint_interval": 600}) as run:
        run.wait_for("both nodes", lambda: "cluster/node-1/SPS" in (run.metrics() or [{}])[-1] and run.step(), 200)
        code, shown = headrace("status")
        assert code == 0, shown
        assert f"process {run.process.pid} is training" in shown
        assert "node 0" in shown
        assert "node 1" in shown
        assert " MB/s  lag " in shown
        (run.folder / "config.json").rename(tmp_path / "config.json")
        code, shown = headrace("status")
        assert code == 2, shown
        assert "Traceback" not in shown
        (tmp_path / "config.json").rename(run.folder / "config.json")
        assert not run.checkpoints()
        code, shown = headrace("stop")
        assert code == 0, shown
        assert f"process {run.process.pid} has ended" in shown
        assert "Stopping: one more checkpoint" in shown
        assert run.end(5) == 130, run.story
        assert run.checkpoints()
        run.assert_nothing_left()
    code, shown = headrace("stop")
    assert code == 2
    assert "no training is going on" in shown
