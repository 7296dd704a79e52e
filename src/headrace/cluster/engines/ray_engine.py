"""The engine `ray`: one actor on each machine of a Ray cluster, which starts that machine's sampling node and watches it; and one
for every learner rank but the first.

Ray places, watches and starts again; trajectories and weights go over the streams of `headrace.cluster.protocol`. A cluster that
is there is used (`RAY_ADDRESS`, or one that this machine belongs to); else one of this machine alone is started, with token
authentication and without a dashboard, and ends with the run.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.cluster.engines import Engine
from headrace.cluster.engines.member_process import MemberProcess
from headrace.cluster.protocol import Link
from headrace.cluster.user_code import missing_package
from headrace.config import Config, ConfigError
from headrace.envs.core.errors import MissingExtra
from headrace.processes import leftovers
from headrace.processes.failures import Failures
from headrace.sampling.placements.base import RunFailed
from headrace.transport.credentials import credentials

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
LOOK_INTERVAL = 2.0
"""Seconds between two questions to every actor whether its node lives."""
HEAD_TIMEOUT = 30.0
"""Seconds after which a run ends whose Ray head does not answer. Ray ends every machine of the cluster 60 s after its head."""
HEAD_NOTICE = 6.0
"""Seconds after which the user is told that the head does not answer."""
RECONNECT_TIMEOUT = "600"
"""Seconds after which Ray ends this process at once because its head is gone: enough for a last checkpoint. Ray's own is 60."""
CONNECT_TIMEOUT = 10.0
"""Seconds that the head may take to accept a connection; `ray.init` would wait for minutes for one that is not there."""


class MemberActor:
    """Runs on its machine for as long as the run wants. Calls may be repeated without harm. `rank`: see `MemberProcess`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._process: MemberProcess | None = None

    def machine(self) -> tuple[str, str]:
        """Ray's id of the machine, and its address."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def ended(self, link: Link) -> str:
        """Start the member if it was not; how it has ended, "" while it lives."""
        if self._process is None:
            self._process = MemberProcess(link, rank=self._rank)
        return "" if self._process.exit_code is None else self._process.end_reason()

    def end(self, timeout: float) -> None:
        """Wait for the member's end, which it was told of, and end it if it takes longer."""
        if self._process is not None:
            self._process.end(monotonic() + timeout)


@dataclass(eq=False)
class _Actor:
    """An actor of the run, which Ray has placed or will place."""

    handle: Any
    rank: int
    """Of a learner rank; 0: it has a sampling node."""
    asked: Any
    """The call that is not answered yet: `machine` at first, later `ended`."""
    machine: str = ""
    """Ray's id of its machine; "" before Ray has placed it."""
    address: str = ""

    @property
    def name(self) -> str:
        """What runs there."""
        return f"learner rank {self.rank}" if self.rank else "sampling node"


def _set_token() -> bool:
    """Have Ray use token authentication; to be called before Ray is imported, which reads its settings once. False if the user
    has given it no token: a cluster without authentication does not mind one of ours."""
    found = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    found = found or Path("~/.ray/auth_token").expanduser().exists()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not found:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return found


