"""Ranks: the same mathematics as one learner with all data; real runs with several ranks, and what happens when one dies."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import headrace
from headrace import config as configs
from headrace.accelerator.ranks import RankLost, Ranks
from headrace.config import Config, ConfigError, hardware
from headrace.config.validation import validate
from headrace.learning.algorithm import algorithm_names, declaration
from headrace.make_config import make_config
from headrace.processes import ranks as launch
from headrace.runs import checkpoint
from headrace.sampling.worker_process import actor_seed, environment_seed

pytestmark = pytest.mark.process

WORK = Path(__file__).with_name("rank_work.py")
PYTHON = sys.executable
# Behind the folders of other tests, which have modules of the same names.
sys.path.append(str(Path(__file__).parents[1] / "faults"))
from harness import Run  # noqa: E402


def work(size: int, folder: Path, program: Path = WORK) -> list[str]:
    """The output of each of `size` ranks."""
    processes = []
    for index in range(size):
        sizes = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        environment = {"RANK": str(index), "LOCAL_RANK": str(index), hardware.RANK_STORE: str(folder / "store"), **sizes}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(program)],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environment},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size
    return outputs


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return json.loads(work(1, tmp_path_factory.mktemp("alone"))[0])


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_learn_as_one_with_the_joined_batch(size: int, alone: dict[str, Any], tmp_path: Path) -> None:
    outputs = work(size, tmp_path)
    ranks = [json.loads(output.splitlines()[0]) for output in outputs]
    for rank in ranks:
        assert rank == ranks[0]  # weights, counters, statistics: the same bits
    for mine, whole in zip(ranks[0]["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-5)
    for mine, whole in zip(ranks[0]["normalizer"], alone["normalizer"], strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-12)
    assert (ranks[0]["global_step"], ranks[0]["stale"]) == (alone["global_step"], alone["stale"])
    assert ranks[0]["stale"] == 5 * 7
    assert ranks[0]["joined"] == [float(i) for index in range(size) for i in range(index)]
    assert ranks[0]["largest"] == min(2, size - 1)
    assert (ranks[0]["first"], ranks[0]["nothing"]) == ("from 0", None)
    lost = outputs[0].splitlines()[1:]  # the last rank left without a word
    assert len(lost) == 1, "the message is one line"
    assert lost[0].startswith(f"lost: rank 0 of {size} lost the others (")
    assert lost[0].endswith("When all ranks are started again, the run goes on from its newest checkpoint")


def test_two_ranks_with_half_the_batch_each_learn_as_one_by_every_algorithm(tmp_path: Path) -> None:
    """The shares have different numbers of valid rows, and IMPALA's loss is a sum."""
    program = WORK.with_name("rank_algorithms.py")
    for folder in (one := tmp_path / "one", two := tmp_path / "two"):
        folder.mkdir()
    whole = json.loads(work(1, one, program)[0])
    halves = [json.loads(output) for output in work(2, two, program)]
    assert set(whole) == {name for name in algorithm_names() if declaration(name).built_in}, "every algorithm"
    assert halves[0] == halves[1], "the same bits"
    for name, weights in whole.items():
        for mine, theirs in zip(halves[0][name], weights, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-6, err_msg=name)


def test_what_was_learned_is_kept_when_the_others_are_lost_in_the_agreement_on_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = itertools.count()

    def largest(self: Ranks, number: int) -> int:
        if next(agreed) == 3:
            raise RankLost("rank 0 of 2 lost the others")
        return number

    monkeypatch.setattr(Ranks, "largest", largest)
    run = {"run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "sampling.placement": "serial"}
    small = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "sampling.rollout": 8, "learning.batch_size": 64}
    config = make_config("gym/CartPole-v1", **run, **small, **{"learning.device": "cpu", "policy.mlp": [8]})
    with pytest.raises(RankLost):
        headrace.train(config)
    kept = checkpoint.load_newest(tmp_path / "checkpoints")
    assert kept is not None, "what was learned is lost"
    assert kept.unpack()["progress"]["updates"] > 0


def test_every_rank_has_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configs.override(Config(), **{"sampling.num_workers": 3, "sampling.envs_per_worker": 4})
    seeds: list[int] = []
    actors: list[int] = []
    for rank in range(4):
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("RANK", str(rank))
        seeds += [environment_seed(config, worker) + i for worker in range(3) for i in range(4)]
        actors += [actor_seed(config, number) for number in range(8)]
    assert len(set(seeds)) == len(seeds)
    assert len(set(actors)) == len(actors)


