"""A sampling node: it joins the learner's machine, is told what to sample, and samples until the run ends.

`python -m headrace.cluster` is started by an engine. With engine `static`, `headrace train` is a node itself on every
machine but the first.
"""

from __future__ import annotations

import json
import platform
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from headrace.cluster import protocol
from headrace.cluster.protocol import Link
from headrace.cluster.shapes import of_node, workers_of
from headrace.cluster.uplink import Uplink, uplink_main
from headrace.cluster.user_code import unpack
from headrace.config import ConfigError, from_dict
from headrace.config.errors import RANK_LOST, UserError
from headrace.envs.core.description import spec_from_json
from headrace.envs.core.imports import import_files
from headrace.processes.interrupt import interrupts
from headrace.processes.output import show
from headrace.processes.start import start_fork_server
from headrace.runs.error_texts import explain
from headrace.sampling.placements.base import Placement, RunFailed
from headrace.sampling.placements.processes import ProcessPlacement
from headrace.transport.credentials import Credentials
from headrace.transport.messages import ProtocolError, Refused
from headrace.transport.streams import Backoff, Caller, Stream

GONE_TIMEOUT = 20.0
"""Seconds after which a node ends that has lost the learner and finds that nobody listens there any more."""
ANSWER_TIMEOUT = 10.0
"""Seconds that the learner's machine may take to answer a node that dials it."""
STATUS_INTERVAL = 1.0
"""Seconds between two reports of what the workers do."""
END_TIMEOUT = 10.0
"""Seconds in which a node that is to end should have closed its stream."""


class Lost(UserError):
    """The learner cannot be reached. The node may be started again."""

    exit_code = RANK_LOST


def run_node(link: Link, imports: tuple[str, ...] | None = None, say: Callable[[str], None] = show) -> int:
    """Be a sampling node until the run ends. Returns the exit code: 0 at the end of the run, 130 if this node was interrupted.

    `imports`: Python files of the run as they are named on this machine; None: those that the learner sends. `say`: shows a
    text to whoever started the node.

    Raises `UserError` if the learner cannot be reached or refuses the node, or if sampling fails.
    """
    start_fork_server()
    stopped = threading.Event()
    with interrupts(stopped.set):
        gone_timeout = link.wait
        while not stopped.is_set():
            member = _join(link, gone_timeout, imports is None, stopped, say)
            if member is None:
                break
            if _take_part(member, link, imports, stopped):
                return 0
            if not stopped.is_set():
                say(f"The learner's machine {link.address} is lost ({member.stream.ended}); this node tries to join again")
            gone_timeout = GONE_TIMEOUT
    return 130


class _Member:
    """The node's place in the run, and the stream that it lasts as long as."""

    def __init__(self, stream: Stream, messages: Iterator[bytes], place: Any) -> None:
        self.stream, self.place = stream, place
        self.code = b"".join(next(messages, b"") for _ in range(place["code"]))
        """What `headrace.cluster.user_code.pack` gave; b"" if this node has its own."""
        self.received: queue.SimpleQueue[str] = queue.SimpleQueue()
        """"end": the run has ended; "lost": the stream has."""
        threading.Thread(target=self._receive, args=(messages,), name="membership", daemon=True).start()

    def _receive(self, messages: Iterator[bytes]) -> None:
        with suppress(ProtocolError, Refused):
            for message in messages:
                if protocol.from_bytes(message)[0] == "end":
                    self.received.put("end")
        self.received.put("lost")

    def send(self, kind: str, content: Any) -> None:
        """Report something."""
        self.stream.send(protocol.to_bytes(kind, content))

    def next(self, timeout: float) -> str | None:
        """What was received, waited for up to `timeout` seconds."""
        with suppress(queue.Empty):
            return self.received.get(timeout=timeout)
        return None


