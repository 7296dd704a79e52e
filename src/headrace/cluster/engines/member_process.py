"""A sampling node, or a learner rank other than the first, as a process that an engine starts on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from time import monotonic, sleep

from headrace.cluster.protocol import Link
from headrace.processes.child import how_it_ended
from headrace.processes.interrupt import stops_with_this
from headrace.processes.ranks import die_with_starter
from headrace.transport.credentials import Credentials

INTERRUPTED = 130  # exit code of a node that somebody has ended with SIGTERM or as Ctrl-C does


def member_name(rank: int) -> str:
    """What log lines call a member. `rank`: see `MemberProcess`."""
    return f"learner rank {rank}" if rank else "sampling node"


class MemberProcess:
    """`python -m headrace.cluster`, or of a learner rank `python -m headrace.cli.rank`. It gets the address of the first rank and
    the token through a pipe, since the token must not be visible in its arguments or environment variables. It dies with the
    thread that started it. `imports`: Python files of the run, as they are named on this machine; None: those that the learner
    sends. `rank`: number of a learner rank; 0: it is a sampling node."""

    def __init__(self, link: Link, imports: tuple[str, ...] | None = None, rank: int = 0) -> None:
        self.rank = rank
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.rank" if rank else "headrace.cluster"],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the learner's machine, which tells its nodes
            preexec_fn=partial(die_with_starter, os.getpid()),
        )
        stops_with_this(self._process)
        assert self._process.stdin is not None
        assignment = {"link": dataclasses.asdict(link), "imports": imports, "rank": rank}
        with suppress(BrokenPipeError):  # it has ended already, as its exit code says
            self._process.stdin.write(json.dumps(assignment).encode())
            self._process.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    def end_reason(self) -> str:
        """How it ended, in a few words."""
        return how_it_ended(self._process.returncode)

    def end(self, deadline: float) -> None:
        """Wait for its end until `deadline` (monotonic); then ask for it, and kill it at last."""
        for number, seconds in ((None, 0.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if number is not None:
                self._process.send_signal(number)
            until = max(deadline, monotonic() + seconds)
            while self._process.poll() is None and monotonic() < until:
                sleep(0.02)
            if self._process.returncode is not None:
                return

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def read_assignment() -> tuple[Link, tuple[str, ...] | None, int]:
    """Reads from standard input what the engine that started this process has sent: the arguments of `MemberProcess`."""
    read = json.loads(sys.stdin.read())
    link, imports = read["link"], read["imports"]
    own = Credentials(**link["own"])
    return Link(link["address"], own, link["wait"]), None if imports is None else tuple(imports), read["rank"]
