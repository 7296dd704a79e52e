"""Real runs, whose servers are killed, cut off and wrong. Training goes on with the other groups, and ends at its goal."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest
from harness import Run
from network import Host
from remote_servers import ServerProcess, fuzz

ENV = "gym/CartPole-v1"
TOKEN = "a-token-for-tests"
NEVER = 10**9
APPO = {"learning.algorithm": "appo"}
APEX = {
    "learning.algorithm": "apex-dqn",
    "learning.batch_size": 64,
    "replay.capacity": 20_000,
    "replay.minimum": 500,
    "learning.total_steps": NEVER,
}
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def goes_on(run: Run, lines: int = 2) -> None:
    """So many more lines of metrics with more steps each."""
    for _ in range(lines):
        step = run.step()
        run.wait_for(f"more steps than {step}", lambda step=step: run.step() > step, 90)


def steps_without(run: Run, seconds: float) -> int:
    """How far the run gets in some seconds."""
    before = run.step()
    time.sleep(seconds)
    return run.step() - before


def ends(run: Run) -> None:
    """Ctrl-C ends it, and nothing is left."""
    assert run.process is not None
    run.interrupt()


@pytest.mark.parametrize(
    ("algorithm", "kills"),
    [(APPO, 1), *(pytest.param(algorithm, 2, marks=pytest.mark.slow) for algorithm in (APPO, APEX))],
    ids=["appo", "appo-twice", "apex-dqn-twice"],
)
def test_a_killed_server_comes_back(tmp_path: Path, algorithm: dict[str, object], kills: int) -> None:
    """Beside a server with another token, which is never let in, and local environments."""
    token = tmp_path / "token"
    token.write_text("another-token")
    server, stranger = ServerProcess("--num-envs", "16"), ServerProcess("--num-envs", "16", "--token-file", str(token))
    settings = {"learning.total_steps": NEVER, **algorithm, "envs.remote": f"{server.address},local,{stranger.address}"}
    try:
        server.start(tmp_path / "server.log")
        stranger.start(tmp_path / "stranger.log")
        with Run(tmp_path / "run", env=ENV, **settings) as run:
            goes_on(run)
            run.wait_for("the refusal", lambda: f"{stranger.address}: it refuses the token" in run.output)
            for kill in range(1, kills + 1):
                server.kill()
                run.wait_for("the loss", lambda: run.output.count(f"Environment server {server.address}: no connection"))
                goes_on(run)
                server.start(tmp_path / "server.log")
                back = f"Environment server {server.address} is back"
                run.wait_for("its return", lambda kill=kill, back=back: run.output.count(back) >= kill)
                goes_on(run)
            assert "failed" not in run.story
            assert "restart" not in run.story
            ends(run)
    finally:
        server.kill()
        stranger.kill()


@pytest.mark.parametrize("placement", ["served", pytest.param("serial", marks=pytest.mark.slow)])
def test_a_run_whose_only_server_is_gone_waits_and_answers_ctrl_c(placement: str, tmp_path: Path) -> None:
    server = ServerProcess("--num-envs", "16")
    try:
        server.start(tmp_path / "server.log")
        settings = {**APPO, "learning.total_steps": NEVER, "sampling.placement": placement, "envs.remote": server.address}
        with Run(tmp_path / "run", env=ENV, **settings) as run:
            goes_on(run)
            server.kill()
            run.wait_for("the loss", lambda: f"Environment server {server.address}: " in run.output)
            time.sleep(1)
            ends(run)
    finally:
        server.kill()


RAISES = """
import gymnasium, headrace

@headrace.envs.register("my/raises")
class Raises(gymnasium.Wrapper):
    def __init__(self, options, *, render_mode=None):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 50:
            raise KeyboardInterrupt
        return super().step(action)
