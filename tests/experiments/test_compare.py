"""`headrace compare`: its plan, what it refuses, and a real experiment that is killed and goes on."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_folders import write_run

from headrace import cli
from headrace.cli.compare import check_combinations
from headrace.cli.flags import given_settings, parse_config
from headrace.config import ConfigError
from headrace.experiments import progress, records
from headrace.experiments.places import Cores
from headrace.experiments.plan import Budget, Plan, PlannedRun, parse_vary
from headrace.experiments.runner import Runner
from headrace.runs.plots import RETURNS

CARTPOLE = "gym/CartPole-v1"


def plan(**changes):
    base = {"env": CARTPOLE, "flags": (), "vary": {"learning.gamma": ("0.9", "0.99")}, "seeds": (0, 1), "budget": "2k"}
    return Plan(**{**base, **changes})


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("30s", Budget(minutes=0.5)), ("5m", Budget(minutes=5.0)), ("1.5h", Budget(minutes=90.0)),
        ("2M", Budget(steps=2_000_000)), ("500k", Budget(steps=500_000)), ("20000", Budget(steps=20_000)),
    ],
)  # fmt: skip
def test_budgets(text, budget):
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "5", "0", "m", "-5m", "5x", "1e6", "5 m", "0k"])
def test_what_is_no_budget(text):
    if text == "5":
        assert Budget.parse(text) == Budget(steps=5)
        return
    with pytest.raises(ConfigError, match="is no budget"):
        Budget.parse(text)


def test_a_time_that_was_trained_before_counts():
    assert Budget(minutes=5.0).flags(spent=2.0) == ["--run.max-minutes", "3.0000"]
    assert float(Budget(minutes=5.0).flags(spent=9.0)[1]) > 0
    assert Budget(steps=100).flags(spent=2.0) == ["--learning.total-steps", "100"]


def test_every_combination_with_the_first_seed_comes_first():
    runs = list(plan(vary={"a.b": ("x", "y"), "c.d": ("1", "2 3")}).runs())
    assert len(runs) == 8
    assert {run.seed for run in runs[:4]} == {0}
    assert runs[1] == PlannedRun((("a.b", "x"), ("c.d", "2 3")), 0)
    assert runs[1].name == "b-x__d-2_3__seed-0"
    assert runs[1].flags == ["--a.b", "x", "--c.d", "2", "3", "--seed", "0"]


def test_switches_may_vary():
    switches = plan(vary={"policy.previous_action": ("true", "False"), "envs.grayscale": ("None",)})
    check_combinations(switches)
    values = [parse_config(switches.command(run)).policy.previous_action for run in switches.runs()]
    assert values == [True, False, True, False]
    assert len({run.name for run in switches.runs()}) == 4


def test_json_objects_may_vary():
    vary = parse_vary(['envs.kwargs={"limit": 20, "a": "x y"}, {"limit": 50}'])
    assert list(vary) == ["envs.kwargs"]
    plan = Plan("gym/CartPole-v1", (), vary, (0,), "1k")
    found = [given_settings(run.flags)["envs.kwargs"] for run in plan.runs()]
    assert found == [{"limit": 20, "a": "x y"}, {"limit": 50}]
    with pytest.raises(ConfigError, match="no JSON objects"):
        parse_vary(['envs.kwargs={"limit": 20},50"'])


def test_the_environment_is_named_once_and_first(tmp_path, capsys):
    rest = ["--budget", "1k", "--folder", str(tmp_path / "x")]
    assert cli.main(["compare", "gym/CartPole-v1", "--env", "gym/Acrobot-v1", *rest]) == 2
    assert "env is decided by ENV" in capsys.readouterr().err
    assert cli.main(["compare", *rest, "--num-workers", "1", "gym/CartPole-v1"]) == 2
    assert "the environment comes first: headrace compare ENV" in capsys.readouterr().err


def test_a_plan_is_read_as_it_was_written_and_may_grow(tmp_path):
    first = plan()
    first.write(tmp_path)
    assert Plan.read(tmp_path) == first
    plan(seeds=(0, 1, 2), vary={"learning.gamma": ("0.9", "0.95", "0.99")}).check_extends(tmp_path)
    for change in ({"budget": "3k"}, {"env": "gym/Acrobot-v1"}, {"flags": ("--no-video",)}, {"vary": {"learning.beta": ("1",)}}):
        other = plan(**change)
        with pytest.raises(ConfigError, match="holds another experiment"):
            other.check_extends(tmp_path)
    for damage in ("{", "[]", "{}", '{"format": 1, "env": 3}'):
        (tmp_path / "plan.json").write_text(damage)
        with pytest.raises(ConfigError, match=r"plan\.json .*: move it away, and the same command writes it anew"):
            first.check_extends(tmp_path)


def test_flags_of_another_experiment_are_named_where_they_differ(tmp_path):
    plan(flags=("--run.no-video", "--policy.mlp", "64", "32", "--num-workers", "2")).write(tmp_path)
    for flags, said in (
        (("--run.no-video", "--policy.mlp", "64", "--num-workers", "2"), "flags --policy.mlp 64 32 -> --policy.mlp 64"),
        (("--run.no-video", "--num-workers", "2"), "flags --policy.mlp 64 32 -> none"),
        (("--policy.mlp", "64", "32", "--run.no-video", "--num-workers", "2"), "flags in another order"),
    ):
        with pytest.raises(ConfigError, match=f"holds another experiment [(]{said}[)]: choose"):
            plan(flags=flags).check_extends(tmp_path)


def test_finished_runs_whose_folders_are_damaged_are_named(tmp_path):
    one = plan(seeds=(0,))
    for run in one.runs():
        write_run(tmp_path / "runs" / run.name)
        (tmp_path / "runs" / run.name / "ended.json").write_text("{}")
    runner = Runner(one, tmp_path, Cores(1))
    assert runner.unreadable() == []
    first, second = (progress.folder for progress in runner.runs)
    (first / "config.json").write_text("{bad")
    (second / "metrics.jsonl").write_text("garbage")
    (second / "curve.jsonl").unlink()
    texts = runner.unreadable()
    assert [text.partition(",")[0] for text in texts] == [f"{first.name} has ended", f"{second.name} has ended"]
    assert "config.json cannot be read: Expecting property name" in texts[0]
    assert "no line of metrics.jsonl can be read" in texts[1]
    assert all(text.endswith("where a file is damaged, remove the folder: the same command trains it again") for text in texts)


def test_two_values_with_one_folder_are_refused():
    with pytest.raises(ConfigError, match="same folder"):
        plan(vary={"policy.mlp": ("64 64", "64/64")})
    with pytest.raises(ConfigError, match="more than 10,000 runs"):
        plan(seeds=tuple(range(9000)))
    for text in ("a", "a=", "a=1,,2", "=1"):
        with pytest.raises(ConfigError, match="names no values"):
            parse_vary([text])
    with pytest.raises(ConfigError, match="given twice"):
        parse_vary(["a=1", "a=2"])


@pytest.mark.parametrize(("command", "option"), [("compare", "--vary"), ("search", "--over")])
def test_a_setting_given_under_two_names_is_given_twice(tmp_path, capsys, command, option):
    folder = tmp_path / "x"
    given = [option, "gamma=0.9,0.95", option, "learning.gamma=0.99,0.999"]
    assert cli.main([command, "gym/CartPole-v1", "--budget", "1k", "--folder", str(folder), *given]) == 2
    assert f"{option} learning.gamma is given twice" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--vary", "batch-size=512,500"],
            "cannot work; nothing was started:\n  batch_size 500: learning.batch_size (500) must be a multiple",
        ),
        (["--vary", "policy-lag=0,1"], "  policy_lag 1: sampling.policy_lag 1 needs sampling.placement serial"),
        (["--vary", "placment=serial"], "there is no setting placment; did you mean --sampling.placement?"),
        (["--vary", "gamma=0.9,2"], "learning.gamma is 2"),
        (["--vary", "seed=1,2"], "seed is decided by --seeds"),
        (["--total-steps", "5"], "learning.total_steps is decided by --budget"),
        (["--vary", "gamma=0.9", "--gamma", "0.5"], "learning.gamma varies, and is given as a flag too"),
        (["--vary", "cluster.nodes=1,2", "--on", "ray"], "cluster.nodes divides a run among machines, and with --on ray"),
        (["--parallel", "4000"], "--parallel 4000: each run needs a core of its own"),
    ],
)
def test_what_cannot_work_is_named_before_anything_starts(tmp_path, capsys, flags, said):
    assert cli.main(["compare", CARTPOLE, "--folder", str(tmp_path / "x"), "--budget", "1k", *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def saved(folder, *steps):
    """Give a run folder checkpoints of these steps."""
    for number, step in enumerate(steps):
        (folder / "checkpoints" / f"{number + 1:06}-step-{step}").mkdir(parents=True)


def policies(run, returns):
    """Give a run folder one policy, with a checkpoint at its end, for each of these returns."""
    for number, mean in enumerate(returns):
        own = run / f"policy-{number}"
        own.mkdir()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[-1]["charts/episodic_return_100"] = mean
        (own / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        saved(own, lines[-1]["global_step"])
    (run / "metrics.jsonl").unlink()
    return run


def test_the_time_and_the_return_of_a_population_are_known(tmp_path):
    run = policies(write_run(tmp_path / "run", points=120), [10.0, 30.0])
    assert records.minutes_of(run) == pytest.approx(2.0), "a run that goes on would have its whole budget again"
    newest = records.newest(run)
    assert (newest["global_step"], newest["charts/episodic_return_100"]) == (12_000, 20.0)


def test_minutes_that_were_lost_with_a_kill_are_trained_again(tmp_path):
    """A run goes on from its newest checkpoint: what was learned after it counts no more, nor do the minutes that it took."""
    run = write_run(tmp_path / "run", points=120)
    assert records.minutes_of(run) == 0, "without a checkpoint the run begins anew"
    saved(run, 3000, 6050)
    assert records.minutes_of(run) == pytest.approx(1.0)


def test_the_start_of_a_process_is_no_part_of_the_budget(tmp_path):
    """As for `run.max_minutes`, which counts from when learning began: a line's interval before the first line of a process."""
    saved(run := write_run(tmp_path / "run", points=120, **{"run.log_interval": 1.0}), 12_000)
    (run / "system.json").write_text(json.dumps([{"started": "2026-09-21T14:12:20+0000"}]))  # a minute earlier
    assert records.minutes_of(run) == pytest.approx(2.0)
    (one,) = records.read(run)
    assert one.minutes == pytest.approx(2.0)