def test_gpus_and_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configs.override(Config(), **{"learning.device": "cuda", "sampling.placement": "device"})
    cores = config.learner_threads
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert hardware.rank() == hardware.Rank(3, 4, 1, 2)
    assert config.device == "cuda:1"
    assert config.learner_threads == max(1, cores // 2)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"population.size is 2 and there are 2 ranks"):
        validate(configs.override(Config(), **{"learning.num_devices": 2, "population.size": 2}))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="torchrun started 4 ranks"):
        launch.needs_launch(configs.override(Config(), **{"learning.num_devices": 2}))
    assert not launch.needs_launch(configs.override(Config(), **{"learning.num_devices": 4}))


def test_ranks_that_nobody_has_started_are_refused(tmp_path: Path) -> None:
    config = headrace.make_config("gym/CartPole-v1", **{"learning.num_devices": 2, "run.folder": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=r"headrace train --learning.num-devices 2"):
        headrace.train(config)
    assert not (tmp_path / "run").exists()


def cartpole(folder: Path, ranks: int, **settings: Any) -> Run:
    base = {"learning.num_devices": ranks, "learning.total_steps": 10**8, "sampling.num_workers": 1, "learning.algorithm": "ppo"}
    return Run(folder, env="gym/CartPole-v1", **{**base, **settings})


def children(run: Run) -> list[psutil.Process]:
    """The ranks of a run, in order."""
    assert run.process is not None
    found = {}
    for child in psutil.Process(run.process.pid).children():
        with suppress(psutil.Error):
            found[child.environ().get("RANK")] = child  # one that does not yet run its program has none
    found.pop(None, None)
    return [found[rank] for rank in sorted(found)]


def test_a_run_is_interrupted_and_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    with cartpole(tmp_path / "run", 2) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        assert run.process is not None
        run.interrupt()
    step = run.step()
    assert step > 0
    with cartpole(tmp_path / "run", 1, **{"learning.total_steps": step + 500}) as again:
        assert again.end() == 0, again.story
    assert "Going on from" in again.output
    assert again.step() >= step + 500


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_all_ranks_with_it_and_leaves_nothing(tmp_path: Path) -> None:
    with cartpole(tmp_path / "run", 2) as run:
        run.wait_for("two ranks and a checkpoint", lambda: children(run)[1:] and run.checkpoints())
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        run.assert_nothing_left()


@pytest.mark.parametrize("victim", ["a rank", pytest.param("its learner", marks=pytest.mark.slow)])
def test_a_rank_is_killed_and_all_go_on_from_the_newest_checkpoint(victim: str, tmp_path: Path) -> None:
    with cartpole(tmp_path / "run", 2) as run:
        run.wait_for("a checkpoint", run.checkpoints)
        rank = run.wait_for("two ranks", lambda: children(run)[1:])[0]
        if victim == "a rank":
            rank.kill()
        else:
            learner = next(p for p in rank.children(recursive=True) if p.name().startswith("learner"))
            learner.kill()
        run.wait_for("the message", lambda: "all ranks start again" in run.output)
        run.wait_for("the checkpoint taken up", lambda: "Going on from" in run.output)
        step = run.step()
        run.wait_for("more steps", lambda: run.step() > step)
        assert run.process is not None
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 130, run.story
        run.assert_nothing_left()


def under_torchrun(folder: Path, **settings: Any) -> Run:
    """Two ranks that torchrun starts; they find each other by its environment variables."""
    run = cartpole(folder, 1, **settings)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run.command = [*launcher, *run.command[1:]]
    return run


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["served", "device"])
def test_torchrun_starts_ranks_of_one_run(placement: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sampling.placement": placement, "learning.total_steps": 4_000}
    if placement == "device":
        settings |= {"sampling.num_groups": 1, "learning.batch_size": 7 * 6, "learning.num_minibatches": 2}
    with under_torchrun(tmp_path / "run", **settings) as run:
        assert run.end(200) == 0, run.story
        assert not run.pids()
    assert 4_000 <= run.step() < 5_000  # of both ranks together
    assert run.output.count("Learning curve:") <= 1  # rank 0 alone writes and draws
    assert [path.parent for path in tmp_path.rglob("metrics.jsonl")] == [tmp_path / "run"]


@pytest.mark.slow
def test_a_rank_of_torchrun_that_dies_ends_the_run_with_a_message(tmp_path: Path) -> None:
    with under_torchrun(tmp_path / "run") as run:
        run.wait_for("a checkpoint", run.checkpoints)
        run.wait_for("two ranks", lambda: children(run)[1:])[0].kill()
        assert run.end(60) == 1, run.story
        deadline = time.monotonic() + 30
        while run.pids() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not run.pids()
    assert "SIGKILL" in run.output or "Signal 9" in run.output
    assert run.step() > 0


# -- the launcher, with ranks that are shell scripts ------------------------------------------------------------------------


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Lets every rank be a shell script, which notes its start in the file that is returned; the grace is 0.3 s. In the scripts
    `all_started` waits until every rank has."""
    monkeypatch.setattr(launch, "GRACE", 0.3)
    started = tmp_path / "started"

    def write(text: str) -> Path:
        script = tmp_path / "rank"
        wait = f'all_started() {{ while [ $(($(wc -l < "{started}") % 2)) = 1 ]; do sleep 0.02; done; }}'
        script.write_text(f'#!/bin/sh\n{wait}\necho $RANK >> "{started}"\n{text}\n')
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return started

    return write


def two_ranks(**settings: Any) -> Config:
    return configs.override(Config(), **{"learning.num_devices": 2, **settings})


def test_rank_0_is_given_the_time_that_it_takes_when_the_others_are_done(scripted: Callable[[str], Path]) -> None:
    """It draws the curve, films and evaluates."""
    started = scripted("[ $RANK = 0 ] && sleep 1\nexit 0")
    assert launch.launch([], two_ranks()) == 0
    assert len(started.read_text().split()) == 2, "a run that was finished was started again"


@pytest.mark.parametrize(("ends", "code"), [(0, 0), (3, 3)])
def test_who_does_not_end_behind_the_others_is_ended_and_that_is_no_reason_to_start_again(
    ends: int, code: int, scripted: Callable[[str], Path]
) -> None:
    started = scripted(f"[ $RANK = 0 ] && all_started && exit {ends}\nexec sleep 200")
    began = time.monotonic()
    assert launch.launch([], two_ranks()) == code
    assert time.monotonic() < began + 100
    assert len(started.read_text().split()) == 2


def test_ranks_that_are_killed_too_often_end_the_run_and_the_user_is_told(
    scripted: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    started = scripted("[ $RANK = 1 ] && all_started && kill -9 $$\nexec sleep 200")
    began = time.monotonic()
    assert launch.launch([], two_ranks(**{"sampling.max_restarts": 1})) == 1
    assert time.monotonic() < began + 100
    assert len(started.read_text().split()) == 4
    told = capsys.readouterr().out
    assert "rank 1 was ended by SIGKILL; all ranks start again from the newest checkpoint (restart 1)" in told
    assert "SIGKILL, failure 2 within 3,600 s (sampling.max_restarts: 1)" in told


def test_ranks_that_start_again_are_told_when_they_first_started(scripted: Callable[[str], Path], tmp_path: Path) -> None:
    before, told = time.perf_counter(), tmp_path / "told"
    scripted(f'echo "begun ${hardware.RUN_BEGAN}" >> {told}\n[ $RANK = 1 ] && all_started && kill -9 $$\nexec sleep 200')
    launch.launch([], two_ranks(**{"sampling.max_restarts": 2}))
    lines = sorted(told.read_text().splitlines())
    assert lines[:2] == ["begun ", "begun "]
    (began,) = {float(line.removeprefix("begun ")) for line in lines[2:]}
    assert len(lines) == 6
    assert before < began < time.perf_counter()


def test_a_launcher_that_is_killed_leaves_no_file(scripted: Callable[[str], Path], tmp_path: Path) -> None:
    started, temporary = scripted("exec sleep 20"), tmp_path / "temporary"
    temporary.mkdir()
    text = f"""
import sys
from headrace import config as configs
from headrace.processes import ranks as launch
sys.executable = {sys.executable!r}
launch.launch([], configs.override(configs.Config(), **{{"learning.num_devices": 2}}))
"""
    process = subprocess.Popen([PYTHON, "-c", text], env={**os.environ, "TMPDIR": str(temporary)}, start_new_session=True)
    deadline = time.monotonic() + 60
    while not started.exists() or len(started.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not list(temporary.iterdir())


def test_ranks_that_are_killed_rarely_are_always_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, now = iter([*[([-9, 75], False)] * 5, ([0, 0], False)]), iter(range(0, 10**6, 4000))
    monkeypatch.setattr(launch, "_run_ranks", lambda *_: next(ends))
    monkeypatch.setattr(launch.time, "monotonic", lambda: float(next(now)))
    assert launch.launch([], two_ranks(**{"sampling.max_restarts": 1})) == 0


def test_a_signal_reaches_ranks_that_start_behind_it(scripted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scripted("exec sleep 200")
    popen = subprocess.Popen

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if kwargs["env"]["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return popen(*args, **kwargs)

    monkeypatch.setattr(launch.subprocess, "Popen", interrupted)
    began = time.monotonic()
    assert launch.launch([], two_ranks()) == -signal.SIGTERM
    assert time.monotonic() < began + 100
