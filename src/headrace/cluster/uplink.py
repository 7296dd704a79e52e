"""The uplink of a sampling node: it takes the learner's place there.

Finished trajectories of the node's own store go to the learner's machine, newer weights come from there into the node's own
weight store. The rest of the node is an ordinary sampler that knows of no other machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from headrace.cluster import protocol
from headrace.cluster.population_codec import ResultsCodec, StateCodec
from headrace.cluster.protocol import COUNTED, CREDIT, DRAW, STATE, STATE_WRITTEN, VERSION, WANT, WEIGHTS, Link
from headrace.cluster.shard import SUMMARY, Shard
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.config import ConfigError
from headrace.runs.messages import Message
from headrace.sampling.placements.base import Placement
from headrace.sampling.worker_process import Start
from headrace.shm.primitives import Closed
from headrace.shm.run_control import POLL_INTERVAL
from headrace.transport.connection import Connection, Event
from headrace.transport.messages import HEADER, ProtocolError, Refused, header
from headrace.transport.streams import Caller, Stream, Unreachable

REPORT_INTERVAL = 1.0  # seconds between two reports of the results of matches
NOTICE_TIMEOUT = 10.0
"""Seconds without a stream that works after which the user is told why: receivers that are replaced, or of a run that ends, are
away for less."""


@dataclass(frozen=True)
class Uplink:
    """The function that `Placement.start` runs in the place of a learner: trajectories to the `port` of the receiver."""

    link: Link
    port: int
    generation: int

    def __call__(self, placement: Placement, p: int) -> Iterator[Message | None]:
        """Send and receive until the end of the node's sampling; see `headrace.sampling.placements.base.Learn`."""
        control, store = placement.memory.control, placement.memory.policies[p].trajectories
        settings = placement.config
        shard = None if settings.replay_shards is None else Shard.of(placement, p)
        kept = None if shard is None else SUMMARY
        codec = TrajectoryCodec(store, placement.spec.frame_stack, settings.cluster.compression, kept)
        clock, used = control.clock("learner", p), None
        traffic = _Traffic(self, placement, p, codec.schema(), shard)
        try:
            while not control.stopped:
                clock.spent("wait", now := perf_counter())
                traffic.report(now)
                if (trouble := traffic.trouble(now)) is not None:
                    yield Message("message", trouble, p)
                stream = traffic.credit(POLL_INTERVAL)
                if stream is not None and (slot := store.take(timeout=POLL_INTERVAL)) is not None:
                    if shard is not None:
                        shard.write(slot)
                    if stream is not used:
                        used = stream
                        codec.begin()
                    message = codec.encode(slot)
                    store.release(slot)
                    traffic.send(stream, message)
                    if shard is not None:
                        stream.send(shard.statistics())
                    clock.spent("train", perf_counter())
                yield None
        except Closed:
            pass
        finally:
            traffic.close()
        yield Message("done", None, p)


def uplink_main(start: Start) -> None:
    """The main function of the uplink's process, which does not import torch."""
    for message in start.argument(start.placement, start.index):
        if message is not None:
            start.report.send(message)


