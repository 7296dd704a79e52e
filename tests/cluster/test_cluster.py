"""Runs whose sampling nodes are other processes: they learn, end, and refuse what cannot work."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_runs import ClusterRun, free_ports, machine_of, start_node

from headrace import train
from headrace.cluster import make_placement, placement
from headrace.cluster.engines.static_engine import StaticEngine
from headrace.cluster.placement import Cluster
from headrace.config import ConfigError
from headrace.envs import describe_run
from headrace.learning.algorithm import make_agent
from headrace.make_config import make_config
from headrace.runs.folder import FolderInUse, RunFolder

pytestmark = pytest.mark.process


def test_two_nodes_train_cartpole_to_its_goal(tmp_path: Path) -> None:
    goal = {"run.goal": 350, "learning.batch_size": 512, "sampling.envs_per_worker": 16, "sampling.rollout": 16}
    goal |= {"run.log_interval": 0.5}  # on a fast machine it takes a few seconds
    with ClusterRun(tmp_path / "run", env="gym/CartPole-v1", imports=None, **goal) as run:
        assert run.end(120) == 0, run.story
        assert "2 of 2 are there" in run.output
        assert "goal" in run.output
        intervals = run.metrics()
        assert intervals[-1]["charts/episodic_return_100"] >= 350
        assert intervals[-1]["cluster/nodes"] == 2
        for name in ("cluster/node-0/SPS", "cluster/node-1/SPS", "lag/max"):  # the last interval may be a moment, with none
            assert max(interval.get(name, 0.0) for interval in intervals) > 0, name
        run.assert_nothing_left()


def test_the_same_command_on_every_machine(tmp_path: Path) -> None:
    port = free_ports()
    settings = {"cluster.listen": f"127.0.0.1:{port}", "learning.total_steps": 20_000}
    run = ClusterRun(tmp_path / "run", nodes=1, **settings)
    run.environ, plain = machine_of(run, 0), run.environ
    with run:
        stranger = start_node(run, token="the-token-of-others")
        node = start_node(run)
        assert "refuses the token" in stranger.communicate(timeout=120)[0]
        assert stranger.returncode != 0
        assert run.end(120) == 0, run.story
        output = node.communicate(timeout=60)[0]
        assert node.returncode == 0, output
        assert f"This machine is node 0 of the run at 127.0.0.1:{port} (counting)" in output
        assert "1 of 1 are there" in run.output
        assert "A call from 127.0.0.1 is refused: its token is not that of" in (run.folder / "log.txt").read_text()
        run.environ = plain
        run.assert_nothing_left()
        for written in run.folder.rglob("*"):
            assert written.is_dir() or b"the-token-of-tests" not in written.read_bytes()


def headrace(run: ClusterRun, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of the run's command with other arguments or variables."""
    done = subprocess.run(
        [*run.command, *arguments], env=run.environ | variables, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_bad_input_gets_a_short_error(tmp_path: Path) -> None:
    port = free_ports()
    two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "HEADRACE_TOKEN": "a" * 20}
    listen = ("--cluster.listen", f"127.0.0.1:{port}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        for number, (code, words, arguments, variables) in enumerate(
            (
                (75, "cannot be reached: no connection", listen, two | {"RANK": "1"}),
                (2, "RANK is 2 and WORLD_SIZE 2: machines have numbers from 0", listen, two | {"RANK": "2"}),
                (2, "RANK is  and WORLD_SIZE 2: machines have numbers", listen, two | {"RANK": ""}),
                (2, f"cannot listen at 127.0.0.1:{port}", listen, {}),
                (1, "0 of at least 1 sampling nodes are there", (), two),
            )
        ):
            run = ClusterRun(tmp_path / f"run{number}", nodes=1, **{"cluster.wait": 1.0})
            ended, output = headrace(run, *arguments, **variables)
            assert words in output, output
            assert ended == code, output
            assert "Traceback" not in output
            run.assert_nothing_left()


