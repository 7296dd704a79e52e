"""The simulator's side of a stream: a hello becomes a group, requests become steps of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.envs.contract import EnvGroup, EnvironmentFault, EnvSpec
from headrace.envs.group import Completion
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import Hello, Layout, ProtocolError, Refused, Welcome

MakeGroup = Callable[[int, bool], EnvGroup]
"""From a number of environments, and whether they are for training."""


@dataclass
class Offer:
    """What a simulator serves: one kind of environment, at most `num_envs` of them at a time."""

    env: str
    options: dict[str, Any]
    spec: EnvSpec
    make_group: MakeGroup
    num_envs: int
    defaults: dict[str, Any]
    observes: str

    def __post_init__(self) -> None:
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Environments that are in use."""
        return self._used

    def take(self, number: int) -> None:
        """Take environments. Raises `Refused` where there are not so many."""
        with self._lock:
            if self._used + number > self.num_envs:
                raise Refused(
                    f"{number} environments are asked for, and {self.num_envs - self._used} of {self.num_envs} are free: start "
                    "the server with a larger --num-envs, or more servers"
                )
            self._used += number

    def give_back(self, number: int) -> None:
        """The inverse of `take`."""
        with self._lock:
            self._used -= number


class Session:
    """One stream. `requests` are answered one by one; the stream is over where that ends."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._group: EnvGroup | None = None
        self._taken = 0

    def answers(self, requests: Iterator[bytes], began: Callable[[Hello], None] = lambda hello: None) -> Iterator[bytes]:
        """Answer every request, and close the group in the end. `began` is called with the hello when it was accepted."""
        try:
            first = next(requests, None)
            if first is None:
                return
            try:
                hello = Hello.from_bytes(first)
                welcome = self._open(hello)
            except (Refused, ProtocolError) as error:
                yield protocol.refusal(str(error))
                return
            began(hello)
            yield welcome.to_bytes()
            if self._group is not None:
                yield from self._steps(requests)
        finally:
            self._close()

    def _open(self, hello: Hello) -> Welcome:
        offer = self.offer
        if hello.env and hello.env != offer.env:
            raise Refused(f"the server has {offer.env}, and {hello.env} is asked for")
        if hello.options is not None and (differ := protocol.differences(hello.options, offer.options)):
            raise Refused(f"the environment's settings differ: {differ}")
        lanes = lane_size = 0
        schema: list[dict[str, Any]] = []
        if hello.num_envs < 0:
            raise ProtocolError("a negative number of environments")
        if hello.num_envs:
            offer.take(hello.num_envs)
            self._taken = hello.num_envs
            try:
                group = self._group = offer.make_group(hello.num_envs, hello.training)
            except (Exception, SystemExit) as error:
                raise Refused(f"the environments cannot be made: {type(error).__name__}: {error}") from error
            lanes, lane_size = group.lanes, group.lane_size
            self._layout = layout = Layout(group.spec, lanes, lane_size)
            if layout.size > protocol.MOST_REPLY:
                raise Refused(
                    f"a step of {hello.num_envs} environments has {layout.size:,} bytes, and {protocol.MOST_REPLY:,} are "
                    "possible: use smaller groups"
                )
            schema = layout.schema()
            self._buffer = bytearray(layout.size)
            self._rows = layout.rows(self._buffer)
            self._after = [row.after for row in self._rows]
            self._completion = Completion(group)
        return Welcome(offer.env, offer.options, offer.spec, lanes, lane_size, schema, offer.defaults, offer.observes)

    def _steps(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            sequence = 0
            try:
                if len(request) < protocol.HEADER.size:
                    raise ProtocolError(f"a request of {len(request)} bytes")
                kind, sequence = protocol.HEADER.unpack_from(request)
                yield self._answer(kind, sequence, request)
            except ProtocolError as error:
                yield protocol.refusal(str(error))
                return
            except EnvironmentFault as fault:
                yield protocol.fault_reply(sequence, str(fault), fault.frames)
                return
            except (Exception, SystemExit) as error:
                raised = EnvironmentFault(f"{self.offer.env}: {type(error).__name__}: {error}")
                raised.__cause__ = error
                yield protocol.fault_reply(sequence, str(raised), raised.frames)
                return

    def _answer(self, kind: int, sequence: int, request: bytes) -> bytes:
        assert self._group is not None
        layout = self._layout
        if kind == protocol.RESET:
            if len(request) != protocol.HEADER.size + protocol.SEED.size:
                raise ProtocolError(f"a reset of {len(request)} bytes")
            (seed,) = protocol.SEED.unpack_from(request, protocol.HEADER.size)
            self._group.reset(seed % 2**31, self._after)
            reply = protocol.OBSERVED
        elif kind == protocol.STEP:
            layout.read_actions(request, self._rows)
            self._group.send(self._rows)
            reply = protocol.STEPPED
        else:
            raise ProtocolError(f"a request of kind {kind}")
        self._completion.wait()
        if reply == protocol.STEPPED and protocol.STEPPED_FINAL in layout.sizes:
            ended = (row.step.terminated.any() or row.step.truncated.any() for row in self._rows)
            reply = protocol.STEPPED_FINAL if any(ended) else reply
        layout.write_matches(self._buffer, self._group, reply != protocol.OBSERVED)
        protocol.HEADER.pack_into(self._buffer, 0, reply, sequence)
        return bytes(memoryview(self._buffer)[: layout.sizes[reply]])

    def _close(self) -> None:
        try:
            if self._group is not None:
                self._group.close()
        finally:
            self._group = None
            self.offer.give_back(self._taken)
            self._taken = 0
