"""The receiver of one node's trajectories: it takes the place of a rollout worker on the learner's side.

It acquires free slots of the trajectory store, gives a credit to the node for each, and writes the trajectory that comes into the
slot. What slows a rollout worker down, and what happens when it is killed, is the same here. It sends the newest weights whenever
the node wants some and there are newer ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import numpy as np

from headrace.cluster import protocol
from headrace.cluster.protocol import CREDIT, SAMPLES, SHARD, TRAJECTORY, WANT, WEIGHTS
from headrace.cluster.shard_relay import ShardRelay
from headrace.cluster.sharded_replay import ShardedReplay
from headrace.cluster.shared import COUNTS, Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.sampling.placements.base import Placement
from headrace.sampling.worker_process import Start
from headrace.shm.primitives import Closed
from headrace.shm.run_control import POLL_INTERVAL
from headrace.transport.listeners import Listener
from headrace.transport.messages import HEADER, ProtocolError, Refused, header
from headrace.transport.streams import Stream

STREAMS = 4
"""Streams at a time: the node's, and others that are about to be refused."""


@dataclass(eq=False)
class _Session:
    """The stream of the node that is admitted now."""

    stream: Stream
    generation: int
    slots: list[int] = field(default_factory=list)
    """Slots for which the node has credits."""
    wants: bool = False
    """Whether the node waits for weights."""
    sent: int = 0
    """`WeightStore.updates` of the weights sent last."""


def receiver_main(shared: Shared, start: Start) -> None:
    """The main function of a receiver's process; `start.index` is the node."""
    receiver = Receiver(start.placement, shared, start.index)
    try:
        receiver.run()
    finally:
        receiver.close()


