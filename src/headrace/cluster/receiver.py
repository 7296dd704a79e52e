"""The receiver of one node's trajectories: it takes the place of a rollout worker on the learner's side.

For every policy the node has a stream to it. The node begins with `cluster.window` credits, and each trajectory that it sends
uses one. The receiver writes it into a slot of the policy's trajectory store, as soon as one is free, and gives the credit back.
What slows a rollout worker down, and what happens when it is killed, is the same here; no slot is kept for a node that sends
nothing. It sends the newest weights whenever the node wants some and there are newer ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import numpy as np

from headrace.accelerator.cpu_allocator import keep_freed_memory
from headrace.cluster import protocol
from headrace.cluster.population_codec import ResultsCodec, StateCodec
from headrace.cluster.protocol import CREDIT, RESULTS, SAMPLES, SHARD, STATE_WRITTEN, TRAJECTORY, VERSION, WANT, WEIGHTS
from headrace.cluster.shard_relay import ShardRelay
from headrace.cluster.sharded_replay import ShardedReplay
from headrace.cluster.shared import COUNTS, Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.runs.messages import Message
from headrace.sampling.placements.base import Placement
from headrace.sampling.worker_process import Start
from headrace.shm.primitives import Closed
from headrace.shm.run_control import POLL_INTERVAL
from headrace.transport.listeners import Listener
from headrace.transport.messages import HEADER, ProtocolError, Refused, header
from headrace.transport.streams import Stream

SPARE_STREAMS = 3  # streams beside those of the node, which are about to be refused
LARGEST_ORDER = 2**31 - 1  # largest number of a trajectory, see `TrajectoryStore.order`
MOST_REASONS = 20
"""Most reasons for the end of a stream that a receiver tells the user: those of a broken node may have numbers in them."""
SLOT_POLL = 0.005  # seconds that one policy waits for a free slot while trajectories of others may wait, too


@dataclass(eq=False)
class _Session:
    """A stream of the node that is admitted now."""

    stream: Stream
    generation: int
    waiting: deque[bytes] = field(default_factory=deque)
    """Trajectories that have arrived and wait for a slot, the oldest first: at most as many as the node has had credits."""
    wants: bool = False  # whether the node waits for weights
    sent: int = 0  # `WeightStore.updates` of the weights sent last
    state_written: bool = True  # whether the node has written the state sent last
    state: bytes = b""  # that state
    state_due: float = 0.0  # when the next one may be sent (perf_counter)
    versions: dict[int, int] = field(default_factory=dict)
    """The past versions that were sent: the step of the one in each place."""


def receiver_main(shared: Shared, start: Start) -> None:
    """The main function of a receiver's process; `start.index` is the node."""
    keep_freed_memory()  # each message is unpacked into memory of its own
    receiver = Receiver(start.placement, shared, start.index, lambda text: start.report.send(Message("message", text)))
    try:
        receiver.run()
    finally:
        receiver.close()


