"""A sampling node: it connects to the learner's machine, gets the run's settings, and samples until the run ends.

`python -m headrace.cluster` is started by an engine. With engine `static`, `headrace train` is a node itself on every
machine but the first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from headrace.cluster.engines.member_process import INTERRUPTED, read_assignment
from headrace.cluster.joining import GONE_TIMEOUT, Member, join
from headrace.cluster.protocol import Link
from headrace.cluster.shapes import of_node, workers_of
from headrace.cluster.uplink import Uplink, uplink_main
from headrace.config.errors import UserError
from headrace.envs.core.description import spec_from_json
from headrace.processes.interrupt import interrupts
from headrace.processes.output import show
from headrace.processes.start import start_fork_server
from headrace.runs.error_texts import explain
from headrace.sampling.placements.base import Placement, RunFailed
from headrace.sampling.placements.processes import ProcessPlacement

STATUS_INTERVAL = 1.0  # seconds between two reports of what the workers do


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
            member = join(link, gone_timeout, stopped, say, code=imports is None)
            if member is None:
                break
            place = member.place
            say(f"This machine is node {place['node']} of the run at {link.address} ({place['config']['env']})")
            if _take_part(member, link, imports, stopped):
                return 0
            if not stopped.is_set():
                say(f"The learner's machine {link.address} is lost ({member.stream.ended}); this node tries to join again")
            gone_timeout = GONE_TIMEOUT
    return INTERRUPTED


def _take_part(member: Member, link: Link, imports: tuple[str, ...] | None, stopped: threading.Event) -> bool:
    """Sample until the end of the run (True), or until the stream is lost or this node is `stopped` (False). Raises `UserError`
    if sampling fails, which the learner is told first."""
    placement: ProcessPlacement | None = None
    try:
        placement = _sampler(member, imports)
        receiver = replace(link, address=member.place["receiver"] or link.address)
        placement.start(Uplink(receiver, member.place["port"], member.place["generation"]), uplink_main)
        ended = _sample(placement, member, stopped)
        for _ in placement.stop():
            pass
        return ended
    except Exception as error:
        reason = member.fail(error)
        raise error if explain(error, []) else RunFailed(reason) from error
    finally:
        if placement is not None:
            placement.kill()
        member.close()


def _sampler(member: Member, imports: tuple[str, ...] | None) -> ProcessPlacement:
    """The placement of this node."""
    from headrace.learning.algorithm import make_agent
    from headrace.population.members import make_members
    from headrace.sampling.placements import make_placement

    place = member.place
    own, spec = of_node(member.config(imports)), spec_from_json(place["spec"])
    placement = make_placement(own, spec, make_agent, make_members(own, spec))
    assert isinstance(placement, ProcessPlacement)  # the learner's side refuses others
    placement.rollout_workers = workers_of(place["node"], own)
    placement.role_names = {"learner": "uplink"}
    return placement


def _sample(placement: Placement, member: Member, stopped: threading.Event) -> bool:
    """Report until the run ends (True), or the stream does or this node is `stopped` (False)."""
    control, workers = placement.memory.control, placement.rollout_workers
    rows = {"rollout": slice(workers.start, workers.stop, workers.step), "policy": slice(None)}
    reported = 0.0
    while not stopped.is_set():
        for message in placement.messages(timeout=0.2):
            if message.kind == "message":
                member.send("message", message.content)
        if (received := member.next(0)) is not None:
            return received[0] == "end"
        if monotonic() > reported + STATUS_INTERVAL:
            reported = monotonic()
            clocks = {role: control.clocks[role][rows[role]].tolist() for role in rows}
            member.send("status", {"clocks": clocks, "restarts": placement.restarts})
    return False


def main() -> int:
    """A node that an engine has started. It reads its address, token and imports from standard input."""
    link, imports, _ = read_assignment()
    try:
        return run_node(link, imports, lambda text: None)
    except UserError as error:
        print(f"headrace: sampling node: {error}", file=sys.stderr, flush=True)
        return error.exit_code
