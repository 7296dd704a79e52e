"""Which nodes and learner ranks take part: the first rank's side of the membership streams, in its main process."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from headrace.cluster import protocol, user_code
from headrace.cluster.shared import COUNTS, Shared
from headrace.shm.run_control import RunControl
from headrace.transport.listeners import Listener
from headrace.transport.messages import ProtocolError, Refused
from headrace.transport.streams import Endpoint, Stream

SILENCE = 20.0  # seconds without a report after which a node counts as lost; it reports every second
START_TIMEOUT = 300.0
"""Seconds that a member may take for its first report: it imports PyTorch and starts its processes before."""
SPARE_STREAMS = 64  # streams beside those of the nodes, for others that wait or are refused


@dataclass(eq=False)
class Rank:
    """A learner rank that takes part, other than the first."""

    number: int
    host: str
    stream: Stream
    counts: Any = 0.0
    """What it reported last of its receivers, see `Shared.counts`; a rank in its place counts from the beginning."""
    done: float = 0.0  # when its learner was done (perf_counter); 0: it is not

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"learner rank {self.number} ({self.host})"


@dataclass(eq=False)
class Node:
    """A node that takes part."""

    number: int
    generation: int
    host: str
    stream: Stream
    restarts: int = 0  # processes that it has replaced
    clocks: dict[str, np.ndarray] = field(default_factory=dict)  # what it reported last, see `RunControl.clocks`

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"node {self.number} ({self.host})"


class Membership:
    """Admits nodes and learner ranks, and passes on what they report. Node k sends to rank k mod R. Nodes are admitted while all
    ranks are there, so that each gets its share of them.

    Args:
        rows: by (role, node), which rows of the run's clocks are those of the node's workers; an index of an array.
        welcome: the rest of a welcome: what every member is told.
        code: what `headrace.cluster.user_code.pack` gives, for nodes that ask for it.

    Raises `ConfigError` if it cannot listen.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        shared: Shared,
        control: RunControl,
        rows: Callable[[str, int], Any],
        welcome: dict[str, Any],
        code: bytes,
    ) -> None:
        self._shared, self._control, self._rows, self._welcome = shared, control, rows, welcome
        self._code, self._places = user_code.parts(code), shared.nodes
        self.nodes: dict[int, Node] = {}  # those that are there, by number
        self.ranks: dict[int, Rank] = {}  # the same for learner ranks; the first is this process
        self._hosts: dict[int, str] = {}  # where the receivers of each rank are, or were last
        self.notices: deque[str] = deque()  # texts for the user, not yet passed on
        self.failures: deque[str] = deque()  # errors of nodes that would come again
        self.restarts = 0  # processes that nodes have replaced, and nodes that were lost
        self.rank_lost = 0.0  # when a learner rank was lost (perf_counter), until that is taken
        self._ending = False
        self._lock = threading.Lock()
        self._began = (monotonic(), self._shared.counts.copy())
        self._before: dict[int, tuple[float, np.ndarray]] = {}
        """By policy: when it had its metrics last, and the counts of then."""
        self._listener = Listener(endpoint, self._answer, streams=self._places + SPARE_STREAMS, say=self.notices.append)

    @property
    def port(self) -> int:
        return self._listener.port

    # -- a thread for each stream -----------------------------------------------------------------------------------------

    def _answer(self, stream: Stream) -> Iterator[bytes]:
        stream.expect(protocol.HELLO_TIMEOUT, "no hello")
        messages = iter(stream)
        try:
            if (first := next(messages, None)) is None:  # it has gone before it said anything
                return
            kind, hello = protocol.from_bytes(first)
            if kind != "hello" or not isinstance(hello, dict):
                raise ProtocolError("the first message is no hello")
            host = str(hello.get("host"))[:100]
            protocol.check_versions(hello.get("versions"), host)
            member = self._admit(host, stream) if (rank := hello.get("rank")) is None else self._admit_rank(rank, host, stream)
        except (Refused, ProtocolError) as error:
            self.notices.append(f"A node was refused: {error}")
            yield protocol.to_bytes("refused", str(error))
            return
        if member is None:
            yield protocol.to_bytes("busy", self._why_busy())
            return
        threading.Thread(target=self._receive, args=(member, messages), name=member.name, daemon=True).start()
        try:
            code = self._code if hello.get("code") else []
            yield protocol.to_bytes("welcome", self._welcome | self._place(member) | {"code": len(code)})
            yield from code
            yield from stream.outgoing()
        finally:
            self._leave(member, stream.ended or "its connection ended")

    def _why_busy(self) -> str:
        if len(self.ranks) + 1 < self._shared.learners:
            return "a learner rank is not there"
        if len(self.nodes) < self._places:
            return "it is starting"  # no receiver listens yet that has no node
        return f"all of the {self._places} nodes of the run are there (cluster.nodes)"

    def _place(self, member: Node | Rank) -> dict[str, Any]:
        """What a member is told of its own place."""
        if isinstance(member, Rank):
            ports = [self._shared.port.load(k) for k in range(self._places)]
            return {"ports": ports, "generations": self._generations()}
        k, port = member.number, self._shared.port.load(member.number)
        host = self._hosts.get(k % self._shared.learners, "")
        return {"node": k, "generation": member.generation, "port": port, "receiver": host and f"{host}:{port}"}

    def _generations(self) -> list[int]:
        return [self._shared.generation.load(k) for k in range(self._places)]

    def _admit(self, host: str, stream: Stream) -> Node | None:
        """Give a free place to a node: one of the rank that has the fewest, and of these the last: the last workers explore
        least, and their episodes are reported."""
        with self._lock:
            free = [k for k in range(self._places) if k not in self.nodes and self._shared.port.load(k)]
            have = Counter(k % self._shared.learners for k in self.nodes)
            if not free or self._ending or len(self.ranks) + 1 < self._shared.learners:
                return None
            number = min(free, key=lambda k: (have[k % self._shared.learners], -k))
            self._next_generation(number)
            node = self.nodes[number] = Node(number, self._shared.generation.load(number), host, stream)
        self.notices.append(f"Node {number} ({host}) takes part: {len(self.nodes)} of {self._places} are there")
        return node

    def _admit_rank(self, number: Any, host: str, stream: Stream) -> Rank | None:
        """Raises `Refused` for a number that no rank has."""
        if number not in range(1, self._shared.learners):
            raise Refused(f"{host} is to be learner rank {number!r:.40}; cluster.learners is {self._shared.learners}")
        with self._lock:
            if number in self.ranks or self._ending:
                return None
            rank = self.ranks[number] = Rank(number, host, stream)
            self._tell_ranks("ranks", len(self.ranks) + 1)
        self.notices.append(f"Learner rank {number} ({host}) takes part")
        return rank

    def _next_generation(self, node: int) -> None:
        self._shared.generation.add(node, 1)
        if (rank := self.ranks.get(node % self._shared.learners)) is not None:
            rank.stream.send(protocol.to_bytes("generations", self._generations()))

    def _tell_ranks(self, kind: str, content: Any) -> None:
        for rank in self.ranks.values():
            rank.stream.send(protocol.to_bytes(kind, content))

    def _leave(self, member: Node | Rank, why: str) -> None:
        there: dict[int, Any] = self.nodes if isinstance(member, Node) else self.ranks
        with self._lock:
            if there.get(member.number) is not member:
                return
            del there[member.number]
            if isinstance(member, Node):
                self._next_generation(member.number)  # its receiver takes no more from it
            else:
                self._tell_ranks("ranks", len(self.ranks) + 1)
                if not (self._ending or member.done):
                    self.rank_lost = perf_counter()
                    self._tell_ranks("rank lost", member.number)
            self.restarts += not self._ending
        if not self._ending:
            left = f": {len(self.nodes)} of {self._places} are there" if isinstance(member, Node) else ""
            self.notices.append(f"{_capital(member.name)} is gone ({why}){left}")
        member.stream.close()

    def _receive(self, member: Node | Rank, messages: Iterator[bytes]) -> None:
        late, patience = f"no report for {SILENCE:.0f} s", SILENCE
        try:
            member.stream.expect(START_TIMEOUT, late)
            for message in messages:
                member.stream.expect(patience, late)
                kind, content = protocol.from_bytes(message)
                if kind == "status" and isinstance(member, Node):
                    self._note(member, content)
                elif kind == "receivers" and isinstance(member, Rank):
                    self._note_receivers(member, content)
                elif kind == "done" and isinstance(member, Rank):
                    member.done, patience = perf_counter(), math.inf  # it waits for the end, and reports no more
                    member.stream.expect(patience, late)
                elif kind == "message":
                    self.notices.append(f"{_capital(member.name)}: {str(content)[:10_000]}")
                elif kind == "failed":
                    text = str(content)[:100_000]
                    self.failures.append(f"{member.name}: {text}{user_code.missing_package(text)}")
        except (ProtocolError, Refused, KeyError, TypeError, ValueError) as error:
            member.stream.close(f"it sent what is no report: {error}")
        self._leave(member, member.stream.ended)

    def _note_receivers(self, rank: Rank, content: dict[str, Any]) -> None:
        """Take where the rank's receivers listen and what they have received. Nodes that send to another host than that join
        again."""
        own = range(rank.number, self._places, self._shared.learners)
        host, ports, counts = str(content["host"]), content["ports"], np.asarray(content["counts"], np.float64)
        if self._hosts.get(rank.number, host) != host:
            for node in [node for k, node in self.nodes.items() if k in own]:
                node.stream.close("its learner rank is on another machine now")
        self._hosts[rank.number] = host
        self._shared.counts[own.start :: own.step] += counts - rank.counts
        rank.counts = counts
        for k, port in zip(own, ports, strict=True):
            self._shared.port.store(k, int(port))

    def _note(self, node: Node, status: dict[str, Any]) -> None:
        """Add what its workers have done since the last status to the run's clocks, and its restarts to the run's."""
        for role, times in status["clocks"].items():
            clocks, rows = self._control.clocks[role], self._rows(role, node.number)
            now = np.asarray(times, np.float64)
            if now.shape != clocks[rows].shape:
                raise ValueError(f"clocks of {now.shape}")
            change = now - node.clocks.get(role, np.zeros_like(now))
            change[:, -2] = 0  # heartbeats are those of processes here
            clocks[rows] += change
            node.clocks[role] = now
        with self._lock:  # other nodes are heard in other threads
            self.restarts += int(status["restarts"]) - node.restarts
        node.restarts = int(status["restarts"])

    # -- the main thread --------------------------------------------------------------------------------------------------

    def metrics(self, policy: int) -> dict[str, float]:
        """The number of nodes; of each that is there `headrace.runs.metrics.OF_NODE`, since the last call for the policy."""
        (since, before), now, counts = self._before.get(policy, self._began), monotonic(), self._shared.counts.copy()
        self._before[policy] = (now, counts)
        seconds, change = max(1e-9, now - since), counts - before
        found = {"cluster/nodes": float(len(self.nodes))}
        for k, node in sorted(self.nodes.copy().items()):
            of = dict(zip(COUNTS, change[k], strict=True))
            values = {
                "SPS": of["steps"] / seconds,
                "MB_per_second": of["bytes"] / seconds / 1e6,
                "bytes_per_step": of["bytes"] / of["steps"] if of["steps"] else math.nan,
                "receiver_cores": of["seconds"] / seconds,
                "lag": of["lag"] / of["trajectories"] if of["trajectories"] else math.nan,
                "faults": float(node.restarts),
            }
            found |= {f"cluster/node-{k}/{name}": value for name, value in values.items()}
        return found

    def begin_again(self, started: float) -> None:
        """Give up the ranks that were done before the first rank's learner was `started` (perf_counter): it goes on from a
        checkpoint, and needs others in their place."""
        for rank in self.ranks.copy().values():
            if 0 < rank.done < started:
                rank.stream.close("it was done, and the first rank's learner has started again")

    def end(self) -> None:
        """Tell every member that the run ends, and admit no more."""
        with self._lock:  # who is admitted now is told, too
            self._ending = True
            members: list[Node | Rank] = [*self.nodes.values(), *self.ranks.values()]
        for member in members:
            member.stream.send(protocol.to_bytes("end", None))

    def close(self) -> None:
        """Stop listening; streams that are open are ended."""
        self._ending = True
        self._listener.stop(0.2)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
