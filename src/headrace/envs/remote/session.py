"""The simulator's side of a stream: makes a group on a hello, and steps it on requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.envs.core.contract import EnvGroup, EnvSpec
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.core.rows import lane_row
from headrace.envs.groups.base import Completion
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import GroupLayout, Hello, Welcome
from headrace.transport.messages import HEADER, ProtocolError, Refused, header

MakeGroup = Callable[[int, bool], EnvGroup]
"""make_group(number of environments, whether they are for training)"""


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
        self.used = 0
        """Environments in use."""
        self._lock = threading.Lock()

    def take(self, number: int) -> None:
        """Reserve environments. Raises `Refused` if fewer are free."""
        with self._lock:
            if self.used + number > self.num_envs:
                raise Refused(
                    f"{number} environments are asked for, and {self.num_envs - self.used} of {self.num_envs} are free: start "
                    "the server with a larger --num-envs, or more servers"
                )
            self.used += number

    def give_back(self, number: int) -> None:
        """Free environments that `take` has reserved."""
        with self._lock:
            self.used -= number


class Session:
    """Answers the requests of one stream."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._group: EnvGroup | None = None
        self._taken = 0

    def answers(self, requests: Iterator[bytes], began: Callable[[Hello], None] = lambda hello: None) -> Iterator[bytes]:
        """Answer the requests one by one, then close the group. Calls `began` with the hello when it accepts it."""
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
        schema: list[Any] = []
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
            self._layout = layout = GroupLayout(group.spec, lanes, lane_size)
            schema = layout.schema()
            self._buffer = bytearray(layout.largest.nbytes)
            self._arrays = layout.largest.views(self._buffer)
            self._actions = np.zeros(layout.requests[protocol.STEP].arrays["action"].shape, group.spec.action.dtype)
            arrays = self._arrays | {"action": self._actions}
            self._rows = [lane_row(arrays, lane, lane) for lane in range(lanes)]
            self._completion = Completion(group)
        return Welcome(offer.env, offer.options, offer.spec, lanes, lane_size, schema, offer.defaults, offer.observes)

    def _steps(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            sequence = 0
            try:
                kind, sequence = header(request)
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
        layout, group = self._layout, self._group
        if kind not in layout.requests:
            raise ProtocolError(f"a request of kind {kind}")
        asked = layout.requests[kind].read(request)
        if kind == protocol.RESET:
            group.reset(int(asked["seed"]) % 2**31, [row.after for row in self._rows])
            reply = protocol.OBSERVED
        else:
            self._actions[:] = asked["action"]
            group.send(self._rows)
            reply = protocol.STEPPED
        self._completion.wait()
        if kind == protocol.STEP and protocol.STEPPED_FINAL in layout.replies:
            ended = self._arrays["terminated"].any() or self._arrays["truncated"].any()
            reply = protocol.STEPPED_FINAL if ended else reply
        if group.spec.agents:
            self._write_matches(group, reply)
        HEADER.pack_into(self._buffer, 0, reply, sequence)
        return bytes(memoryview(self._buffer)[: layout.replies[reply].nbytes])

    def _write_matches(self, group: Any, reply: int) -> None:
        """Write which lanes have a new observation, which matches ended with this step, and their outcomes."""
        advanced, ended, outcome = (self._arrays[name] for name in ("advanced", "ended", "outcome"))
        advanced[:], ended[:] = False, False
        advanced[list(group.advanced)] = True
        for m in group.ended if reply != protocol.OBSERVED else ():
            ended[m], outcome[m] = True, group.outcomes(m)

    def _close(self) -> None:
        try:
            if self._group is not None:
                self._group.close()
        finally:
            self._group = None
            self.offer.give_back(self._taken)
            self._taken = 0
