"""Runs of an experiment on the nodes of a Ray cluster, one on each node at a time.

A run has an actor on its node, which takes the node's CPUs and GPUs and starts the same command as on this machine. The run's
folder is in the node's temporary directory, and is brought back while the run goes on, so the machines need share no file system.
The actor dies with this process, the run with its actor.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.cluster import protocol
from headrace.cluster.engines.ray_cluster import RayCluster, last_line
from headrace.cluster.user_code import extract, missing_package, names_in
from headrace.config import ConfigError
from headrace.envs.core.imports import absolute
from headrace.experiments.mirror import Changes, Mirror
from headrace.experiments.places import LOST, Places, start_run
from headrace.processes import leftovers
from headrace.transport.messages import Refused

LOOK = 1.0  # seconds that an actor waits for the end of its run before it answers with what has changed
LOST_PAUSE = 30.0
"""Seconds for which a node gets no run after one was lost there: Ray may notice so late that the node is gone."""
STOPPED = 130  # exit code of a run that was stopped before it began


class NodeActor:
    """On a node: a run, and what has changed in its folder."""

    def __init__(self) -> None:
        home = leftovers.make_folder("run")
        leftovers.remove_at_end(home)
        self._run, self._code = home / "run", home / "code"
        self._run.mkdir()
        self._code.mkdir()
        self._mirror = Mirror(self._run)
        self._process: subprocess.Popen[bytes] | None = None

    def versions(self) -> dict[str, Any]:
        """What both sides must have in common."""
        return protocol.versions()

    def start(self, code: bytes, arguments: Sequence[str], *before: Changes) -> None:
        """Start the run, which goes on from what its folder held `before`. `code`: see `user_code.pack`."""
        for changes in before:
            changes.write(self._run)
        for _ in self._mirror.all():
            pass
        found = extract(code, self._code) if code else []
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *found)))
        self._process = start_run(arguments, self._run, cwd=self._code, env={**os.environ, "PYTHONPATH": path})

    def look(self, wait: float) -> tuple[int | None, Changes]:
        """The run's exit code, None while it goes on, and what has changed, after up to `wait` seconds."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        return self._process.poll(), self._mirror.changes()

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def _in_background(call: Callable[[], None]) -> threading.Thread:
    """Creating an actor and killing one does not return while Ray's head is gone, and the command must notice that."""
    thread = threading.Thread(target=call, name="Ray", daemon=True)
    thread.start()
    return thread


class NodeRun:
    """A run on a node. `code`: see `user_code.pack`; it may be what `ray.put` gave."""

    def __init__(self, ray: Any, node: dict[str, Any], code: Any, arguments: Sequence[str], folder: Path) -> None:
        self.node, self._address, self._folder = node["NodeID"], node["NodeManagerAddress"], folder
        self._ray, self._start = ray, (code, arguments)
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self.node, soft=False)
        room = {"num_cpus": node["Resources"]["CPU"], "num_gpus": node["Resources"].get("GPU", 0)}
        self._options = {**room, "scheduling_strategy": there, "max_restarts": 0, "max_task_retries": 0}
        self._actor: Any = None
        self._asked: Any = None
        """The call that is not answered yet: `versions`, then `start`, then `look` again and again."""
        self._failed: Exception | None = None
        self._begun = self._stopped = self.lost = False
        self._creating = _in_background(self._create)

    def _create(self) -> None:
        try:
            self._actor = self._ray.remote(NodeActor).options(**self._options).remote()
            self._asked = self._actor.versions.remote()
        except Exception as error:
            self._failed = error

    def end(self) -> None:
        """Have its actor killed, and the run with it if it goes on."""

        def kill() -> None:
            self._creating.join()
            with suppress(Exception):  # it is dead already, or the cluster was left meanwhile
                self._ray.kill(self._actor)

        _in_background(kill)

    def poll(self) -> int | None:
        """Its exit code, `LOST`, or None while it goes on. Raises `ConfigError` where the node cannot train."""
        if self._stopped and not self._begun:
            return STOPPED
        if self._creating.is_alive() or (self._failed is None and not self._ray.wait([self._asked], timeout=0)[0]):
            return None
        errors, wait = self._ray.exceptions, LOOK
        try:
            if self._failed is not None:
                raise self._failed
            answer = self._ray.get(self._asked)
            if not self._begun:
                protocol.check_versions(answer, self._address, "this machine")
        except (errors.RayError, Refused) as error:
            lost = isinstance(error, errors.RayActorError | errors.ActorUnschedulableError)
            if lost and not getattr(error, "actor_init_failed", False):  # if it has, a package is missing there
                self.lost = True
                return LOST
            why = last_line(error)
            raise ConfigError(f"a run cannot start on Ray's machine {self._address}: {why}{missing_package(why)}") from error
        if not self._begun:
            before = map(self._ray.put, Mirror(self._folder).all())
            self._asked, self._begun = self._actor.start.remote(*self._start, *before), True
            return None
        if answer is not None:
            code, changes = answer
            changes.write(self._folder)
            if code is not None and not changes.more:
                return code  # type: ignore[no-any-return]
            wait = 0.0 if changes.more else LOOK
        self._asked = self._actor.look.remote(wait)
        return None

    def send_signal(self, number: int, /) -> None:
        """Send it a signal; one that has not begun does not begin."""
        self._stopped = True
        if self._begun:
            self._actor.send_signal.remote(number)


class RayNodes(Places):
    """`count` nodes of a Ray cluster. `code`: of the user, see `user_code.pack`.

    Raises `MissingExtra` where Ray is not installed, and `ConfigError` where no cluster has so many nodes with CPUs.
    """

    def __init__(self, count: int, code: bytes) -> None:
        here = f"--parallel {count} without --on ray"
        self._cluster = RayCluster("--on ray", f"--parallel {count} --on ray: {count} runs at a time", count, here)
        if len(_with_cpus(self._cluster.alive)) < count:
            raise ConfigError(f"--parallel {count} --on ray: each run needs a node with CPUs of its own; {self._cluster.size}")
        self.count, self._names = count, names_in(code) if code else {}
        self._code = self._cluster.ray.put(code)
        self._runs: list[NodeRun] = []
        self._lost: dict[str, float] = {}  # by node, when a run was lost there (monotonic)

    def _free(self) -> list[dict[str, Any]]:
        """Nodes on which a run may begin."""
        out = {node for node, when in self._lost.items() if monotonic() < when + LOST_PAUSE} | {run.node for run in self._runs}
        return [node for node in _with_cpus(self._cluster.alive) if node["NodeID"] not in out]

    @property
    def free(self) -> bool:
        return len(self._runs) < self.count and bool(self._free())

    def start(self, arguments: Sequence[str], folder: Path) -> NodeRun:
        words = [*map(self._there, arguments)]
        self._runs.append(run := NodeRun(self._cluster.ray, self._free()[0], self._code, words, folder))
        return run

    def _there(self, word: str) -> str:
        """A word of the command line as it is on a node, where files of the imports have other names."""
        before, equals, name = word.rpartition("=")
        return before + equals + self._names.get(absolute(name), name)

    def end(self, run: NodeRun) -> None:
        self._runs.remove(run)
        if run.lost:
            self._lost[run.node] = monotonic()
        run.end()

    def look(self) -> list[str]:
        return self._cluster.look()

    def close(self) -> None:
        self._cluster.close()


def _with_cpus(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for node in nodes if node["Resources"].get("CPU")]
