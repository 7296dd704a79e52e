"""The engine `ray`: one actor on each machine of a Ray cluster, which starts that machine's sampling node and watches it; and one
for every learner rank except the first.

Ray places, watches and starts again; trajectories and weights go over the streams of `headrace.cluster.protocol`.
`ray_cluster` says which cluster is used.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from headrace.cluster.engines import Engine
from headrace.cluster.engines.member_process import MemberProcess, member_name
from headrace.cluster.engines.ray_cluster import RayCluster, last_line
from headrace.cluster.protocol import Link
from headrace.cluster.user_code import missing_package
from headrace.config import Config
from headrace.processes.failures import Failures
from headrace.sampling.placements.base import RunFailed
from headrace.transport.credentials import credentials


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
    rank: int  # of a learner rank; 0: it has a sampling node
    asked: Any  # the call that is not answered yet: `machine` at first, later `ended`
    machine: str = ""  # Ray's id of its machine; "" before Ray has placed it
    address: str = ""


class RayEngine(Engine):
    """Raises `MissingExtra` where Ray is not installed, and `ConfigError` if no cluster can be joined or started."""

    sends_code = True

    def __init__(self, config: Config) -> None:
        cluster = config.cluster
        (self._least, self._most), self._failures = cluster.node_range, Failures(config.sampling)
        self._cores = config.sampling.num_workers
        self._learners, self._threads = cluster.learners, config.learning.num_threads or 1
        self._gpus = int(cluster.learners > 1 and config.device != "cpu")  # GPUs of a learner rank
        self.own = credentials(cluster.token_file, cluster.ca, cluster.tls_cert, cluster.tls_key)
        if not self.own.token:
            self.own = replace(self.own, token=secrets.token_urlsafe(32))
        need = f"{self._least} sampling nodes"
        self._cluster = RayCluster("cluster.engine ray", need, self._least, "cluster.engine static", self._cores)
        self._ray = ray = self._cluster.ray
        self.host = here = ray.util.get_node_ip_address()
        self._own_machine = ray.get_runtime_context().get_node_id()
        # Whatever machines there are now: others may come to a cluster that this run has not started.
        self.listen = cluster.listen or ("127.0.0.1:0" if self._cluster.own else f"{here}:0")
        self._actors: list[_Actor] = []
        self._link: Link | None = None

    def start(self, link: Link) -> None:
        host, _, port = link.address.rpartition(":")
        self._link = replace(link, address=f"{self.host}:{port}") if host in ("0.0.0.0", "[::]") else link

    def look(self) -> list[str]:
        texts = []
        if self._cluster.due:
            texts = [text for actor in list(self._actors) if (text := self._take_answer(actor)) is not None]
        return texts + self._cluster.look(self._make_actors)

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
            why = last_line(error)
            return self._note_failure(f"a machine of Ray cannot run a {member_name(actor.rank)}: {why}{missing_package(why)}")
        if actor.machine:
            if answer:
                self._drop(actor)
                return self._note_failure(f"the {member_name(actor.rank)} on Ray's machine {actor.address} has ended ({answer})")
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
        return f"{need}; {self._cluster.size}"

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
        self._cluster.close()