"""


def test_an_odd_exception_at_a_server_ends_the_run_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    server = ServerProcess("--import", str(tmp_path / "raises.py"), env="my/raises")
    try:
        server.start(tmp_path / "server.log")
        settings = {**APPO, "envs.remote": server.address, "sampling.max_restarts": 1, "learning.total_steps": NEVER}
        with Run(tmp_path / "run", env="my/raises", **settings) as run:
            assert run.end() == 1, run.story
        assert re.search(r"my/raises, .*seed.*, step \d+: step failed: KeyboardInterrupt", run.story), run.story
    finally:
        server.kill()


def test_a_stopped_server_is_slow_and_then_back(tmp_path: Path) -> None:
    """SIGSTOP: the connection stays, nobody answers."""
    server = ServerProcess("--num-envs", "16")
    settings = {**APPO, "learning.total_steps": NEVER, "envs.remote": f"{server.address},local", "envs.remote_timeout": 3.0}
    try:
        server.start(tmp_path / "server.log")
        with Run(tmp_path / "run", env=ENV, **settings) as run:
            goes_on(run)
            server.signal(signal.SIGSTOP)
            run.wait_for("the loss", lambda: f"{server.address}: no answer for 3 s" in run.output)
            goes_on(run)
            server.signal(signal.SIGCONT)
            run.wait_for("its return", lambda: f"{server.address} is back" in run.output)
            goes_on(run)
            ends(run)
    finally:
        server.signal(signal.SIGCONT)
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_at_once_and_training_ends_at_its_goal(tmp_path: Path) -> None:
    """The only good server gets garbage at its port all the time, and is killed once. Beside it: a server of another version,
    which is asked first, and one with another token."""
    token, others = tmp_path / "token", tmp_path / "others"
    token.write_text(TOKEN)
    others.write_text("another-token")
    good = ServerProcess("--num-envs", "16", "--token-file", str(token))
    old = ServerProcess("--num-envs", "16", "--token-file", str(token), protocol=99)
    stranger = ServerProcess("--num-envs", "16", "--token-file", str(others))
    remote = f"{old.address},{good.address},{stranger.address},local"
    settings = {**APPO, "learning.total_steps": NEVER, "envs.remote": remote, "envs.remote_token_file": str(token)}
    answers: list[bytes] = []
    fuzzer = threading.Thread(target=fuzz, args=(good.address, 120, answers, TOKEN, ENV))
    try:
        for server in (good, old, stranger):
            server.start(tmp_path / f"{server.port}.log")
        with Run(tmp_path / "run", env=ENV, **settings) as run:
            goes_on(run)
            run.wait_for("the refusal", lambda: f"{old.address}: the environment server speaks version 99" in run.output)
            run.wait_for("the refusal", lambda: f"{stranger.address}: it refuses the token" in run.output)
            fuzzer.start()
            good.kill()
            run.wait_for("the loss", lambda: f"Environment server {good.address}: " in run.output)
            good.start(tmp_path / "good-again.log")
            run.wait_for("its return", lambda: f"Environment server {good.address} is back" in run.output)
            while fuzzer.is_alive():
                goes_on(run, 1)
            assert not answers, "without the token nothing is answered"
            assert "failed" not in run.story
            goal = run.step() + 500
            ends(run)
            run.command += ["--learning.total-steps", str(goal)]
            run.start()
            assert run.end() == 0, run.story
            assert run.step() >= goal
            run.assert_nothing_left()
    finally:
        for server in (good, old, stranger):
            server.kill()


# -- over a network ---------------------------------------------------------------------------------------------------


def _there(host: Host, tmp_path: Path) -> ServerProcess:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    address = f"{host.address}:7777"
    flags = ["--num-envs", "16", "--token-file", str(token), "--listen", address]
    server = ServerProcess(*flags, prefix=host.prefix)
    server.address = address
    return server.start(tmp_path / "server.log")


def _settings(server: ServerProcess, tmp_path: Path) -> dict[str, object]:
    remote = {"envs.remote": f"{server.address},local", "envs.remote_token_file": str(tmp_path / "token")}
    return {**APPO, "learning.total_steps": NEVER, **remote}


@pytest.mark.slow
def test_a_network_that_is_cut_for_a_minute(tmp_path: Path) -> None:
    with Host() as host:
        server = _there(host, tmp_path)
        try:
            with Run(tmp_path / "run", env=ENV, **_settings(server, tmp_path)) as run:
                goes_on(run)
                host.cut()
                assert steps_without(run, 60) > 0, run.story
                run.wait_for("the loss", lambda: f"Environment server {server.address}: " in run.output)
                host.mend()
                run.wait_for("its return", lambda: f"{server.address} is back" in run.output, 60)
                goes_on(run)
                ends(run)
        finally:
            server.kill()


@pytest.mark.slow
def test_a_network_that_is_cut_for_a_moment_loses_nothing(tmp_path: Path) -> None:
    """Shorter than the time after which a connection counts as lost."""
    with Host() as host:
        server = _there(host, tmp_path)
        try:
            with Run(tmp_path / "run", env=ENV, **_settings(server, tmp_path)) as run:
                goes_on(run)
                host.cut()
                assert steps_without(run, 3) > 0, run.story
                host.mend()
                goes_on(run, 4)
                assert "Environment server" not in run.output
                ends(run)
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [1, 20])
def test_a_network_with_delay(tmp_path: Path, milliseconds: int) -> None:
    with Host() as host:
        server = _there(host, tmp_path)
        try:
            with (
                host.delayed(server.address, milliseconds) as server.address,
                Run(tmp_path / "run", env=ENV, **_settings(server, tmp_path)) as run,
            ):
                goes_on(run, 4)
                server.kill()
                run.wait_for("the loss", lambda: f"Environment server {server.address}: " in run.output)
                goes_on(run)
                ends(run)
        finally:
            server.kill()


@pytest.mark.slow
def test_a_wrong_token_over_a_network(tmp_path: Path) -> None:
    with Host() as host:
        server = _there(host, tmp_path)
        try:
            (tmp_path / "token").write_text("another-token")
            run = Run(tmp_path / "run", env=ENV, **_settings(server, tmp_path))
            with run:
                assert run.end() == 2
            assert f"{server.address}: it refuses the token: both sides must have the same" in run.output
        finally:
            server.kill()