def test_a_run_that_goes_on_has_used_a_part_of_its_budget(tmp_path):
    planned = plan(budget="4m", vary={}, seeds=(0,))
    saved(write_run(tmp_path / "runs" / "seed-0", points=120), 12_000)
    started = []

    class Nowhere:
        free = True

        def start(self, arguments, folder):
            started.append(arguments)

    runner = Runner(planned, tmp_path, Nowhere())
    (one,) = runner.runs
    runner._start(one)
    one.seconds = 60.0
    assert started[0][started[0].index("--run.max-minutes") + 1] == "2.0000"
    assert progress.share_done("4m", one) == 0.75
    assert progress._left(planned, runner.runs, 1) == "about 1 minutes left"


def test_returns_are_shown_with_three_digits_whatever_their_size(capsys):
    def ended(name, value):
        return SimpleNamespace(run=SimpleNamespace(name=name), state="done", metrics={RETURNS: value})

    with progress.table(SimpleNamespace(), 1) as shown:
        shown([ended("small", 0.9134), ended("large", 1234.5)])
    assert capsys.readouterr().out.split("\n")[:2] == ["done     small, return 0.913", "done     large, return 1,234"]


def test_a_finished_run_is_kept(tmp_path):
    done = plan()
    for run in done.runs():
        (tmp_path / "runs" / run.name).mkdir(parents=True)
        (tmp_path / "runs" / run.name / "ended.json").write_text("{}")
    runner = Runner(done, tmp_path, Cores(1))
    assert runner.run(lambda runs: None)
    assert [one.training for one in runner.runs] == [None] * 4


