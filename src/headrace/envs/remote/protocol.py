"""The protocol between a trainer and a simulator (environment server): a handshake in JSON, then messages of arrays.

The trainer sends the first message, whichever side has dialled:

    trainer                         simulator
    hello (JSON)          ->
                          <-        welcome (JSON) with the specification and the arrays, or refused (JSON) with the reason
    RESET seed            ->
                          <-        OBSERVED
    STEP actions          ->
                          <-        STEPPED, or STEPPED_FINAL; FAULT if the environment failed, after which the stream ends

At any time at most one message is under way, so no other flow control is needed. `headrace.transport.messages` defines how arrays
are laid out in a message, `GroupLayout` which arrays a message has.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import ArraySpec
from headrace.config import EnvConfig
from headrace.config.io import to_dict
from headrace.envs.core.contract import STEP_ARRAYS, EnvSpec, LaneRow
from headrace.envs.core.description import spec_from_json, spec_to_json
from headrace.envs.core.errors import TooFewFree
from headrace.transport.failures import TlsFlags
from headrace.transport.messages import HEADER, LARGEST_MESSAGE, MessageLayout, ProtocolError, Refused, header, read_json
from headrace.transport.streams import Service

PROTOCOL = 5  # version of this protocol. Both sides must have the same.
SERVICE = Service("/headrace.Environments/Session", "environment server", "no group waits for environments")
OF_RUN = TlsFlags("--envs.remote-ca", "--tls-cert and --tls-key")  # flags if a run calls an environment server
OF_SIMULATOR = TlsFlags("--tls-ca", "--envs.remote-tls-cert and --envs.remote-tls-key")
"""Flags if a simulator calls a run that listens."""
RESET, STEP = 1, 2  # kinds of messages from the trainer
OBSERVED, STEPPED, STEPPED_FINAL, FAULT = 1, 2, 3, 4  # kinds of messages from the simulator
LARGEST_REQUEST = 16 << 20  # most bytes of a request


# -- the handshake ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The trainer's first message: the environments that it asks for."""

    env: str  # the environment's id
    num_envs: int  # environments of the group; 0: the trainer only asks for the welcome, and the stream ends
    training: bool = True  # episodes may end before the game does; otherwise episodes are whole games
    options: dict[str, Any] | None = None  # the environment's settings that the trainer expects; None: any
    protocol: int = PROTOCOL

    def to_bytes(self) -> bytes:
        return json.dumps({"hello": dataclasses.asdict(self)}).encode()

    @staticmethod
    def from_bytes(message: bytes) -> Hello:
        """Read a hello. Raises `ProtocolError` for anything else, `Refused` for another version of the protocol."""
        hello = read_json(message).get("hello")
        if not isinstance(hello, dict) or not isinstance(hello.get("protocol"), int):
            raise ProtocolError("the first message is no hello")
        _check_versions(server=PROTOCOL, trainer=hello["protocol"])
        kinds = {"env": str, "num_envs": int, "training": bool, "options": dict | None, "protocol": int}
        if hello.keys() != kinds.keys() or not all(isinstance(hello[name], kind) for name, kind in kinds.items()):
            raise ProtocolError("the hello has other entries than this protocol's")
        return Hello(**hello)