class Receiver:
    """Receives the trajectories of `node`."""

    def __init__(self, placement: Placement, shared: Shared, node: int) -> None:
        self.node, self._control, self._shared = node, placement.memory.control, shared
        self._store, self._weights = placement.memory.policies[0].trajectories, placement.memory.policies[0].weights
        replay = placement.memory.policies[0].replay
        self._relay = ShardRelay(replay, node) if isinstance(replay, ShardedReplay) else None
        settings = placement.config.cluster
        self._codec = TrajectoryCodec(self._store, placement.spec.frame_stack, settings.compression)
        self._window = settings.window
        self._session: _Session | None = None
        self._spare: list[int] = []
        """Slots of this receiver for which nobody has a credit."""
        self._lock = threading.Lock()
        self._content: Any = np.zeros(self._weights.nbytes, np.uint8)
        self._weights_lock = threading.Lock()
        self._changed = threading.Event()
        """There may be a credit to give."""
        self._counts = self._shared.counts[node]
        self._clock = self._control.clock("rollout", node)
        self._listener = Listener(shared.endpoint(node), self._answer, streams=STREAMS, share_port=True)
        self._shared.port.store(node, self._listener.port)

    # -- the main thread: credits, and the threads that it starts ---------------------------------------------------------

    def run(self) -> None:
        """Until the end of the run."""
        threading.Thread(target=self._send_weights, name="weights", daemon=True).start()
        if self._relay is not None:
            threading.Thread(target=self._relay.run, args=(self._control,), name="requests", daemon=True).start()
        began = process_time() - self._counts[COUNTS.index("seconds")]
        while not self._control.stopped:
            self._clock.alive(perf_counter())
            self._counts[COUNTS.index("seconds")] = process_time() - began
            session = self._admitted()
            if session is None or len(session.slots) >= self._window:
                self._changed.wait(POLL_INTERVAL)
                self._changed.clear()
            else:
                self._give_credit(session, POLL_INTERVAL)

    def _admitted(self) -> _Session | None:
        """The session, if its generation is still the newest; otherwise it is ended."""
        session = self._session
        if session is not None and session.generation != self._shared.generation.load(self.node):
            self._drop(session, "another node has this place")
            return None
        return session

    def _give_credit(self, session: _Session, timeout: float) -> bool:
        with self._lock:
            slot = self._spare.pop() if self._spare else None
        if slot is None:
            slot = self._store.acquire(self.node, timeout)
        if slot is None:
            return False
        with self._lock:
            if session is not self._session:
                self._spare.append(slot)
                return False
            session.slots.append(slot)
        session.stream.send(HEADER.pack(CREDIT, 0))
        return True

    def _drop(self, session: _Session, why: str) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
                self._spare += session.slots
                if self._relay is not None:
                    self._relay.end()
        session.stream.close(why)

    # -- a thread for each stream -----------------------------------------------------------------------------------------

    def _answer(self, stream: Stream) -> Iterator[bytes]:
        stream.expect(protocol.HELLO_TIMEOUT, "no hello")
        messages = iter(stream)
        try:
            session = _Session(stream, self._greeted(next(messages, b"")))
        except (Refused, ProtocolError) as error:
            yield protocol.to_bytes("refused", str(error))
            return
        if (before := self._session) is not None:
            self._drop(before, "the node has opened another stream")
        yield protocol.to_bytes("welcome", {})
        with self._lock:
            self._session = session
            if self._relay is not None:
                self._relay.begin(stream, session.generation)
        self._changed.set()
        threading.Thread(target=self._receive, args=(session, messages), name="trajectories", daemon=True).start()
        yield from stream.outgoing()
        self._drop(session, "the node has gone")

    def _greeted(self, message: bytes) -> int:
        """The generation of a node that fits. Raises `Refused` or `ProtocolError`."""
        kind, hello = protocol.from_bytes(message)
        if kind != "hello" or not isinstance(hello, dict):
            raise ProtocolError("the first message is no hello")
        generation = self._shared.generation.load(self.node)
        if hello.get("generation") != generation:
            raise Refused("another node has this place")
        if hello.get("arrays") != self._codec.schema() or hello.get("weights") != self._weights.nbytes:
            raise Refused("the node's trajectories or weights have other arrays than the learner's")
        if hello.get("shard") != (None if self._relay is None else self._relay.schema):
            raise Refused("the node's shard of the replay holds other arrays than the learner's")
        return generation

    def _receive(self, session: _Session, messages: Iterator[bytes]) -> None:
        try:
            for message in messages:
                kind, order = header(message)
                if kind == WANT:
                    session.wants = True
                    self._send_newest(session)
                elif kind in (SHARD, SAMPLES) and self._relay is not None:
                    self._counts[COUNTS.index("bytes")] += len(message)
                    with self._lock:
                        if session is not self._session:
                            break
                        self._relay.receive(kind, message)
                elif kind != TRAJECTORY or not self._write(session, message, order):
                    break
        except ProtocolError as error:
            self._drop(session, str(error))
        except Closed:
            pass
        self._drop(session, "the stream has ended")

    def _write(self, session: _Session, message: bytes, order: int) -> bool:
        """Write a trajectory into a slot. False if this session may not any more."""
        with self._lock:
            if session is not self._session or session.generation != self._shared.generation.load(self.node):
                return False
            if not session.slots:
                raise ProtocolError("a trajectory without a credit")
            slot = session.slots[-1]
            self._codec.decode(message, slot)
            self._count(slot, len(message))
            session.slots.pop()
            self._store.finish(slot, order)
        # The next credit goes out at once where a slot is free; else the main thread waits for one.
        if not self._give_credit(session, 0):
            self._changed.set()
        return True

    def _count(self, slot: int, nbytes: int) -> None:
        T, arrays = self._store.T, self._store.arrays
        lag = max(0, self._weights.version - int(arrays["version"][slot, -1].max()))
        brought = {"steps": arrays["valid"][slot, :T].sum(), "trajectories": 1, "bytes": nbytes, "lag": lag}
        for name, count in brought.items():
            self._counts[COUNTS.index(name)] += count

    # -- the thread that sends weights ------------------------------------------------------------------------------------

    def _send_weights(self) -> None:
        while not self._control.stopped:
            seen = self._weights.updates
            if (session := self._session) is not None:
                self._send_newest(session)
            self._weights.wait(seen, POLL_INTERVAL)

    def _send_newest(self, session: _Session) -> None:
        """Send the newest weights if the node wants some and has older ones; it does not get those in between."""
        with self._weights_lock:
            updates = self._weights.updates
            if not session.wants or updates == session.sent:
                return
            session.sent, session.wants = updates, False
            version = self._weights.read(self._content)
            session.stream.send(HEADER.pack(WEIGHTS, version % 2**32) + self._content.tobytes())
            self._counts[COUNTS.index("weights")] += 1
            self._counts[COUNTS.index("weight_bytes")] += self._content.nbytes

    def close(self) -> None:
        """End the stream, and stop listening."""
        if (session := self._session) is not None:
            self._drop(session, "the run has ended")
        with suppress(RuntimeError):
            self._listener.stop(0.2)