def test_weights_that_are_too_large_for_a_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "LARGEST_MESSAGE", 1 << 10)
    settings = {"cluster.nodes": 1, "cluster.engine": "static", "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", "ppo", **settings)
    with pytest.raises(ConfigError, match=r"too large to be sent to nodes .* smaller network"):
        make_placement(config, describe_run(config), make_agent)


def test_what_is_replaced_here_and_elsewhere_counts_together() -> None:
    cluster: Any = Cluster.__new__(Cluster)
    cluster._membership = SimpleNamespace(restarts=0, rank_lost=0.0, notices=[])
    cluster.restarts = cluster._restarts_elsewhere = 0
    cluster._rank_lost = 0.0
    for here, elsewhere, total in ((1, 0, 1), (0, 2, 3), (1, 2, 4), (0, 3, 5)):
        cluster.restarts += here  # as the supervisor does
        cluster._membership.restarts = elsewhere
        assert not list(cluster._noticed(cluster._membership))
        assert cluster.restarts == total


@pytest.mark.parametrize(("began", "here", "seconds", "said"), [
    (999.0, 1, 16, "Waiting for sampling nodes: 1 of 2 are there: start it"),
    (-1.0, 0, 16, "Waiting for sampling nodes: 0 of 2 are there: start it"),
    (-1.0, 1, 16, ""),
    (-1.0, 1, 601, "Training goes on without all sampling nodes: 1 of 2 are there: start it"),
])  # fmt: skip
def test_a_run_waits_at_its_start_and_goes_on_with_fewer_nodes(
    began: float, here: int, seconds: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "monotonic", lambda: 1000.0)
    cluster: Any = Cluster.__new__(Cluster)
    cluster._given = make_config("gym/CartPole-v1", **{"cluster.nodes": 2, "learning.device": "cpu"})
    cluster._engine = SimpleNamespace(missing=lambda here: "start it")
    cluster._membership = membership = SimpleNamespace(nodes=dict.fromkeys(range(here)), ranks={}, notices=[])
    cluster._began, cluster._waiting = began, 1000.0 - seconds
    cluster._check_waiting(membership)
    assert membership.notices == [said] * bool(said)


@pytest.mark.parametrize("fails", ["the placement", "the folder"])
def test_what_an_engine_has_started_ends_if_the_run_cannot_begin(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(StaticEngine, "kill", lambda self: ended.append(True))
    settings = {"cluster.nodes": 1, "cluster.engine": "static", "run.folder": str(tmp_path), "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", "ppo", **settings, **{"run.dashboard": False, "run.video": False})
    if fails == "the placement":
        monkeypatch.setattr(placement, "whole", lambda config: 1 / 0)
    with RunFolder(tmp_path), pytest.raises(ZeroDivisionError if fails == "the placement" else FolderInUse):
        train(config)
    assert ended


def test_a_node_that_cannot_make_the_environment_ends_the_run_with_its_error(tmp_path: Path) -> None:
    port = free_ports()
    world = tmp_path / "world.py"
    world.write_text(
        "import os, gymnasium\nfrom headrace.envs import register\n@register('mine')\ndef make(options, *, render_mode=None):\n"
        "    if 'LACKS_WORLD' in os.environ:\n        import module_of_that_world\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    settings = {"cluster.listen": f"127.0.0.1:{port}", "learning.num_minibatches": 1, "sampling.max_restarts": 1}
    run = ClusterRun(tmp_path / "run", nodes=1, env="mine", imports=world, **settings)
    run.environ, plain = machine_of(run, 0), run.environ
    with run:
        run.environ["LACKS_WORLD"] = "1"
        node = start_node(run)
        assert run.end(120) == 1, run.story
        assert "No module named 'module_of_that_world'" in node.communicate(timeout=60)[0]
        assert "node 0 (" in run.output
        assert "The module module_of_that_world is not installed there: pip install module_of_that_world" in run.output
        run.environ = plain
        run.assert_nothing_left()