@dataclass(frozen=True)
class Welcome:
    """The server's answer: the environments that it has."""

    env: str
    options: dict[str, Any]  # the environment's settings, as `shared_options` gives them
    spec: EnvSpec
    lanes: int
    lane_size: int
    schema: list[Any]  # `GroupLayout.schema` of the server, which must be the trainer's too
    defaults: dict[str, Any]  # default settings for training this environment, for a trainer that does not know it
    observes: str  # "images" or "vectors"

    def to_bytes(self) -> bytes:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({"welcome": fields | {"spec": spec_to_json(self.spec), "protocol": PROTOCOL}}).encode()

    @staticmethod
    def from_bytes(message: bytes) -> Welcome:
        """Read a welcome. Raises `Refused` with the server's reason, and `ProtocolError` for anything else."""
        content = read_json(message)
        if isinstance(reason := content.get("refused"), str):
            free = content.get("free")
            raise TooFewFree(reason[:1000], free) if isinstance(free, int) else Refused(reason[:1000])
        fields = content.get("welcome")
        if not isinstance(fields, dict):
            raise ProtocolError("the answer to the hello is neither a welcome nor a refusal")
        _check_versions(server=fields.get("protocol"), trainer=PROTOCOL)
        kinds = {"env": str, "options": dict, "defaults": dict, "observes": str, "lanes": int, "lane_size": int, "schema": list}
        try:
            if wrong := [name for name, kind in kinds.items() if not isinstance(fields[name], kind)]:
                raise ProtocolError(f"the welcome's {wrong[0]} is {fields[wrong[0]]!r:.80}")
            spec = spec_from_json(fields["spec"])
            _check_observations(spec)
            welcome = Welcome(spec=spec, **{name: fields[name] for name in kinds})
            if welcome.lanes < 0 or welcome.lane_size < 0:
                raise ProtocolError(f"a group of {welcome.lanes!r:.20} lanes of {welcome.lane_size!r:.20} agents")
            if welcome.lanes and welcome.schema != GroupLayout(spec, welcome.lanes, welcome.lane_size).schema():
                raise ProtocolError("the server lays out its messages in another way")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the welcome cannot be read: {type(error).__name__}: {error}") from error
        return welcome


def _check_observations(spec: EnvSpec) -> None:
    """Raise `ProtocolError` for dtypes, shapes and sizes that messages cannot have."""
    for name, array in spec.observation.items():
        if array.dtype not in (np.uint8, np.float32) or any(type(n) is not int or n < 1 for n in array.shape):
            raise ProtocolError(f"observation {name!r:.80} is {array.dtype} {array.shape!s:.80}")
        if array.nbytes > LARGEST_MESSAGE:
            raise ProtocolError(f"observation {name!r:.80} is larger than a message may be")


def _check_versions(server: Any, trainer: Any) -> None:
    if server != trainer:
        versions = f"the environment server speaks version {server!r:.20} of the protocol, the trainer version {trainer!r:.20}"
        raise Refused(f"{versions}: install the same version of headrace on both")


def refusal(reason: Refused | ProtocolError) -> bytes:
    """The message that refuses the trainer."""
    free = {"free": reason.free} if isinstance(reason, TooFewFree) else {}
    return json.dumps({"refused": str(reason)} | free).encode()


def shared_options(options: EnvConfig) -> dict[str, Any]:
    """The settings on which trainer and server must agree, as JSON types: all except settings of the connection, and of
    rewards except their weights, which the trainer applies."""
    own = {"reward_scale", "reward_clip", "reward_soft_clip"}
    return {name: value for name, value in to_dict(options).items() if name not in own and not name.startswith("remote")}


def differences(trainer: dict[str, Any], server: dict[str, Any]) -> str:
    """Text that lists the settings that differ; empty if none does."""
    names = sorted(name for name in trainer.keys() | server.keys() if trainer.get(name) != server.get(name))
    return "; ".join(
        f"envs.{name} is {json.dumps(trainer.get(name))} for the trainer and {json.dumps(server.get(name))} at the server"
        for name in names[:5]
    )


# -- the messages of a group ------------------------------------------------------------------------------------------


