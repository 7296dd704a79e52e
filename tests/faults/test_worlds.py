"""Worlds that raise, hang, crash or lie, in real runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from harness import Run
from test_kills import goes_on, stop

pytestmark = pytest.mark.process

WORLDS = Path(__file__).with_name("worlds.py")
STUCK = Path(__file__).with_name("stuck.py")
SLOW = {"marks": pytest.mark.slow}


def faulty_run(folder: Path, kwargs: str, **settings: object) -> Run:
    return Run(folder, env="faulty", imports=WORLDS, **{"envs.kwargs": kwargs, **settings})


def test_passing_faults_are_survived(tmp_path):
    """Every fault happens once; the run goes on all the same, and each is told with its place."""
    once = tmp_path / "claimed"
    once.mkdir()
    faults = "raise+hang+segfault+exit+shape+nan+reward+leak"
    kwargs = f'{{"fault": "{faults}", "once": "{once}"}}'
    signs = (
        "RuntimeError: the world is broken",
        "no heartbeat",
        "killed by SIGSEGV",
        "exit code 7",
        "observation 'obs' is nan at index",
        "the reward is inf",
        "MemoryError",
    )
    with faulty_run(tmp_path / "run", kwargs, **{"learning.total_steps": 10**9, "sampling.step_timeout": 5}) as run:
        run.wait_for("a word of every fault", lambda: all(sign in run.output for sign in signs), 180)
        assert run.output.count("in step") >= 2, "the Python stacks of what hung and what crashed"
        assert len(list(once.iterdir())) == 8
        goes_on(run)
        stop(run)


@pytest.mark.slow
def test_a_learner_in_a_deadlock_is_shown_and_replaced(tmp_path):
    settings = {"learning.algorithm": "stuck", "learning.update_timeout": 5, "learning.total_steps": 10_000}
    run = faulty_run(tmp_path / "run", f'{{"once": "{tmp_path}"}}', **settings)
    run.command.insert(run.command.index(str(WORLDS)) + 1, str(STUCK))
    with run:
        assert run.end(180) == 0, run.story
        assert "learner hangs: no heartbeat for" in run.output
        assert "in loss" in run.output, "its Python stack"
        run.assert_nothing_left()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "the world is broken"),
        pytest.param("segfault", "killed by SIGSEGV", marks=pytest.mark.slow),
        pytest.param("nan", "observation 'obs' is nan at index [1]", marks=pytest.mark.slow),
        pytest.param("shape", "(3,)", marks=pytest.mark.slow),
        pytest.param("leak", "MemoryError", marks=pytest.mark.slow),
        pytest.param("hang", "no heartbeat", marks=pytest.mark.slow),
    ],
)
def test_a_lasting_fault_ends_the_run_with_its_error(tmp_path, fault, message):
    settings = {"sampling.max_restarts": 2, "learning.total_steps": 10**9, "sampling.step_timeout": 5}
    settings |= {"run.checkpoint_interval": 1000}
    with faulty_run(tmp_path / "run", f'{{"fault": "{fault}"}}', **settings) as run:
        assert run.end() == 1
        tail = run.output[-4000:]
        assert message in run.output
        assert run.checkpoints(), "what was learned until then"
        assert "(sampling.max_restarts: 2)" in tail
        if fault not in ("segfault", "hang"):
            assert "game 1, step 3" in tail, "where it happened"
            assert "src/headrace" not in tail.rpartition("(sampling.max_restarts: 2)")[2], "only the user's frames"
        run.assert_nothing_left()


@pytest.mark.parametrize("what", ["helpers", "programs"])
@pytest.mark.parametrize("end", ["worker killed", pytest.param("run killed", **SLOW), pytest.param("Ctrl-C", **SLOW)])
def test_what_a_world_has_started_does_not_outlive_it(tmp_path, end, what):
    """Neither processes that it has forked nor other programs."""
    kwargs = f'{{"fault": "{what}", "once": "{tmp_path}"}}'
    found = {"helpers": forked, "programs": lambda run: run.pids("sleep")}[what]
    with faulty_run(tmp_path / "run", kwargs, **{"learning.total_steps": 10**9, "sampling.num_workers": 1}) as run:
        started = run.wait_for("both of them", lambda: found(run) if len(found(run)) == 2 else None)
        assert run.process is not None
        if end == "worker killed":
            (worker,) = set(run.pids("rollout")) - set(started)
            os.kill(worker, signal.SIGKILL)
            run.wait_for("their end", lambda: not set(started) & set(run.pids()))
            goes_on(run)
        if end == "run killed":
            run.process.kill()
            run.process.wait()
            run.assert_nothing_left()
        else:
            stop(run)


def forked(run: Run) -> list[int]:
    """Processes that a rollout worker has forked; they have its name."""
    pids = run.pids("rollout")
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).ppid() in pids]
