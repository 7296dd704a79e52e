"""Learner ranks: where each is among the others, and the process of one that is not the first.

Ranks are processes with receivers, slots and a learner. The first is the run's command. The others join it as sampling nodes do,
get the run's settings, and train as ranks of `torchrun` do. If a learner is lost, those of all ranks end and start again:
receivers, slots and nodes stay.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic

import psutil

from headrace.cluster.engines.member_process import MemberProcess
from headrace.cluster.joining import GONE_TIMEOUT, Lost, Member, join
from headrace.cluster.protocol import Link
from headrace.config import Config, ConfigError, hardware
from headrace.config.errors import RANK_LOST, UserError
from headrace.processes.interrupt import interrupts
from headrace.processes.output import show
from headrace.processes.ranks import settings_beside_first
from headrace.sampling.placements.processes import learner_main
from headrace.sampling.worker_process import Start
from headrace.transport.credentials import is_local

INTERFACE = "GLOO_SOCKET_IFNAME"  # environment variable with the network interface for gradients
ELSEWHERE, PORT = "192.0.2.1", 9
"""An address that no machine has, and a port: the way there is the way to other networks. Nothing is sent."""


def place_of(rank: int, learners: int, store: str, alone: bool, first: str = "") -> dict[str, str]:
    """Environment variables that place a learner among those of all ranks. `store`: where the ranks meet, HOST:PORT at the first.
    `alone`: all of them are on this machine. `first`: host of the first rank, if `store` may name all addresses of it."""
    local = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": learners} if alone else {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    place = {"RANK": rank, "WORLD_SIZE": learners, **local, hardware.RANK_STORE: f"tcp://{store}"}
    interface = "lo" if is_local(store) else _interface(first or store.rpartition(":")[0]) or _interface(ELSEWHERE)
    if interface and INTERFACE not in os.environ:
        place[INTERFACE] = interface
    return {name: str(value) for name, value in place.items()}


def learner_of_rank(place: dict[str, str], start: Start) -> None:
    """The main function of a rank's learner."""
    os.environ.update(place)
    learner_main(start)


def free_port(host: str) -> int:
    """A port of this host where nobody listens."""
    with socket.create_server((host.strip("[]"), 0), family=_family(host)) as found:
        return int(found.getsockname()[1])


@dataclass
class Joined:
    """What this process, a learner rank other than the first, was given when it joined the run."""

    rank: int
    link: Link
    member: Member
    listen: str  # where its receivers are to listen
    variables: dict[str, str]  # see `place_of`
    ended: bool = False  # whether the run has

    @property
    def host(self) -> str:
        """Where nodes find its receivers."""
        return self.listen.rpartition(":")[0]


_joined: Joined | None = None


def this_process() -> Joined | None:
    """The place of this process if it is a learner rank that has joined the first."""
    return _joined


@contextmanager
def joined(link: Link, rank: int, imports: tuple[str, ...] | None) -> Iterator[Config]:
    """Within the context this process is a learner rank; gives its settings. Behind it the rank waits for the end of the run. An
    error is told to the first rank.

    Raises `ConfigError` if the first rank cannot be reached or refuses this one.
    """
    global _joined
    stopped = threading.Event()
    with interrupts(stopped.set):
        try:
            member = join(link, GONE_TIMEOUT, stopped, lambda text: None, code=imports is None, rank=rank)
        except Lost as lost:  # it was never there: starting again does not help
            raise ConfigError(str(lost)) from lost
    if member is None:
        raise KeyboardInterrupt
    try:
        config, (host, _, port) = member.config(imports), link.address.rpartition(":")
        place = place_of(rank, config.cluster.learners, f"{host}:{member.place['store']}", member.place["alone"])
        fixed = config.cluster.engine == "static" and not member.place["alone"]
        _joined = Joined(rank, link, member, f"{_own_host(link.address)}:{port if fixed else 0}", place)
        with settings_beside_first(config) as own:
            yield own
        while not _joined.ended and (received := member.next(None)) is not None and received[0] != "end":
            if received[0] == "lost":  # the last checkpoint is not written, or the learners have to go on from an earlier one
                raise Lost(f"the first learner rank {link.address} is lost")
    except Exception as error:
        if not isinstance(error, UserError) or error.exit_code != RANK_LOST:
            member.fail(error)
        raise
    finally:
        _joined = None
        member.close()


def keep_rank(link: Link, rank: int, imports: tuple[str, ...]) -> int:
    """Be a machine of engine `static` that is a learner rank: run its process, and again if it is lost, until the run ends.
    Returns the exit code."""
    stopped = threading.Event()
    show(f"This machine is to be learner rank {rank} of the run at {link.address}")
    with interrupts(stopped.set):
        while True:
            process = MemberProcess(link, imports, rank)
            while (code := process.exit_code) is None and not stopped.wait(0.2):
                pass
            if code is None:
                process.end(monotonic())
                return 130
            if code >= 0 and code != RANK_LOST:
                return code
            link = replace(link, wait=GONE_TIMEOUT)


def _interface(host: str) -> str:
    """Name of this machine's network interface on the way to another machine, or at one of its own addresses; "" if that is a
    loopback address, or not known. Gloo would take the address of this machine's name, which is often a loopback address."""
    with suppress(OSError):
        own = _own_host(f"{host}:{PORT}")
        for name, addresses in psutil.net_if_addrs().items() if not is_local(f"{own}:{PORT}") else ():
            if own.strip("[]") in [address.address for address in addresses]:
                return name
    return ""


def _own_host(address: str) -> str:
    """The address of this machine on the way to another."""
    host, _, port = address.rpartition(":")
    with socket.socket(_family(host), socket.SOCK_DGRAM) as way:
        way.connect((host.strip("[]"), int(port)))
        own = way.getsockname()[0]
    return f"[{own}]" if ":" in own else own


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if host.startswith("[") else socket.AF_INET