def _join(
    link: Link, gone_timeout: float, wants_code: bool, stopped: threading.Event, say: Callable[[str], None]
) -> _Member | None:
    """A place in the run, asked for again and again; None if `stopped`. `wants_code`: the learner's machine is to send it.

    Raises `ConfigError` if this node is refused, and `Lost` after `link.wait` seconds, or after `gone_timeout` if the machine
    answers and nobody listens there.
    """
    caller, backoff = Caller(link.endpoint(protocol.MEMBERSHIP), protocol.FLAGS), Backoff()
    began, said = monotonic(), ""
    while not stopped.is_set():
        stream = caller.open()
        stream.timeout = ANSWER_TIMEOUT
        hello = {"host": platform.node(), "versions": protocol.versions(), "code": wants_code}
        stream.request(protocol.to_bytes("hello", hello))
        messages = iter(stream)
        try:
            first = next(messages, None)
            kind, content = ("", stream.ended) if first is None else protocol.from_bytes(first)
        except (Refused, ProtocolError) as error:
            stream.close()
            raise ConfigError(f"the learner's machine {link.address} refuses this node: {error}") from error
        if kind == "welcome":
            return _Member(stream, messages, content)
        stream.close()
        limit = gone_timeout if "refused" in str(content) else link.wait
        if stream.hopeless or (monotonic() > began + limit and kind != "busy"):
            raise Lost(f"the learner's machine {link.address} cannot be reached: {content}")
        if content != said:
            say(f"Waiting for the learner's machine {link.address}: {content}")
            said = content
        backoff.wait(stopped)
    return None


def _take_part(member: _Member, link: Link, imports: tuple[str, ...] | None, stopped: threading.Event) -> bool:
    """Sample until the end of the run (True), or until the stream is lost or this node is `stopped` (False). Raises `UserError`
    if sampling fails, which the learner is told first."""
    placement: ProcessPlacement | None = None
    try:
        placement = _sampler(member, imports)
        placement.start(Uplink(link, member.place["port"], member.place["generation"]), uplink_main)
        ended = _sample(placement, member, stopped)
        for _ in placement.stop():
            pass
        return ended
    except Exception as error:
        explained = explain(error, [])
        text = explained[0] if explained else f"{type(error).__name__}: {error}"
        member.send("failed", text)
        member.next(END_TIMEOUT)  # until the learner has ended the run
        raise error if explained else RunFailed(text) from error
    finally:
        if placement is not None:
            placement.kill()
        member.stream.finish()
        member.stream.close()


def _sampler(member: _Member, imports: tuple[str, ...] | None) -> ProcessPlacement:
    """The placement of this node."""
    from headrace.learning.algorithm import make_agent
    from headrace.sampling.placements import make_placement

    place = member.place
    config = from_dict(place["config"])
    if imports is not None:
        config = replace(config, imports=imports)
    elif member.code:
        config = unpack(member.code, config)
    import_files(config.imports)
    placement = make_placement(own := of_node(config), spec_from_json(place["spec"]), make_agent)
    assert isinstance(placement, ProcessPlacement)  # the learner's side refuses others
    placement.rollout_workers = workers_of(place["node"], own)
    placement.role_names = {"learner": "uplink"}
    return placement


def _sample(placement: Placement, member: _Member, stopped: threading.Event) -> bool:
    """Report until the run ends (True), or the stream does or this node is `stopped` (False)."""
    control, workers = placement.memory.control, placement.rollout_workers
    rows = {"rollout": slice(workers.start, workers.stop, workers.step), "policy": slice(None)}
    reported = 0.0
    while not stopped.is_set():
        for message in placement.messages(timeout=0.2):
            if message.kind == "message":
                member.send("message", message.content)
        if (received := member.next(0)) is not None:
            return received == "end"
        if monotonic() > reported + STATUS_INTERVAL:
            reported = monotonic()
            clocks = {role: control.clocks[role][rows[role]].tolist() for role in rows}
            member.send("status", {"clocks": clocks, "restarts": placement.restarts})
    return False


def main() -> int:
    """A node that an engine has started, which tells it what it needs on standard input."""
    told = json.loads(sys.stdin.read())
    given = told["link"]
    link = Link(given["address"], Credentials(**given["own"]), given["wait"])
    imports = None if told["imports"] is None else tuple(told["imports"])
    try:
        return run_node(link, imports, lambda text: None)
    except UserError as error:
        print(f"headrace: sampling node: {error}", file=sys.stderr, flush=True)
        return error.exit_code