def test_runs_that_go_on_are_not_lost_with_one_that_cannot_begin(tmp_path):
    """On a full disk there is no room for the folder of another run, nor to note that one has ended."""

    class Full(Cores):
        def start(self, arguments, folder):
            if folder.name.endswith("seed-1"):
                raise OSError(errno.ENOSPC, "No space left on device")
            run = subprocess.Popen(["sleep", "0.5"])
            self._taken[run] = self._shares.popleft()
            (folder / "ended.json").mkdir()
            return run

    places = Full(1)
    places.count, places._shares = 2, deque([[0], [0]])
    runner = Runner(plan(vary={}), tmp_path / "x", places)
    assert not runner.run(lambda runs: None)
    assert [one.state for one in runner.runs] == ["done", "failed"]
    (text,) = runner.failures()
    assert text.startswith("seed-1 could not begin (No space left on device); the same command goes on with it")
    assert "cannot begin (No space left on device): seed-1" in (tmp_path / "x" / "log.txt").read_text()


def test_a_table_outlives_its_terminal(monkeypatch):
    """The window is closed while experiments run: they are stopped, and the command then says how they have ended."""
    screen, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", os.fdopen(terminal, "w"))
    with progress.table(plan(), 1) as shown:
        os.close(screen)
        shown([progress.Progress(run, Path()) for run in plan().runs()])
        time.sleep(0.5)  # the table is drawn four times a second


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.process
def test_an_experiment_that_is_killed_goes_on_where_it_was(tmp_path):
    """Two values, one seed: the first run ends, the second is killed with everything else, and the same command ends both."""
    folder = tmp_path / "x"
    command = [sys.executable, "-m", "headrace.cli", "compare", CARTPOLE, "--vary", "learning.gamma=0.9,0.99", "--seeds", "1",
               "--budget", "6k", "--folder", str(folder), "--placement", "serial", "--num-threads", "1", "--num-epochs", "1",
               "--run.checkpoint-interval", "0.1"]  # fmt: skip
    first, second = (folder / "runs" / f"gamma-{gamma}__seed-0" for gamma in ("0.9", "0.99"))
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_for(lambda: list(second.glob("checkpoints/0*")))
    children = {int(pid) for pid in (second / "run.lock").read_text().split()[:1]}
    started.send_signal(signal.SIGKILL)
    started.wait()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in children), 20)
    assert (first / "ended.json").exists()
    assert not (second / "ended.json").exists()
    ended = (first / "ended.json").stat().st_mtime_ns
    assert subprocess.run(command, timeout=200, stdout=subprocess.PIPE, text=True, check=True).stdout.count("done ") == 2
    assert (first / "ended.json").stat().st_mtime_ns == ended
    assert (second / "ended.json").exists()
    log = (second / "log.txt").read_text()
    assert "Going on from" in log
    steps = [json.loads(line)["global_step"] for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "no step is there twice"
    assert steps[-1] >= 6000


@pytest.mark.process
def test_ctrl_c_ends_the_runs_with_a_checkpoint(tmp_path):
    folder = tmp_path / "x"
    command = [sys.executable, "-m", "headrace.cli", "compare", CARTPOLE, "--seeds", "1", "--first-seed", "3", "--budget", "1h",
               "--folder", str(folder), "--placement", "serial", "--num-threads", "1"]  # fmt: skip
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    metrics = folder / "runs" / "seed-3" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size)
    started.send_signal(signal.SIGINT)
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "stopped  seed-3" in said
    assert list((folder / "runs" / "seed-3" / "checkpoints").glob("0*"))
    assert not (folder / "runs" / "seed-3" / "ended.json").exists()
