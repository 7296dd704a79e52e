"""The engine `static`: the same command on every machine; what is missing are processes of this machine."""

from __future__ import annotations

import secrets
from dataclasses import replace
from time import monotonic

from headrace.cluster import roles
from headrace.cluster.engines import Engine
from headrace.cluster.engines.node_process import NodeProcess
from headrace.cluster.protocol import Link
from headrace.config import Config, ConfigError
from headrace.config.errors import RANK_LOST
from headrace.processes.failures import Failures
from headrace.sampling.placements.base import RunFailed
from headrace.transport.credentials import TOKEN_VARIABLE, credentials


class StaticEngine(Engine):
    """Starts the nodes that no other machine provides. Raises `ConfigError` for too many machines, and if several machines have
    no token in common."""

    def __init__(self, config: Config) -> None:
        cluster, self._machines = config.cluster, roles.machine()
        (least, most), others = cluster.node_range, self._machines.count - 1
        self._count = max(0, least - others)
        if others > most:
            raise ConfigError(
                f"{self._machines.source} has started {others + 1} machines: the first learns, and the others are "
                f"{others} sampling nodes; cluster.nodes is {cluster.nodes}"
            )
        self.own = credentials(cluster.token_file, cluster.ca, cluster.tls_cert, cluster.tls_key)
        alone = not others
        if not self.own.token:
            if not alone:
                raise ConfigError(
                    "several machines need a token that all of them have: a file (cluster.token_file), or the environment "
                    f"variable {TOKEN_VARIABLE}"
                )
            self.own = replace(self.own, token=secrets.token_urlsafe(32))
        self.listen = cluster.listen or ("127.0.0.1:0" if alone else f"0.0.0.0:{roles.PORT}")
        self._failures, self._imports = Failures(config.sampling), config.imports
        self._nodes: list[NodeProcess] = []
        self._link: Link | None = None

    def start(self, link: Link) -> None:
        host, _, port = link.address.rpartition(":")
        here = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "[::]" else host
        self._link = replace(link, address=f"{here}:{port}")
        self._nodes = [NodeProcess(self._link, self._imports) for _ in range(self._count)]

    def look(self) -> list[str]:
        assert self._link is not None
        texts = []
        for i, node in enumerate(self._nodes):
            if node.exit_code is None:
                continue
            what = f"A sampling node of this machine has ended ({node.end_reason()})"
            if node.exit_code > 0 and node.exit_code != RANK_LOST:  # it has said why
                raise RunFailed(what)
            if too_many := self._failures.add(monotonic()):
                raise RunFailed(f"{what}, {too_many}")
            texts.append(f"{what}; another one starts")
            self._nodes[i] = NodeProcess(self._link, self._imports)
        return texts

    def missing(self, here: int) -> str:
        others = self._machines.count - 1
        return f"{self._count} are processes of this machine, {others} are other machines, where the same command must run"

    def stop(self, timeout: float) -> None:
        deadline = monotonic() + timeout
        for node in self._nodes:
            node.end(deadline)
        self._nodes = []

    def kill(self) -> None:
        for node in self._nodes:
            node.kill()
        self._nodes = []
