"""The engine `ray`: one actor on each machine of a Ray cluster, which starts that machine's sampling node and watches it.

Ray places, watches and starts again; trajectories and weights go over the streams of `headrace.cluster.protocol`. A cluster that
is there is used (`RAY_ADDRESS`, or one that this machine belongs to); else one of this machine alone is started, with token
authentication and without a dashboard, and ends with the run.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.cluster.engines import Engine
from headrace.cluster.engines.node_process import NodeProcess
from headrace.cluster.protocol import Link
from headrace.config import Config, ConfigError
from headrace.envs.core.errors import MissingExtra
from headrace.processes import leftovers
from headrace.processes.failures import Failures
from headrace.sampling.placements.base import RunFailed
from headrace.transport.credentials import credentials

PLACE_TIMEOUT = 10.0
"""Seconds that Ray may take to reserve the machines, before the run says what is there and goes on waiting."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
LOOK_INTERVAL = 2.0
"""Seconds between two questions to every actor whether its node lives."""


class NodeActor:
    """Runs on its machine for as long as the run wants. Calls may be repeated without harm."""

    def __init__(self, link: Link) -> None:
        self._process = NodeProcess(link)

    def ended(self) -> str:
        """How the node has ended; "" while it lives."""
        return "" if self._process.exit_code is None else self._process.end_reason()

    def end(self, timeout: float) -> None:
        """Wait for the node's end, which it was told of, and end it if it takes longer."""
        self._process.end(monotonic() + timeout)


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

    def __init__(self, config: Config) -> None:
        has_token = _set_token()  # before the import, which reads it
        try:
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without a GPU see those that there are
            import ray
        except ImportError as error:
            raise MissingExtra(
                'cluster.engine ray needs a package that is not installed: pip install "headrace[ray]"; or use cluster.engine '
                "static"
            ) from error
        self._ray: Any = ray
        cluster = config.cluster
        self._nodes, self._failures = cluster.nodes or 1, Failures(config.sampling)
        self._cores = config.sampling.num_workers
        self.own = credentials(cluster.token_file, cluster.ca, cluster.tls_cert, cluster.tls_key)
        if not self.own.token:
            self.own = replace(self.own, token=secrets.token_urlsafe(32))
        self._notices: list[str] = []
        self._folder: Path | None = None
        """Temporary folder of a cluster that this run has started."""
        self._connect(has_token)
        here = ray.util.get_node_ip_address()
        machines = {node["NodeManagerAddress"] for node in self._alive()}
        self.listen = cluster.listen or ("127.0.0.1:0" if machines <= {here, "127.0.0.1"} else f"{here}:0")
        self._group: Any = None
        self._actors: dict[int, Any] = {}
        self._asked: dict[int, Any] = {}
        self._link: Link | None = None
        self._looked = 0.0

    def _connect(self, has_token: bool) -> None:
        """Join the cluster that there is, or start one of this machine. Raises `ConfigError` if that is not possible."""
        ray, address = self._ray, os.environ.get("RAY_ADDRESS")
        if ray.is_initialized():
            return
        try:
            ray.init(address="auto", **QUIET)
        except (ConnectionError, ray.exceptions.RayError) as error:
            if address:
                why = str(error).strip().splitlines()[0]
                raise ConfigError(f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined: {why}") from error
            if self._nodes > 1:
                raise ConfigError(
                    f"{self._nodes} sampling nodes need a Ray cluster of {self._nodes} machines, and this machine belongs to "
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

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def start(self, link: Link) -> None:
        self._link = link
        ray = self._ray
        from ray.util.placement_group import placement_group

        bundle = {"CPU": float(self._cores)}
        self._group = placement_group([bundle] * self._nodes, strategy="STRICT_SPREAD")
        if not self._group.wait(PLACE_TIMEOUT):
            self._notices.append(f"Ray has not placed the sampling nodes yet: {self.missing(0)}")
        for k in range(self._nodes):
            self._actors[k] = self._actor(ray, k)

    def _actor(self, ray: Any, k: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=k)
        options = {"num_cpus": self._cores, "max_restarts": -1, "max_task_retries": 0}
        return ray.remote(NodeActor).options(scheduling_strategy=where, **options).remote(self._link)

    def look(self) -> list[str]:
        ray = self._ray
        texts, self._notices = self._notices, []
        if monotonic() < self._looked + LOOK_INTERVAL:
            return texts
        self._looked = monotonic()
        for k, actor in self._actors.items():
            asked = self._asked.setdefault(k, None)
            if asked is None:
                self._asked[k] = actor.ended.remote()
                continue
            ready, _ = ray.wait([asked], timeout=0)
            if not ready:
                continue
            self._asked[k] = None
            try:
                ended = ray.get(asked)
            except ray.exceptions.RayError:  # Ray starts the actor again, as soon as there is a machine
                continue
            if ended:
                texts.append(self._start_again(k, ended))
        return texts

    def _start_again(self, k: int, ended: str) -> str:
        what = f"The sampling node of Ray's actor {k} has ended ({ended})"
        if too_many := self._failures.add(monotonic()):
            raise RunFailed(f"{what}, {too_many}")
        self._ray.kill(self._actors[k], no_restart=True)
        self._actors[k] = self._actor(self._ray, k)
        return f"{what}; another one starts"

    def missing(self, here: int) -> str:
        alive = self._alive()
        cores = ", ".join(f"{node['Resources'].get('CPU', 0):.0f}" for node in alive)
        return (
            f"{self._nodes} nodes need {self._nodes} machines with {self._cores} CPUs each (sampling.num_workers); this Ray "
            f"cluster has {len(alive)} machine{'' if len(alive) == 1 else 's'}, with {cores} CPUs"
        )

    def stop(self, timeout: float) -> None:
        ray = self._ray
        if not ray.is_initialized():
            return
        with suppress(ray.exceptions.RayError):
            ends = [actor.end.remote(timeout) for actor in self._actors.values()]
            ray.wait(ends, num_returns=len(ends), timeout=timeout)
        self.kill()

    def kill(self) -> None:
        ray = self._ray
        if not ray.is_initialized():
            return
        with suppress(ray.exceptions.RayError):
            for actor in self._actors.values():
                ray.kill(actor, no_restart=True)
            if self._group is not None:
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(self._group)
        self._actors.clear()
        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
