"""What dies in a cluster, and what the run does. The learner checks every number (`tests/sampling/counting.py`)."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cluster_runs import TRIES, ClusterRun, assert_ends_with_the_command, free_ports, machine_of, start_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HEADRACE_KILLS", 2))
"""Of a test that does the same to one run again and again: how often."""
ENDLESS = {"learning.total_steps": 10**9, "run.checkpoint_interval": 2.0, "learning.update_timeout": 60}


def learns_on(run: ClusterRun, steps: int = 2000) -> None:
    """Wait until so many more steps are learned from."""
    before = run.step()
    run.wait_for("progress", lambda: run.step() > before + steps)


def parts(run: ClusterRun, nodes: Callable[[], list[int]]) -> dict[str, Callable[[], list[int]]]:
    """Finds the processes of each kind, those of a node in one of `nodes()`."""

    def of_a_node(role: str) -> Callable[[], list[int]]:
        return lambda: run.parts(random.choice(nodes()), role)

    return {
        "worker of a node": of_a_node("rollout-"),
        "policy worker of a node": of_a_node("policy-"),
        "uplink of a node": of_a_node("learner-"),
        "whole node": lambda: [random.choice(nodes())],
        "receiver": lambda: run.learner_parts("rollout-"),
        "learner": lambda: run.learner_parts("learner-"),
    }


def test_every_part_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with ClusterRun(tmp_path / "run", **ENDLESS) as run:
        run.wait_for("first steps", lambda: run.step() > 2000)

        def both() -> list[int]:
            return run.wait_for("both nodes", lambda: run.nodes() if len(run.nodes()) == 2 else None)

        kinds = parts(run, both)
        del kinds["policy worker of a node"]  # `inline` has none
        for number in range(int(os.environ.get("HEADRACE_KILLS", 10))):
            name, find = list(kinds.items())[number % len(kinds)]
            pid = random.choice(run.wait_for(name, find))
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            learns_on(run)
            print(f"{name}: learning on after {time.monotonic() - began:.1f} s", flush=True)
            time.sleep(random.random())
        run.wait_for("both nodes", lambda: len(run.nodes()) == 2)
        run.interrupt()
        of_uplinks = [line for line in run.output.splitlines() if ": uplink" in line and " ended (" in line]
        assert of_uplinks
        assert not any("checkpoint" in line for line in of_uplinks)  # that is the learner's


def test_random_kills_of_every_role_on_three_nodes(tmp_path: Path) -> None:
    """At random instants, also while the run has not got over the one before."""
    settings = {"sampling.placement": "served", "run.log_interval": 0.5}
    with ClusterRun(tmp_path / "run", nodes=3, **{**ENDLESS, **settings}) as run:
        run.wait_for("first steps", lambda: run.step() > 2000)
        kinds = parts(run, lambda: run.wait_for("a node", run.nodes))
        killed: Counter[str] = Counter()
        while killed.total() < int(os.environ.get("HEADRACE_KILLS", 10)):
            name = "command" if killed.total() % 20 == 10 else random.choice([*kinds])
            if name == "command":
                run.kill_and_start_again()
                killed[name] += 1
                learns_on(run)
                continue
            victims = kinds[name]()
            if not victims:
                continue  # it is not there at this moment
            with suppress(ProcessLookupError):
                os.kill(random.choice(victims), signal.SIGKILL)
                killed[name] += 1
            time.sleep(2 * random.random())
            if random.random() < 0.5:
                learns_on(run)
        print(dict(killed), flush=True)
        learns_on(run)
        run.wait_for("all nodes", lambda: len(run.nodes()) == 3)
        run.interrupt()


def test_a_hung_node_is_dropped_and_writes_no_more_when_it_goes_on(tmp_path: Path) -> None:
    with ClusterRun(tmp_path / "run", **ENDLESS) as run:
        for hung in range(KILLS):
            run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == hung + 1, 200)  # noqa: B023
            learns_on(run)
            old = random.choice(run.wait_for("both nodes", lambda: run.nodes() if len(run.nodes()) == 2 else None))
            parts = [old, *run.parts(old, "")]
            began = time.monotonic()
            for pid in parts:
                os.kill(pid, signal.SIGSTOP)
            run.wait_for("its loss", lambda: run.output.count("is gone") == hung + 1, 60)  # noqa: B023
            lost = time.monotonic()
            learns_on(run)  # from the other node
            alone = time.monotonic()
            for pid in parts:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            run.wait_for("its return", lambda: run.output.count("2 of 2 are there") == hung + 2, 200)  # noqa: B023
            print(f"hung: out after {lost - began:.1f} s, back {time.monotonic() - alone:.1f} s after it went on", flush=True)
        learns_on(run)
        run.interrupt()


class Link:
    """Passes TCP connections to 127.0.0.2 on to 127.0.0.1, until it is cut: then what is sent is lost, and nobody is told."""

    def __init__(self, ports: range) -> None:
        self.cut = threading.Event()
        self._sockets = [socket.create_server(("127.0.0.2", port)) for port in ports]
        for server in self._sockets:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = server.accept()
                if self.cut.is_set():
                    self._lost.append((near, near))  # it is never answered
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
                except ConnectionRefusedError:  # the learner does not listen yet
                    near.close()
                    continue
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if self.cut.is_set():
                    self._lost.append((one, other))  # neither side sees an end
                    return
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    _lost: ClassVar[list[Any]] = []

    def close(self) -> None:
        for server in self._sockets:
            server.close()


def test_a_link_that_is_cut_and_comes_back(tmp_path: Path) -> None:
    port = free_ports()
    settings = {"cluster.listen": f"127.0.0.1:{port}", **ENDLESS, "run.checkpoint_interval": 60}
    run = ClusterRun(tmp_path / "run", nodes=2, **settings)  # one beside the learner, one elsewhere
    run.environ, plain = machine_of(run, 0), run.environ
    link = Link(range(port, port + 3))
    try:
        with run:
            node = start_node(run, host="127.0.0.2")
            run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output, 250)
            for cuts in range(1, KILLS + 1):
                learns_on(run)
                began = time.monotonic()
                link.cut.set()
                run.wait_for("its loss", lambda: run.output.count("is gone") == cuts, 60)  # noqa: B023
                lost = time.monotonic()
                learns_on(run)
                alone = time.monotonic()
                link.cut.clear()
                run.wait_for("both nodes", lambda: run.output.count("2 of 2 are there") == cuts + 1, 250)  # noqa: B023
                print(f"cut: out after {lost - began:.1f} s, back {time.monotonic() - alone:.1f} s after the link", flush=True)
            learns_on(run)
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130, run.story
            assert node.wait(60) == 0
            run.environ = plain
            run.assert_nothing_left()
    finally:
        link.close()


@TRIES
def test_nodes_elsewhere_end_when_the_command_is_killed(attempt: int, tmp_path: Path) -> None:
    port = free_ports()
    run = ClusterRun(tmp_path / "run", nodes=1, **{"cluster.listen": f"127.0.0.1:{port}", **ENDLESS})
    run.environ, plain = machine_of(run, 0), run.environ
    with run:
        node = start_node(run)
        run.wait_for("first steps", lambda: run.step() > 1000)
        assert_ends_with_the_command(run, node, 75)
        run.environ = plain
        run.assert_nothing_left()


@TRIES
def test_a_node_that_is_interrupted_leaves_and_the_run_goes_on(attempt: int, tmp_path: Path) -> None:
    port = free_ports()
    run = ClusterRun(tmp_path / "run", nodes=2, **{"cluster.listen": f"127.0.0.1:{port}", **ENDLESS})
    run.environ, plain = machine_of(run, 0), run.environ
    with run:
        node = start_node(run)
        run.wait_for("both nodes", lambda: "2 of 2 are there" in run.output and run.step() > 500, 250)
        node.send_signal(signal.SIGINT)
        assert node.wait(60) == 130
        run.wait_for("its leave", lambda: "is gone" in run.output)
        learns_on(run)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.story
        run.environ = plain
        run.assert_nothing_left()


@TRIES
def test_kill_9_of_the_command_leaves_nothing_and_the_same_command_goes_on(attempt: int, tmp_path: Path) -> None:
    with ClusterRun(tmp_path / "run", **ENDLESS) as run:
        for starts in range(1, 4):
            run.wait_for("a checkpoint", run.checkpoints)
            learns_on(run)
            run.kill_and_start_again()
            run.wait_for("its return", lambda: run.output.count("Going on from") == starts)  # noqa: B023
        learns_on(run)
        run.interrupt()
