"""Which nodes take part: the learner's side of the membership streams, in the main process."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from headrace.cluster import protocol, user_code
from headrace.cluster.shared import COUNTS, Shared
from headrace.shm.run_control import RunControl
from headrace.transport.listeners import Listener
from headrace.transport.messages import ProtocolError, Refused
from headrace.transport.streams import Endpoint, Stream

SILENCE = 20.0
"""Seconds without a report after which a node counts as lost; it reports every second."""
START_TIMEOUT = 120.0
"""Seconds that a node may take for its first report: it imports PyTorch and starts its workers before."""
SPARE_STREAMS = 64
"""Streams beside those of the nodes, for others that wait or are refused."""


@dataclass(eq=False)
class Node:
    """A node that takes part."""

    number: int
    generation: int
    host: str
    stream: Stream
    restarts: int = 0
    """Processes that it has replaced."""
    clocks: dict[str, np.ndarray] = field(default_factory=dict)
    """What it reported last, see `RunControl.clocks`."""


class Membership:
    """Admits nodes, and passes on what they report.

    Args:
        rows: rows of a role in the run's clocks for a node's workers, by (role, node).
        welcome: the rest of a welcome: what every node is told.
        code: what `headrace.cluster.user_code.pack` gives, for nodes that ask for it.

    Raises `ConfigError` if it cannot listen.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        shared: Shared,
        control: RunControl,
        rows: Callable[[str, int], slice],
        welcome: dict[str, Any],
        code: bytes,
    ) -> None:
        self._shared, self._control, self._rows, self._welcome = shared, control, rows, welcome
        self._code, self._places = user_code.parts(code), shared.nodes
        self.nodes: dict[int, Node] = {}
        """Those that are there, by number."""
        self.notices: deque[str] = deque()
        """Texts for the user, not yet passed on."""
        self.failures: deque[str] = deque()
        """Errors of nodes that would come again."""
        self.restarts = 0
        """Processes that nodes have replaced, and nodes that were lost."""
        self._ending = False
        self._lock = threading.Lock()
        self._before = (monotonic(), self._shared.counts.copy())
        self._listener = Listener(endpoint, self._answer, streams=self._places + SPARE_STREAMS)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port

    # -- a thread for each stream -----------------------------------------------------------------------------------------

    def _answer(self, stream: Stream) -> Iterator[bytes]:
        stream.expect(protocol.HELLO_TIMEOUT, "no hello")
        messages = iter(stream)
        try:
            kind, hello = protocol.from_bytes(next(messages, b""))
            if kind != "hello" or not isinstance(hello, dict):
                raise ProtocolError("the first message is no hello")
            host = str(hello.get("host"))[:100]
            protocol.check_versions(hello.get("versions"), host)
        except (Refused, ProtocolError) as error:
            self.notices.append(f"A node was refused: {error}")
            yield protocol.to_bytes("refused", str(error))
            return
        node = self._admit(host, stream)
        if node is None:
            yield protocol.to_bytes("busy", f"all of the {self._places} nodes of the run are there (cluster.nodes)")
            return
        threading.Thread(target=self._receive, args=(node, messages), name=f"node {node.number}", daemon=True).start()
        place = {"node": node.number, "generation": node.generation, "port": self._shared.port.load(node.number)}
        try:
            code = self._code if hello.get("code") else []
            yield protocol.to_bytes("welcome", self._welcome | place | {"code": len(code)})
            yield from code
            yield from stream.outgoing()
        finally:
            self._leave(node, stream.ended or "it has gone")

    def _admit(self, host: str, stream: Stream) -> Node | None:
        """Give a free place to a node, the last one first: the last workers explore least, and their episodes are reported."""
        with self._lock:
            listening = [k for k in range(self._places) if self._shared.port.load(k)]
            free = [k for k in listening if k not in self.nodes]
            if not free or self._ending:
                return None
            number = free[-1]
            self._shared.generation.add(number, 1)
            node = self.nodes[number] = Node(number, self._shared.generation.load(number), host, stream)
        self.notices.append(f"Node {number} ({host}) takes part: {len(self.nodes)} of {self._places} are there")
        return node

    def _leave(self, node: Node, why: str) -> None:
        with self._lock:
            if self.nodes.get(node.number) is not node:
                return
            del self.nodes[node.number]
            self._shared.generation.add(node.number, 1)  # its receiver takes no more from it
        if not self._ending:
            self.restarts += 1
            there = f"{len(self.nodes)} of {self._places} are there"
            self.notices.append(f"Node {node.number} ({node.host}) is gone ({why}): {there}")
        node.stream.close()

    def _receive(self, node: Node, messages: Iterator[bytes]) -> None:
        late = f"no report for {SILENCE:.0f} s"
        try:
            node.stream.expect(START_TIMEOUT, late)
            for message in messages:
                node.stream.expect(SILENCE, late)
                kind, content = protocol.from_bytes(message)
                if kind == "status":
                    self._note(node, content)
                elif kind == "message":
                    self.notices.append(f"Node {node.number}: {str(content)[:10_000]}")
                elif kind == "failed":
                    text = str(content)[:100_000]
                    self.failures.append(f"node {node.number} ({node.host}): {text}{user_code.missing_package(text)}")
        except (ProtocolError, Refused, KeyError, TypeError, ValueError) as error:
            node.stream.close(f"it sent what is no report: {error}")
        self._leave(node, node.stream.ended)

    def _note(self, node: Node, status: dict[str, Any]) -> None:
        """Add what its workers have done since the last status to the run's clocks, and its restarts to the run's."""
        for role, times in status["clocks"].items():
            rows = self._control.clocks[role][self._rows(role, node.number)]
            now = np.asarray(times, np.float64)
            if now.shape != rows.shape:
                raise ValueError(f"clocks of {now.shape}")
            change = now - node.clocks.get(role, np.zeros_like(now))
            change[:, -2] = 0  # heartbeats are those of processes here
            rows += change
            node.clocks[role] = now
        self.restarts += int(status["restarts"]) - node.restarts
        node.restarts = int(status["restarts"])

    # -- the main thread --------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """The number of nodes; of every one that is there `headrace.runs.metrics.OF_NODE`, since the last call."""
        (since, before), now, counts = self._before, monotonic(), self._shared.counts.copy()
        self._before = (now, counts)
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

    def end(self) -> None:
        """Tell every node that the run ends, and admit no more."""
        self._ending = True
        for node in list(self.nodes.values()):
            node.stream.send(protocol.to_bytes("end", None))

    def close(self) -> None:
        """Stop listening; streams that are open are ended."""
        self._ending = True
        self._listener.stop(0.2)
