"""The simulator's side of a stream: makes a group on a hello, and steps it on requests."""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow
from headrace.envs.core.errors import EnvironmentFault, TooFewFree, cause
from headrace.envs.groups.base import Completion
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import GroupLayout, Hello, Welcome
from headrace.transport.messages import HEADER, ProtocolError, Refused, header

LONGEST_STEP_ALONE = 5.0  # seconds that environments may take for a step, or for being closed, after their trainer has gone
MakeGroup = Callable[[int, bool], EnvGroup]  # make_group(number of environments, whether they are for training)


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
        self._in_use: dict[Session, int] = {}
        self._lock = threading.Condition()

    @property
    def used(self) -> int:
        with self._lock:
            return sum(self._in_use.values())

    def take(self, session: Session, number: int) -> None:
        """Reserve environments. Raises `TooFewFree` if fewer are free."""
        with self._lock:
            free = self.num_envs - sum(self._in_use.values())
            if number > free:
                raise TooFewFree(
                    f"{number} environments are asked for, and {free} of {self.num_envs} are free: start the server with a "
                    "larger --num-envs, or more servers",
                    free,
                )
            self._in_use[session] = number

    def give_back(self, session: Session) -> int:
        """Free what a session has reserved; returns their number."""
        with self._lock:
            self._lock.notify_all()
            return self._in_use.pop(session, 0)

    def wait_until_free(self, seconds: float) -> None:
        """Wait until every session has given back what it had reserved, up to so many seconds."""
        with self._lock:
            self._lock.wait_for(lambda: not self._in_use, seconds)


class Session:
    """Answers the requests of one stream. `report`: shows a message to whoever runs the server."""

    def __init__(self, offer: Offer, report: Callable[[str], None] = lambda text: None) -> None:
        self.offer, self._report = offer, report
        self._group: EnvGroup | None = None
        self._thread = 0
        self._seed = self._step = 0

    def answers(self, requests: Iterator[bytes], began: Callable[[Hello], None] = lambda hello: None) -> Iterator[bytes]:
        """Answer the requests one by one, then close the group. Calls `began` with the hello when it accepts it."""
        self._thread = threading.get_ident()
        try:
            first = next(requests, None)
            if first is None:
                return
            try:
                hello = Hello.from_bytes(first)
                welcome = self._open(hello)
            except (Refused, ProtocolError) as error:
                yield protocol.refusal(error)
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
            offer.take(self, hello.num_envs)
            try:
                group = self._group = offer.make_group(hello.num_envs, hello.training)
            except BaseException as error:
                raise Refused(f"the environments cannot be made: {cause(error)}") from error
            lanes, lane_size = group.lanes, group.lane_size
            self._layout = layout = GroupLayout(group.spec, lanes, lane_size)
            schema = layout.schema()
            self._buffer = bytearray(layout.largest.nbytes)
            self._arrays = layout.largest.views(self._buffer)
            self._actions = np.zeros(layout.requests[protocol.STEP].arrays["action"].shape, group.spec.action.dtype)
            arrays = self._arrays | {"action": self._actions}
            self._rows = [LaneRow.view(arrays, lane, lane) for lane in range(lanes)]
            self._completion = Completion(group)
        return Welcome(offer.env, offer.options, offer.spec, lanes, lane_size, schema, offer.defaults, offer.observes)

    def _steps(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            sequence = 0
            try:
                kind, sequence = header(request)
                reply = self._answer(kind, sequence, request)
            except ProtocolError as error:
                yield protocol.refusal(error)
                return
            except BaseException as error:  # an environment may raise anything, and gRPC drops what is no Exception
                fault = error if isinstance(error, EnvironmentFault) else self._fault(error)
                yield protocol.fault_reply(sequence, str(fault), fault.frames)
                return
            yield reply

    def _fault(self, error: BaseException) -> EnvironmentFault:
        """An error that a group has not described."""
        assert self._group is not None
        seeds = f"seeds {self._seed} to {self._seed + self._group.num_envs - 1}"
        fault = EnvironmentFault(f"{self.offer.env}, one of the environments with {seeds}, step {self._step}: {cause(error)}")
        fault.__cause__ = error
        return fault

    def _answer(self, kind: int, sequence: int, request: bytes) -> bytes:
        assert self._group is not None
        layout, group = self._layout, self._group
        if kind not in layout.requests:
            raise ProtocolError(f"a request of kind {kind}")
        asked = layout.requests[kind].read(request)
        if kind == protocol.RESET:
            self._seed, self._step = int(asked["seed"]) % 2**31, 0
            group.reset(self._seed, [row.after for row in self._rows])
            reply = protocol.OBSERVED
        else:
            self._step += 1
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
            self.offer.give_back(self)

    # -- environments that hang -----------------------------------------------------------------------------------------------

    def left(self) -> None:
        """Called when the trainer has gone, perhaps because an environment hangs. If this session does not end soon, its
        environments are given up and new ones may be made instead. An exception is raised in its thread, which ends it while it
        executes Python code."""
        timer = threading.Timer(LONGEST_STEP_ALONE, self._abandon)
        timer.daemon = True
        timer.start()

    def _abandon(self) -> None:
        frame = sys._current_frames().get(self._thread)
        stack = traceback.extract_stack(frame) if frame is not None else []
        own = [i for i, entry in enumerate(stack) if entry.filename == __file__]
        if not own or not (number := self.offer.give_back(self)):  # it has ended
            return
        shown = "".join(traceback.format_list(stack[own[-1] + 1 :]))
        self._report(
            f"{shown}{self.offer.env} still does this {LONGEST_STEP_ALONE:g} s after its run has gone: {number} environments are "
            "given up, and new ones can take their place"
        )
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit))
