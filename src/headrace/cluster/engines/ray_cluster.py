"""The Ray cluster that a command uses.

One that is there is joined (`RAY_ADDRESS`, or the one that this machine belongs to); else one of this machine alone is started,
with token authentication and without a dashboard, and ends with the command.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.config import ConfigError
from headrace.config.errors import MissingExtra
from headrace.processes import leftovers
from headrace.processes.start import folder_for_sockets
from headrace.sampling.placements.base import RunFailed

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
LOOK_INTERVAL = 2.0  # seconds between two looks at the cluster's machines
HEAD_TIMEOUT = 30.0
"""Seconds after which a run ends whose Ray head does not answer. Ray ends every machine of the cluster 60 s after its head."""
HEAD_NOTICE = 6.0  # seconds after which the user is told that the head does not answer
RECONNECT_TIMEOUT = "600"
"""Seconds after which Ray ends this process at once because its head is gone: enough for a last checkpoint. Ray's own is 60."""
SOCKET = "/headrace-ray-01234567/s/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
"""Path of Ray's socket with the longest path, below the temporary folder."""
CONNECT_TIMEOUT = 10.0
"""Seconds that the head may take to accept a connection; `ray.init` would wait for minutes for one that is not there."""


def _set_token() -> bool:
    """Have Ray use token authentication; to be called before Ray is imported, which reads its settings once. False if the user
    has given it no token: a cluster without authentication does not mind one of ours."""
    found = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    found = found or Path("~/.ray/auth_token").expanduser().exists()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not found:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return found


class RayCluster:
    """Raises `MissingExtra` where Ray is not installed, and `ConfigError` if no cluster can be joined or started.

    `user`: the setting that asks for Ray. `need`: who needs machines, and `machines`: how many. `instead`: what does without Ray.
    `cores`: CPUs that a cluster of this machine alone must have.
    """

    def __init__(self, user: str, need: str, machines: int, instead: str, cores: int = 1) -> None:
        has_token = _set_token()  # before the import, which reads it
        try:
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT_TIMEOUT)
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without a GPU see those that there are
            os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that this command starts; Ray's own is 15
            import ray
        except ImportError as error:
            raise MissingExtra(
                f'{user} needs a package that is not installed: pip install "headrace[ray]"; or use {instead}'
            ) from error
        self.ray: Any = ray
        self._joined = not ray.is_initialized()
        """Whether this process belongs to the cluster because of this object, and not because the user's program joined it."""
        self.notices: list[str] = []
        self._folder: Path | None = None  # temporary folder of a cluster that this process has started
        if self._joined:
            self._connect(has_token, need, machines, instead, cores)
        self.alive = self._alive_now()  # the machines that there are, as `ray.nodes` describes them
        self._head = ray.get_runtime_context().gcs_address
        self._answered, self._silence = False, 0.0
        """Whether the head has answered since the last look, and for how many seconds it has not, while this process ran."""
        self._looking = threading.Thread(target=self._see)
        self._looked = monotonic() - LOOK_INTERVAL

    def _connect(self, has_token: bool, need: str, machines: int, instead: str, cores: int) -> None:
        """Join the cluster that there is, or start one of this machine. Raises `ConfigError` if that is not possible."""
        ray, address = self.ray, os.environ.get("RAY_ADDRESS")
        try:
            if address and (found := re.fullmatch(r"([\w.-]+):(\d+)", address)):
                socket.create_connection((found[1], int(found[2])), CONNECT_TIMEOUT).close()
            ray.init(address="auto", **QUIET)
        except (OSError, OverflowError, ray.exceptions.RayError) as error:
            if address:
                why = str(error).strip().splitlines()[0]
                raise ConfigError(f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined: {why}") from error
            if machines > 1:
                raise ConfigError(
                    f"{need} need a Ray cluster of {machines} machines, and this machine belongs to none: start one (ray start) "
                    f"or name one (RAY_ADDRESS). On one machine: {instead}"
                ) from error
            with folder_for_sockets(SOCKET):
                self._folder = leftovers.make_folder("ray")
                leftovers.sweep(tempfile.gettempdir())
            cpus = max(os.cpu_count() or 1, cores)
            own = {"include_dashboard": False, "num_cpus": cpus, "_node_ip_address": "127.0.0.1"}
            ray.init(_temp_dir=str(self._folder / "s"), **own, **QUIET)
        else:
            if not has_token:
                self.notices.append(
                    "This run has no token for the Ray cluster (RAY_AUTH_TOKEN): without token authentication, whoever reaches "
                    "its ports can run code"
                )

    @property
    def own(self) -> bool:
        """Whether this process has started it: no other machine can join it."""
        return self._folder is not None

    def _alive_now(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    @property
    def size(self) -> str:
        """Its machines and their CPUs, for a message."""
        count, cores = len(self.alive), ", ".join(f"{node['Resources'].get('CPU', 0):.0f}" for node in self.alive)
        return f"this Ray cluster has {count} machine{'' if count == 1 else 's'}, with {cores} CPUs"

    @property
    def due(self) -> bool:
        """Whether `LOOK_INTERVAL` is over since the last look."""
        return monotonic() - self._looked >= LOOK_INTERVAL

    def look(self, then: Callable[[], None] = lambda: None) -> list[str]:
        """If it is due, see which machines there are, and call `then` after it, in a thread: calls to Ray's head do not return
        while it is gone. Returns what the user should know. Raises `RunFailed` if the head is gone for too long."""
        texts, self.notices = self.notices, []
        if self.due:
            elapsed = monotonic() - self._looked
            self._looked += elapsed
            if not self._looking.is_alive():
                self._looking = threading.Thread(target=self._see, args=(then,), name="Ray", daemon=True)
                self._looking.start()
            texts += self._check_head(min(elapsed, 2 * LOOK_INTERVAL))
        return texts

    def _see(self, then: Callable[[], None]) -> None:
        with suppress(self.ray.exceptions.RayError):
            self.alive = self._alive_now()
            then()
            self._answered = True

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
            return [f"Ray's head {self._head} does not answer: this command ends if it is silent {left:.0f} s more"]
        return []

    def close(self) -> None:
        """Leave the cluster, and end one that this object has started; what the user's program has joined stays as it is."""
        if self._joined and self.ray.is_initialized():
            self.ray.shutdown()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


def last_line(error: Exception) -> str:
    """The last line of an error of Ray, which ends with the cause's type and text."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__).strip()