class Receiver:
    """Receives the trajectories of `node`. `say`: shows a text to the user."""

    def __init__(self, placement: Placement, shared: Shared, node: int, say: Callable[[str], None] = lambda text: None) -> None:
        self.node, self._control, self._shared = node, placement.memory.control, shared
        self._say, self._reasons = say, set[str]()
        self._standings = placement.memory.standings
        self.counts, self.lock = shared.counts[node], threading.Lock()
        """What has arrived from the node, see `Shared.counts`; and what is held while something of a session is written."""
        self.changed = threading.Event()  # a trajectory waits for a slot
        self._clock = self._control.clock("rollout", node)
        self._policies = [PolicyReceiver(self, placement, shared, p) for p in range(placement.memory.learners)]
        streams = len(self._policies) + SPARE_STREAMS
        self._listener = Listener(shared.endpoint(node), self._answer, streams=streams, share_port=True)
        self._shared.port.store(node, self._listener.port)

    def run(self) -> None:
        """Until the end of the run: write trajectories for which no slot was free when they arrived."""
        for policy in self._policies:
            policy.start()
        timeout = POLL_INTERVAL if len(self._policies) == 1 else SLOT_POLL
        began = process_time() - self.counts[COUNTS.index("seconds")]
        with suppress(Closed):
            while not self._control.stopped:
                self._clock.alive(perf_counter())
                self.counts[COUNTS.index("seconds")] = process_time() - began
                self.forget_former_node()
                if not any([policy.write_oldest(timeout) for policy in self._policies]):  # noqa: C419  all are asked
                    self.changed.wait(POLL_INTERVAL)
                    self.changed.clear()

    def forget_former_node(self) -> None:
        """If the node that had this number is gone, this receiver no longer counts as a user of the past versions that the node
        had."""
        generation = self._shared.generation.load(self.node)
        if self._standings is not None and self._shared.user_generation.load(self.node) != generation:
            with self.lock:
                self._standings.users[self.node] = 0
                self._shared.user_generation.store(self.node, generation)

    def _answer(self, stream: Stream) -> Iterator[bytes]:
        """A thread for each stream."""
        stream.expect(protocol.HELLO_TIMEOUT, "no hello")
        messages = iter(stream)
        try:
            if (first := next(messages, None)) is None:  # it has gone before it said anything
                return
            kind, hello = protocol.from_bytes(first)
            if kind != "hello" or not isinstance(hello, dict) or hello.get("policy") not in range(len(self._policies)):
                raise ProtocolError("the first message is no hello")
            policy = self._policies[hello["policy"]]
            generation = policy.admit(hello)
        except (Refused, ProtocolError) as error:
            self.note(f"refused: {error}")
            yield protocol.to_bytes("refused", str(error))
            return
        if generation is None:
            yield protocol.to_bytes("busy", "another node has this place")
            return
        self.forget_former_node()
        yield from policy.serve(_Session(stream, generation), messages)

    def note(self, reason: str) -> None:
        """Tell the user why a stream of the node was not taken, or ended; each reason once."""
        if reason not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.add(reason)
            self._say(f"A stream of trajectories from node {self.node} was {reason}")

    def close(self) -> None:
        """End the streams, and stop listening."""
        for policy in self._policies:
            policy.close()
        with suppress(RuntimeError):
            self._listener.stop(0.2)