class _Traffic:
    """The stream to the receiver, which is opened again whenever it ends; a thread receives."""

    def __init__(self, uplink: Uplink, placement: Placement, p: int, arrays: list[Any], shard: Shard | None) -> None:
        memory, self._shard = placement.memory.policies[p], shard
        self._members, self._control, self._policy = placement.memory.policies, placement.memory.control, p
        self._worker, standings = placement.rollout_workers.start, placement.memory.standings
        self._state = StateCodec(placement.memory, p)
        self._results = None if standings is None or p else ResultsCodec(standings)
        self._reported, self._report_due = b"", 0.0
        self._hello = {"policy": p, "generation": uplink.generation, "arrays": arrays, "weights": memory.weights.nbytes}
        self._hello |= {"shard": None if shard is None else shard.schema, "state": self._state.schema()}
        self._stream: Stream | None = None
        self._credits = 0
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._since, self._reason = 0.0, ""
        """When the stream failed the first time since weights have come through one (perf_counter; 0: not since then), and why it
        has failed last."""
        self._reported_reasons, self._learner = set[str](), uplink.link.address.rpartition(":")[0] + f":{uplink.port}"
        caller = Caller(uplink.link.endpoint(protocol.TRAJECTORIES, uplink.port), protocol.FLAGS)
        self._connection = Connection(caller, self._greet, self._handle, "uplink")
        self._connection.start()

    def credit(self, timeout: float) -> Stream | None:
        """The stream if it has a credit; waited for up to `timeout` seconds. Raises what failed while the shard was asked, and
        `ConfigError` if the learner's machine refuses what this node sends."""
        if self._failure is not None:
            raise self._failure
        with self._changed:
            if not self._credits:
                self._changed.wait(timeout)
            return self._stream if self._credits else None

    def send(self, stream: Stream, message: bytes) -> None:
        """Use a credit of this stream; if it has ended meanwhile, the trajectory is lost with it."""
        with self._changed:
            if stream is self._stream:
                self._credits -= 1
                stream.send(message)

    def report(self, now: float) -> None:
        """Once in a while, send the results of the node's matches if there are new ones."""
        if self._results is None or now < self._report_due:
            return
        self._report_due = now + REPORT_INTERVAL
        message = self._results.results()
        with self._changed:
            if self._stream is not None and message is not None and message != self._reported:
                self._stream.send(message)
                self._reported = message

    def trouble(self, now: float) -> str | None:
        """What the user should know of a stream that has not worked for some time; each reason once."""
        waits = self._stream is None and self._since > 0 and now > self._since + NOTICE_TIMEOUT
        if not waits or (reason := self._reason) in self._reported_reasons:
            return None
        self._reported_reasons.add(reason)
        return f"No trajectories reach the learner's machine at {self._learner}: {reason}. This node keeps trying"

    def close(self) -> None:
        self._connection.close()

    # -- the connection's thread ------------------------------------------------------------------------------------------

    def _greet(self, stream: Stream) -> tuple[Any, Iterator[bytes]]:
        stream.timeout = protocol.HELLO_TIMEOUT
        stream.request(protocol.to_bytes("hello", self._hello))
        messages = iter(stream)
        if (first := next(messages, None)) is None:
            raise Unreachable(stream.ended, stream.hopeless)
        try:
            kind, content = protocol.from_bytes(first)
        except Refused as refused:  # for ever, so trying again is no use: handed to the main thread, which raises it
            self._failure = ConfigError(
                f"the learner's machine refuses what this node sends: {refused}. Both must have the same files of the run "
                "(--import) and the same versions of its packages"
            )
            raise
        if kind == "busy":
            raise Unreachable(str(content))
        if kind != "welcome":
            raise ProtocolError("the learner's first message is no welcome")
        return None, messages

    def _handle(self, event: Event, stream: Stream | None, content: Any) -> None:
        if event == "message":
            assert stream is not None
            kind, number = header(content)
            if kind == WEIGHTS:
                self._since = 0.0
                self._publish(self._policy, content, number)
                self._control.set_ready(self._policy)
                stream.send(HEADER.pack(WANT, 0))
            elif kind == CREDIT:
                with self._changed:  # the main thread uses credits meanwhile
                    self._credits += number
                    self._changed.notify()
            elif kind == DRAW and self._shard is not None:
                self._answer(self._shard, stream, content)
            elif kind == VERSION and self._state.may_replace(number):
                self._publish(number, content, 0)  # nobody asks for the version of weights that never change
            elif kind == STATE:
                self._state.apply(content)
                stream.send(HEADER.pack(STATE_WRITTEN, 0))
            elif kind == COUNTED and self._results is not None:
                self._results.count_on(content, self._worker)
        elif event == "up":
            assert stream is not None
            self._change(stream)
            stream.send(HEADER.pack(WANT, 0))
            if self._shard is not None:
                stream.send(self._shard.statistics())
        else:
            self._reason, self._since = str(content), self._since or perf_counter()
            self._change(None)

    def _publish(self, member: int, message: bytes, version: int) -> None:
        self._members[member].weights.publish(np.frombuffer(message, np.uint8, offset=HEADER.size), version)

    def _answer(self, shard: Shard, stream: Stream, request: bytes) -> None:
        try:
            stream.send(shard.answer(request))
        except Exception as failure:  # handed to the main thread, which raises it
            self._failure = failure

    def _change(self, stream: Stream | None) -> None:
        """From now on this is the stream; it has no credits yet."""
        with self._changed:
            if stream is not self._stream:
                self._reported = b""
            self._stream, self._credits = stream, 0
            self._changed.notify()
