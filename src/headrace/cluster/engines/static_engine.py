"""The engine `static`: the same command on every machine. Members for which there is no machine run as processes of this one."""

from __future__ import annotations

import secrets
from dataclasses import replace
from time import monotonic

from headrace.cluster import roles
from headrace.cluster.engines import Engine
from headrace.cluster.engines.member_process import INTERRUPTED, MemberProcess, member_name
from headrace.cluster.protocol import Link
from headrace.config import Config, ConfigError
from headrace.config.errors import RANK_LOST
from headrace.processes.failures import Failures
from headrace.runs.error_texts import reason
from headrace.sampling.placements.base import RunFailed
from headrace.sampling.supervisor import START_AGAIN
from headrace.transport.credentials import TOKEN_VARIABLE, credentials


class StaticEngine(Engine):
    """Starts the learner ranks and nodes that no other machine provides. Raises `ConfigError` for too many machines or too few,
    and if several machines have no token in common."""

    def __init__(self, config: Config) -> None:
        cluster, self._machines = config.cluster, roles.machine()
        (least, most), learners, machines = cluster.node_range, cluster.learners, self._machines
        self.alone, self.host = machines.count == 1, machines.learner
        if not self.alone and machines.count < learners:
            raise ConfigError(f"{machines.source} has started {machines.count} machines; cluster.learners is {learners}")
        self._others = 0 if self.alone else machines.count - learners  # sampling nodes that are other machines
        ranks = range(1, learners) if self.alone else range(0)
        self._here = [*ranks, *[0] * max(0, least - self._others)]
        """What is started on this machine: learner ranks, and for every node a 0."""
        if self._others > most:
            learn = "the first learns" if learners == 1 else f"the first {learners} learn"
            raise ConfigError(
                f"{machines.source} has started {machines.count} machines: {learn}, and the others are {self._others} sampling "
                f"nodes; cluster.nodes is {cluster.nodes}"
            )
        self.own = credentials(cluster.token_file, cluster.ca, cluster.tls_cert, cluster.tls_key)
        if not self.own.token:
            if not self.alone:
                raise ConfigError(
                    "several machines need a token that all of them have: a file (cluster.token_file), or the environment "
                    f"variable {TOKEN_VARIABLE}"
                )
            self.own = replace(self.own, token=secrets.token_urlsafe(32))
        self.listen = cluster.listen or ("127.0.0.1:0" if self.alone else f"0.0.0.0:{roles.PORT}")
        self._failures, self._imports = Failures(config.sampling), config.imports
        self._members: list[MemberProcess] = []
        self._link: Link | None = None
        self._try_at = 0.0  # before that (monotonic) no member is started again: one could not be

    def start(self, link: Link) -> None:
        host, _, port = link.address.rpartition(":")
        here = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "[::]" else host
        if here != host and self.own.ca is not None and not self.alone:
            here = self.host  # as the other machines call this one: the certificate is for that name
        self._link = replace(link, address=f"{here}:{port}")
        self._members = [MemberProcess(self._link, self._imports, rank) for rank in self._here]

    def look(self) -> list[str]:
        assert self._link is not None
        texts = []
        for i, member in enumerate(self._members):
            if member.exit_code is None or monotonic() < self._try_at:
                continue
            what = f"A {member_name(member.rank)} of this machine has ended ({member.end_reason()})"
            if member.exit_code > 0 and member.exit_code not in (RANK_LOST, INTERRUPTED):  # it has said why
                raise RunFailed(what)
            if too_many := self._failures.add(monotonic()):
                raise RunFailed(f"{what}, {too_many}")
            try:
                self._members[i] = MemberProcess(self._link, self._imports, member.rank)
                texts.append(f"{what}; another one starts")
            except OSError as error:  # there may be room for it later
                self._try_at = monotonic() + START_AGAIN
                texts.append(f"{what}, and another one could not be started: {reason(error)}; tried again in {START_AGAIN:.0f} s")
        return texts

    def missing(self, here: int) -> str:
        own, others = self._here.count(0), self._machines.count - 1
        elsewhere = f"the same command must run on {others} other machine{'s' * (others > 1)}"
        return "; ".join([f"this machine starts {own} of them"] * bool(own) + [elsewhere] * bool(others))

    def stop(self, timeout: float) -> None:
        deadline = monotonic() + timeout
        for member in self._members:
            member.end(deadline)
        self._members = []

    def kill(self) -> None:
        for member in self._members:
            member.kill()
        self._members = []