class PolicyReceiver:
    """The receiver's part for policy `p`."""

    def __init__(self, receiver: Receiver, placement: Placement, shared: Shared, p: int) -> None:
        self.node, self._receiver, self._shared, self._lock = receiver.node, receiver, shared, receiver.lock
        self._control, memory = placement.memory.control, placement.memory.policies[p]
        self._store, self._weights, self._counts = memory.trajectories, memory.weights, receiver.counts
        self._relay = ShardRelay(memory.replay, self.node) if isinstance(memory.replay, ShardedReplay) else None
        standings, settings = placement.memory.standings, placement.config.cluster
        self._state = StateCodec(placement.memory, p)
        self._results = None if standings is None or p else ResultsCodec(standings)
        self._members = placement.memory.policies
        self._codec = TrajectoryCodec(self._store, placement.spec.frame_stack, settings.compression)
        self._window = settings.window
        self._session: _Session | None = None
        self._content: Any = np.zeros(self._weights.nbytes, np.uint8)
        self._weights_lock = threading.Lock()

    def start(self) -> None:
        """Start the threads that send."""
        threading.Thread(target=self._send_weights, name="weights", daemon=True).start()
        if self._relay is not None:
            threading.Thread(target=self._relay.run, args=(self._control,), name="requests", daemon=True).start()

    # -- the main thread: trajectories that wait for a slot ---------------------------------------------------------------

    def write_oldest(self, timeout: float) -> bool:
        """Write the trajectory that has waited longest, if a slot is free within `timeout` seconds. False if none waits."""
        session = self._admitted()
        if session is None or not session.waiting:
            return False
        if (slot := self._store.acquire(self.node, timeout)) is None:
            return True
        written = False
        try:
            written = self._write(session, slot)
        except ProtocolError as error:
            self._end(session, error)
        finally:  # whatever it was: a slot that is kept would be lost to all nodes
            if not written:
                self._store.put_back(slot, self.node)
        if written:
            session.stream.send(HEADER.pack(CREDIT, 1))
        return True

    def _admitted(self) -> _Session | None:
        """The session, if its generation is still the newest; otherwise it is ended."""
        session = self._session
        if session is not None and session.generation != self._shared.generation.load(self.node):
            self._drop(session, "another node has this place")
            return None
        return session

    def _write(self, session: _Session, slot: int) -> bool:
        """Write the oldest trajectory into a slot. False if the session has ended, or the other thread has written it; raises
        `ProtocolError` for a damaged one."""
        with self._lock:
            if not self._may_write(session) or not session.waiting:
                return False
            message = session.waiting.popleft()
            self._codec.decode(message, slot)
            self._count(slot, len(message))
            self._store.finish(slot, header(message)[1])
            return True

    def _drop(self, session: _Session, why: str) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
                if self._relay is not None:
                    self._relay.end()
        session.stream.close(why)

    def _end(self, session: _Session, error: ProtocolError) -> None:
        """End a session whose node violates the protocol, and tell the user."""
        self._receiver.note(f"ended: {error}")
        self._drop(session, str(error))

    # -- a thread for each stream -----------------------------------------------------------------------------------------

    def admit(self, hello: dict[str, Any]) -> int | None:
        """The generation of a node that fits; None if another node has this place. Raises `Refused` for one that never fits."""
        generation = self._shared.generation.load(self.node)
        if hello.get("generation") != generation:
            return None
        if hello.get("arrays") != self._codec.schema() or hello.get("weights") != self._weights.nbytes:
            raise Refused("the node's trajectories or weights have other arrays than the learner's")
        if hello.get("shard") != (None if self._relay is None else self._relay.schema):
            raise Refused("the node's shard of the replay holds other arrays than the learner's")
        if hello.get("state") != self._state.schema():
            raise Refused("the node has other members of the population than the learner")
        return generation

    def serve(self, session: _Session, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The messages to send in this session, until it ends."""
        yield protocol.to_bytes("welcome", {})
        with self._lock:
            before, self._session = self._session, session
            self._codec.begin()
            if self._relay is not None:
                self._relay.begin(session.stream, session.generation)
            if self._results is not None:
                session.stream.send(self._results.counted(self.node))
        if before is not None:
            before.stream.close("the node has opened another stream")
        session.stream.send(HEADER.pack(CREDIT, self._window))
        threading.Thread(target=self._receive, args=(session, messages), name="trajectories", daemon=True).start()
        yield from session.stream.outgoing()
        self._drop(session, "the node has gone")

    def _receive(self, session: _Session, messages: Iterator[bytes]) -> None:
        try:
            for message in messages:
                kind, order = header(message)
                if kind == WANT:
                    session.wants = True
                    self._send_newest(session)
                elif kind == STATE_WRITTEN:
                    session.state_written = True
                elif kind == RESULTS and self._results is not None:
                    with self._lock:
                        if not self._may_write(session):
                            break
                        self._results.take(message, self.node)
                elif kind in (SHARD, SAMPLES) and self._relay is not None:
                    self._counts[COUNTS.index("bytes")] += len(message)
                    with self._lock:
                        if session is not self._session:
                            break
                        self._relay.receive(kind, message)
                elif kind == TRAJECTORY:
                    self._accept(session, message, order)
                else:
                    break
        except ProtocolError as error:
            self._end(session, error)
        except Closed:
            pass
        finally:  # whatever it was: else the node would wait for credits for ever
            self._drop(session, "the stream has ended")

    def _may_write(self, session: _Session) -> bool:
        """Whether this session is still that of the newest node; the lock is held."""
        return session is self._session and session.generation == self._shared.generation.load(self.node)

    def _accept(self, session: _Session, message: bytes, order: int) -> None:
        """Write a trajectory that has arrived, at once where a slot is free; else the main thread waits for one, so that this
        thread can go on to what the node says of weights."""
        if len(session.waiting) == self._window:
            raise ProtocolError("a trajectory without a credit")
        if order > LARGEST_ORDER:
            raise ProtocolError(f"a trajectory with the number {order}")
        session.waiting.append(message)
        self.write_oldest(0)
        if session.waiting:
            self._receiver.changed.set()

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
            self._send_state(session)
            updates = self._weights.updates
            if not session.wants or updates == session.sent:
                return
            session.sent, session.wants = updates, False
            version = self._weights.read(self._content)
            session.stream.send(HEADER.pack(WEIGHTS, version % 2**32) + self._content.tobytes())
            self._counts[COUNTS.index("weights")] += 1
            self._counts[COUNTS.index("weight_bytes")] += self._content.nbytes

    def _send_state(self, session: _Session) -> None:
        """Tell the node what is new in the population, once it has written what it was told before; past versions first."""
        if not self._state.needed or not session.state_written or (now := perf_counter()) < session.state_due:
            return
        with self._lock:
            if not self._may_write(session):
                return
            state, playable = self._state.state(self.node)
        for member, step in playable.items():
            if session.versions.get(member) != step:
                self._members[member].weights.read(self._content)
                session.stream.send(HEADER.pack(VERSION, member) + self._content.tobytes())
        session.versions, session.state_due = playable, now + POLL_INTERVAL
        if state != session.state:
            session.state, session.state_written = state, False
            session.stream.send(state)

    def close(self) -> None:
        if (session := self._session) is not None:
            self._drop(session, "the run has ended")