class RayEngine(Engine):
    """Raises `MissingExtra` where Ray is not installed, and `ConfigError` if no cluster can be joined or started."""

    sends_code = True

    def __init__(self, config: Config) -> None:
        has_token = _set_token()  # before the import, which reads it
        try:
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT_TIMEOUT)
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without a GPU see those that there are
            os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that this run starts; Ray's own is 15
            import ray
        except ImportError as error:
            raise MissingExtra(
                'cluster.engine ray needs a package that is not installed: pip install "headrace[ray]"; or use cluster.engine '
                "static"
            ) from error
        self._ray: Any = ray
        cluster = config.cluster
        (self._least, self._most), self._failures = cluster.node_range, Failures(config.sampling)
        self._cores = config.sampling.num_workers
        self._learners, self._threads = cluster.learners, config.learning.num_threads or 1
        self._gpus = int(cluster.learners > 1 and config.device != "cpu")
        """GPUs of a learner rank."""
        self.own = credentials(cluster.token_file, cluster.ca, cluster.tls_cert, cluster.tls_key)
        if not self.own.token:
            self.own = replace(self.own, token=secrets.token_urlsafe(32))
        self._notices: list[str] = []
        self._folder: Path | None = None
        """Temporary folder of a cluster that this run has started."""
        self._connect(has_token)
        here = ray.util.get_node_ip_address()
        self._own_machine = ray.get_runtime_context().get_node_id()
        self._alive = self._alive_now()
        machines = {node["NodeManagerAddress"] for node in self._alive}
        self.listen = cluster.listen or ("127.0.0.1:0" if machines <= {here, "127.0.0.1"} else f"{here}:0")
        self._head = ray.get_runtime_context().gcs_address
        self._answered, self._silence = False, 0.0
        """Whether the head has answered since the last look, and for how many seconds it has not, while this process ran."""
        self._placing = threading.Thread(target=self._place)
        self._actors: list[_Actor] = []
        self._link: Link | None = None
        self._looked = 0.0

    def _connect(self, has_token: bool) -> None:
        """Join the cluster that there is, or start one of this machine. Raises `ConfigError` if that is not possible."""
        ray, address = self._ray, os.environ.get("RAY_ADDRESS")
        if ray.is_initialized():
            return
        try:
            if address and (found := re.fullmatch(r"([\w.-]+):(\d+)", address)):
                socket.create_connection((found[1], int(found[2])), CONNECT_TIMEOUT).close()
            ray.init(address="auto", **QUIET)
        except (OSError, OverflowError, ray.exceptions.RayError) as error:
            if address:
                why = str(error).strip().splitlines()[0]
                raise ConfigError(f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined: {why}") from error
            if self._least > 1:
                raise ConfigError(
                    f"{self._least} sampling nodes need a Ray cluster of {self._least} machines, and this machine belongs to "
                    "none: start one (ray start) or name one (RAY_ADDRESS). Several nodes on one machine: cluster.engine static"
                ) from error
            self._folder = leftovers.make_folder("ray")
            cpus = max(os.cpu_count() or 1, self._cores)
            own = {"include_dashboard": False, "num_cpus": cpus, "_node_ip_address": "127.0.0.1"}
            ray.init(_temp_dir=str(self._folder / "s"), **own, **QUIET)
        else:
            if not has_token:
                self._notices.append(
                    "This run has no token for the Ray cluster (RAY_AUTH_TOKEN): without token authentication, whoever reaches "
                    "its ports can run code"
                )

    def _alive_now(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def start(self, link: Link) -> None:
        self._link, self._looked = link, monotonic() - LOOK_INTERVAL

    def look(self) -> list[str]:
        texts, self._notices = self._notices, []
        if (elapsed := monotonic() - self._looked) < LOOK_INTERVAL:
            return texts
        self._looked += elapsed
        for actor in list(self._actors):
            if (text := self._take_answer(actor)) is not None:
                texts.append(text)
        if not self._placing.is_alive():
            self._placing = threading.Thread(target=self._place, name="Ray", daemon=True)
            self._placing.start()
        return texts + self._check_head(min(elapsed, 2 * LOOK_INTERVAL))

    def _place(self) -> None:
        """See which machines there are, and ask for the actors that are missing. This is a thread, since calls to Ray's head
        do not return while it is gone."""
        with suppress(self._ray.exceptions.RayError):
            self._alive = self._alive_now()
            self._make_actors()
            self._answered = True

    def _make_actors(self) -> None:
        ranks = set(range(1, self._learners)) - {actor.rank for actor in self._actors}
        nodes = self._most - sum(not actor.rank for actor in self._actors)
        for rank in (*sorted(ranks), *[0] * nodes):
            # No machine has two of a kind: those that have one are left out, and of two that Ray places at once one is dropped.
            used = self._used_by(bool(rank))
            remote = self._ray.remote(MemberActor).options(
                num_cpus=self._threads if rank else self._cores, num_gpus=self._gpus if rank else 0,
                scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0,
                label_selector={"ray.io/node-id": f"!in({','.join(used)})"} if used else {},
            )  # fmt: skip
            handle = remote.remote(rank)
            self._actors.append(_Actor(handle, rank, handle.machine.remote()))

    def _used_by(self, ranks: bool) -> list[str]:
        """Ray's ids of the machines that have a learner rank, or those that have a node."""
        used = [actor.machine for actor in self._actors if actor.machine and bool(actor.rank) == ranks]
        return [self._own_machine, *used] if ranks else used  # the first rank is this process

    def _check_head(self, elapsed: float) -> list[str]:
        """What the user should know of Ray's head. Raises `RunFailed` if it is gone for too long."""
        before = self._silence
        self._silence = 0.0 if self._answered else before + elapsed
        self._answered = False
        if self._silence > HEAD_TIMEOUT:
            raise RunFailed(
                f"Ray's head {self._head} has not answered for {HEAD_TIMEOUT:.0f} s, and Ray ends all machines of a cluster "
                "without one. The same command goes on from the last checkpoint as soon as there is a cluster"
            )
        if before > HEAD_NOTICE and not self._silence:
            return [f"Ray's head {self._head} answers again"]
        if before <= HEAD_NOTICE < self._silence:
            left = HEAD_TIMEOUT - self._silence
            return [f"Ray's head {self._head} does not answer: the run ends with a checkpoint if it is silent {left:.0f} s more"]
        return []

    def _take_answer(self, actor: _Actor) -> str | None:
        """Take an actor's answer, if there is one, and ask again; returns what the user should know. An actor that is of no more
        use is forgotten."""
        ray = self._ray
        if not ray.wait([actor.asked], timeout=0)[0]:
            return None
        try:
            answer = ray.get(actor.asked)
        except ray.exceptions.RayError as error:
            self._drop(actor)
            if actor.machine and isinstance(error, ray.exceptions.RayActorError):
                return f"Ray has lost the machine {actor.address}, or the actor there; another one is used if there is room"
            why = _last_line(error)
            return self._note_failure(f"a machine of Ray cannot run a {actor.name}: {why}{missing_package(why)}")
        if actor.machine:
            if answer:
                self._drop(actor)
                return self._note_failure(f"the {actor.name} on Ray's machine {actor.address} has ended ({answer})")
        elif answer[0] in self._used_by(bool(actor.rank)):
            self._drop(actor)
            return None
        else:
            actor.machine, actor.address = answer
        actor.asked = actor.handle.ended.remote(self._link)
        return None

    def _drop(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        self._ray.kill(actor.handle)

    def _note_failure(self, what: str) -> str:
        if too_many := self._failures.add(monotonic()):
            raise RunFailed(f"{what}, {too_many}")
        return f"{what[0].upper()}{what[1:]}; another one starts"

    def missing(self, here: int) -> str:
        need = f"{self._least} nodes need {self._least} machines with {self._cores} CPUs each (sampling.num_workers)"
        if self._learners > 1:
            need += f", and {self._learners - 1} of {self._learners} learner ranks machines other than this one"
        cores, count = ", ".join(f"{node['Resources'].get('CPU', 0):.0f}" for node in self._alive), len(self._alive)
        return f"{need}; this Ray cluster has {count} machine{'' if count == 1 else 's'}, with {cores} CPUs"

    def stop(self, timeout: float) -> None:
        ray = self._ray
        if not ray.is_initialized():
            return
        with suppress(ray.exceptions.RayError):
            ends = [actor.handle.end.remote(timeout) for actor in self._actors if actor.machine]
            ray.wait(ends, num_returns=len(ends), timeout=timeout)
        self.kill()

    def kill(self) -> None:
        ray = self._ray
        if not ray.is_initialized():
            return
        with suppress(ray.exceptions.RayError):
            for actor in self._actors:
                ray.kill(actor.handle)
        self._actors.clear()
        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _last_line(error: Exception) -> str:
    """The last line of an error of Ray, which ends with the cause's type and text."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()