class GroupLayout:
    """The arrays in the messages of a group with L `lanes` of C agents (`lane_size`).

    A RESET has a seed (`seed`), a STEP the actions of all lanes (`action` [L, C, A]). Every reply begins with observations,
    `first` and `valid` ([L, C, ...]); in multi-agent environments lanes with a new observation (`advanced` [L]), matches that
    have ended (`ended` [M]) and their outcomes (`outcome` [M, agents]) follow. STEPPED adds `STEP_ARRAYS` ([L, C]) and
    `StepRow.episode_info`. STEPPED_FINAL, for same-step environments whose episodes ended, adds their true last observations. So
    the layout of each reply is the beginning of the next one's. Raises `Refused` if a reply would be too large to send.
    """

    def __init__(self, spec: EnvSpec, lanes: int, lane_size: int) -> None:
        self.spec, self.lanes, self.lane_size = spec, lanes, lane_size
        agents = len(spec.agents)
        if agents and (lanes % agents or lane_size != 1):
            raise ProtocolError(f"{lanes} lanes of {lane_size} for matches of {agents} agents")

        def array(dtype: Any, *shape: int) -> ArraySpec:
            return ArraySpec((lanes, lane_size, *shape), dtype)

        arrays = {"first": array(bool), "valid": array(bool)}
        arrays |= {f"obs/{name}": array(a.dtype, *a.shape) for name, a in spec.observation.items()}
        if agents:
            matches = lanes // agents
            arrays |= {"advanced": ArraySpec((lanes,), np.dtype(bool)), "ended": ArraySpec((matches,), np.dtype(bool))}
            arrays["outcome"] = ArraySpec((matches, agents), np.dtype(np.float64))
        self.replies = {OBSERVED: MessageLayout(arrays)}  # by kind
        arrays |= {name: array(dtype) for name, dtype in STEP_ARRAYS.items()}
        if spec.info_metrics:
            arrays["episode_info"] = array(np.float32, len(spec.info_metrics))
        self.replies[STEPPED] = self.largest = MessageLayout(arrays)
        if spec.autoreset == "same-step":
            arrays |= {f"final_obs/{name}": array(a.dtype, *a.shape) for name, a in spec.observation.items()}
            self.replies[STEPPED_FINAL] = self.largest = MessageLayout(arrays)
        self.requests = {
            RESET: MessageLayout({"seed": ArraySpec((), np.dtype(np.int64))}),
            STEP: MessageLayout({"action": array(spec.action.dtype, spec.action.width)}),
        }
        self._actions = np.zeros(self.requests[STEP].arrays["action"].shape, spec.action.dtype)
        if self.largest.nbytes > LARGEST_MESSAGE:
            size = f"{self.largest.nbytes:,} bytes, and {LARGEST_MESSAGE:,} are possible"
            raise Refused(f"a step of {lanes * lane_size} agents has {size}: use smaller groups")

    def schema(self) -> list[Any]:
        """The schemas of STEP and of the largest reply."""
        return [self.requests[STEP].schema(), self.largest.schema()]

    # -- the trainer's side -------------------------------------------------------------------------------------------

    def reset_request(self, sequence: int, seed: int) -> bytes:
        return self.requests[RESET].write(RESET, sequence, {"seed": seed})

    def step_request(self, sequence: int, rows: Sequence[LaneRow]) -> bytes:
        """A STEP with the actions of these rows; zeros for a lane whose first episode has not begun."""
        for lane, row in enumerate(rows):
            self._actions[lane] = 0 if row.actions is None else row.actions
        return self.requests[STEP].write(STEP, sequence, {"action": self._actions})

    def read_reply(self, reply: bytes, sequence: int) -> tuple[int, dict[str, np.ndarray]]:
        """The kind of a reply, and its arrays; a FAULT has none. Raises `ProtocolError` for a reply of another kind, size or
        sequence number."""
        kind, number = header(reply)
        if kind == FAULT:
            return kind, {}
        if kind not in self.replies or number != sequence:
            raise ProtocolError(f"reply {number} of kind {kind}, where reply {sequence} was expected")
        return kind, self.replies[kind].read(reply)


def fault_reply(sequence: int, message: str, frames: str) -> bytes:
    """A FAULT: the environment's error, and its traceback."""
    return HEADER.pack(FAULT, sequence) + json.dumps({"message": message, "frames": frames}).encode()


def read_fault(reply: bytes) -> tuple[str, str]:
    """(message, frames) of a FAULT. Raises `ProtocolError` for anything else."""
    content = read_json(reply[HEADER.size :])
    message, frames = content.get("message"), content.get("frames")
    if not isinstance(message, str) or not isinstance(frames, str):
        raise ProtocolError("a fault without a message")
    return message, frames
