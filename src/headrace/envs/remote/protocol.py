"""What an environment server and a trainer say to each other: a handshake in JSON, then messages of a fixed binary layout.

The trainer speaks first, in either direction of dialling:

    trainer                         simulator
    hello (JSON)          ->
                          <-        welcome (JSON) with the specification and the layout, or refused (JSON) with the reason
    RESET seed            ->
                          <-        OBSERVED
    STEP actions          ->
                          <-        STEPPED, or STEPPED_FINAL; FAULT if the environment failed, after which the stream ends

There is one message under way at any time, so a stream needs no flow control beyond that. All numbers are little-endian.

A message begins with 8 bytes: its kind (uint32) and a sequence number (uint32), which a reply repeats. A request goes on with the
seed (int64), or with the actions of all lanes. A reply is the arrays of a step one after the other, each aligned to 8 bytes, at
the offsets that the schema in the welcome says: first what every reply has (observations, `first`, `valid`; in multi-agent
environments which lanes have a new observation, and which matches have ended how), then what steps have
(rewards, flags, statistics), then what steps have in which a same-step environment ended (true last observations). So every kind
of reply is a prefix of one layout, and has one possible size.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.config import EnvConfig
from headrace.config.io import to_dict
from headrace.envs.contract import EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.description import spec_from_json, spec_to_json

PROTOCOL = 3
"""Version of this protocol. Both sides must have the same."""
RESET, STEP = 1, 2
"""Kinds of requests."""
OBSERVED, STEPPED, STEPPED_FINAL, FAULT = 1, 2, 3, 4
"""Kinds of replies."""
HEADER = struct.Struct("<II")
"""Kind, sequence number."""
SEED = struct.Struct("<q")
ALIGNMENT = 8
MOST_HANDSHAKE = 1 << 20
"""Bytes of a handshake message."""
MOST_REQUEST = 16 << 20
"""Bytes of a request."""
MOST_REPLY = 256 << 20
"""Bytes of a reply."""


class ProtocolError(Exception):
    """The other side said something that is not of this protocol."""


class Refused(Exception):
    """One side does not want to work with the other; the message is the reason."""


# -- the handshake ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """What the trainer wants."""

    env: str
    """The environment's id."""
    num_envs: int
    """Environments of the group; 0: only the welcome is wanted, and the stream ends."""
    training: bool = True
    """Episodes may end before the game does; otherwise episodes are whole games."""
    options: dict[str, Any] | None = None
    """The environment's settings that the trainer expects; None: any."""
    protocol: int = PROTOCOL

    def to_bytes(self) -> bytes:
        """The message."""
        return json.dumps({"hello": dataclasses.asdict(self)}).encode()

    @staticmethod
    def from_bytes(message: bytes) -> Hello:
        """Raises `ProtocolError` for anything that is no hello; `Refused` for another version of the protocol."""
        said = _json(message)
        hello = said.get("hello")
        if not isinstance(hello, dict) or not isinstance(hello.get("protocol"), int):
            raise ProtocolError("the first message is no hello")
        if hello["protocol"] != PROTOCOL:
            raise Refused(_versions("environment server", PROTOCOL, "trainer", hello["protocol"]))
        kinds = {"env": str, "num_envs": int, "training": bool, "options": dict | None, "protocol": int}
        if hello.keys() != kinds.keys() or not all(isinstance(hello[name], kind) for name, kind in kinds.items()):
            raise ProtocolError("the hello has other entries than this protocol's")
        return Hello(**hello)


@dataclass(frozen=True)
class Welcome:
    """What the server has."""

    env: str
    options: dict[str, Any]
    """The environment's settings, as `shared_options` gives them."""
    spec: EnvSpec
    lanes: int
    lane_size: int
    schema: list[dict[str, Any]]
    """`Layout.schema` of the server, which must be the trainer's too."""
    defaults: dict[str, Any]
    """Settings with which this environment is learned without further ones, for a trainer that does not know it."""
    observes: str
    """"images" or "vectors"."""

    @property
    def digest(self) -> str:
        """Of the environment's id and settings."""
        return digest(self.env, self.options)

    def to_bytes(self) -> bytes:
        """The message."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"spec": spec_to_json(self.spec), "digest": self.digest, "protocol": PROTOCOL}
        fields |= {"frameskip": self.spec.frameskip, "autoreset": self.spec.autoreset}
        return json.dumps({"welcome": fields}).encode()

    @staticmethod
    def from_bytes(message: bytes) -> Welcome:
        """Raises `Refused` with the server's reason, and `ProtocolError` for anything that is no welcome."""
        said = _json(message)
        if isinstance(reason := said.get("refused"), str):
            raise Refused(reason[:1000])
        fields = said.get("welcome")
        if not isinstance(fields, dict):
            raise ProtocolError("the answer to the hello is neither a welcome nor a refusal")
        if (version := fields.get("protocol")) != PROTOCOL:
            raise Refused(_versions("environment server", version, "trainer", PROTOCOL))
        try:
            spec = spec_from_json(fields["spec"])
            _check_spec(spec)
            names = [field.name for field in dataclasses.fields(Welcome) if field.name != "spec"]
            welcome = Welcome(spec=spec, **{name: fields[name] for name in names})
            kinds = {"env": str, "options": dict, "defaults": dict, "observes": str, "lanes": int, "lane_size": int}
            if wrong := [name for name, kind in kinds.items() if not isinstance(fields[name], kind)]:
                raise ProtocolError(f"the welcome's {wrong[0]} is {fields[wrong[0]]!r:.80}")
            size = welcome.lanes * welcome.lane_size
            if not 0 <= welcome.lanes <= len(welcome.schema):
                raise ProtocolError(f"a group of {welcome.lanes!r:.20} lanes with {len(welcome.schema)} arrays")
            if size and welcome.schema != Layout(spec, welcome.lanes, welcome.lane_size).schema():
                raise ProtocolError("the server lays out its messages in another way")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the welcome cannot be read: {type(error).__name__}: {error}") from error
        return welcome


def _check_spec(spec: EnvSpec) -> None:
    """Raise `ProtocolError` for arrays of a kind that no message can have."""
    for name, array in spec.observation.items():
        if array.dtype not in (np.uint8, np.float32) or any(type(n) is not int or n < 1 for n in array.shape):
            raise ProtocolError(f"observation {name!r:.80} is {array.dtype} {array.shape!s:.80}")
        if math.prod(array.shape) * array.dtype.itemsize > MOST_REPLY:
            raise ProtocolError(f"observation {name!r:.80} is larger than a message may be")


def refusal(reason: str) -> bytes:
    """The message that says no."""
    return json.dumps({"refused": reason}).encode()


def _versions(one: str, its: Any, other: str, others: Any) -> str:
    versions = f"the {one} speaks version {its!r:.20} of the protocol, the {other} version {others!r:.20}"
    return f"{versions}: install the same version of headrace on both"


def _json(message: bytes) -> dict[str, Any]:
    if len(message) > MOST_HANDSHAKE:
        raise ProtocolError(f"a handshake of {len(message):,} bytes")
    try:
        said = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a handshake that is no JSON") from error
    if not isinstance(said, dict):
        raise ProtocolError("a handshake that is no JSON object")
    return said


def shared_options(options: EnvConfig) -> dict[str, Any]:
    """The settings that make the environment what it is, as JSON types: all but those of the connection and of how rewards are
    scaled and clipped for learning, which the trainer does."""
    return {name: value for name, value in to_dict(options).items() if not name.startswith(("remote", "reward_"))}


def digest(env: str, options: dict[str, Any]) -> str:
    """16 hexadecimal digits for an environment's id and settings."""
    return hashlib.sha256(json.dumps([env, options], sort_keys=True).encode()).hexdigest()[:16]


def differences(trainer: dict[str, Any], server: dict[str, Any]) -> str:
    """In words, which settings differ; empty if none does."""
    names = sorted(name for name in trainer.keys() | server.keys() if trainer.get(name) != server.get(name))
    return "; ".join(
        f"envs.{name} is {json.dumps(trainer.get(name))} for the trainer and {json.dumps(server.get(name))} at the server"
        for name in names[:5]
    )


# -- the layout -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    """One array of a reply."""

    name: str
    lane: int
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def view(self, buffer: Any) -> np.ndarray:
        """The array within a reply: writable if the buffer is."""
        return np.frombuffer(buffer, self.dtype, self.count, self.offset).reshape(self.shape)


_FLAG, _NUMBER, _EXACT, _COUNT = np.dtype(np.uint8), np.dtype("<f4"), np.dtype("<f8"), np.dtype("<i4")
GROUP = -1
"""Instead of a lane's number in the schema: of all lanes or matches of the group."""
_Arrays = dict[str, tuple[np.dtype, tuple[int, ...]]]
"""dtype and shape for one agent, by name."""
_STEP_FIELDS: _Arrays = {
    "reward": (_NUMBER, ()),
    "terminated": (_FLAG, ()),
    "truncated": (_FLAG, ()),
    "episode_return": (_NUMBER, ()),
    "episode_length": (_COUNT, ()),
}


class Layout:
    """Where what is in the messages of a group of L `lanes` of C agents (`lane_size`)."""

    def __init__(self, spec: EnvSpec, lanes: int, lane_size: int) -> None:
        self.spec, self.lanes, self.lane_size = spec, lanes, lane_size
        self._end = HEADER.size
        observation: _Arrays = {f"obs/{name}": (a.dtype.newbyteorder("<"), a.shape) for name, a in spec.observation.items()}
        flags: _Arrays = {"first": (_FLAG, ()), "valid": (_FLAG, ())}
        self._obs = [self._lane(lane, flags | observation) for lane in range(lanes)]
        self._matches: dict[str, _Field] = {}
        if agents := len(spec.agents):
            if lanes % agents or lane_size != 1:
                raise ProtocolError(f"{lanes} lanes of {lane_size} for matches of {agents} agents")
            ends: _Arrays = {"ended": (_FLAG, ()), "outcome": (_EXACT, (agents,))}
            self._matches = self._arrays(GROUP, lanes, {"advanced": (_FLAG, ())}) | self._arrays(GROUP, lanes // agents, ends)
        sizes = {OBSERVED: self._end}
        self._step = [self._lane(lane, _STEP_FIELDS) for lane in range(lanes)]
        sizes[STEPPED] = self._end
        self._final: list[dict[str, _Field]] = []
        if spec.autoreset == "same-step":
            final = {f"final_{name}": what for name, what in observation.items()}
            self._final = [self._lane(lane, final) for lane in range(lanes)]
            sizes[STEPPED_FINAL] = self._end
        self.sizes = sizes
        """Bytes of a reply, by its kind."""
        self.size = self._end
        """Bytes of the largest reply."""
        self._actions_shape = (lane_size, spec.action.width)
        self.actions_size = lane_size * spec.action.width * spec.action.dtype.itemsize
        """Bytes of one lane's actions."""
        self._actions_dtype = spec.action.dtype.newbyteorder("<")

    def _lane(self, lane: int, fields: _Arrays) -> dict[str, _Field]:
        return self._arrays(lane, self.lane_size, fields)

    def _arrays(self, lane: int, count: int, fields: _Arrays) -> dict[str, _Field]:
        made = {}
        for name, (dtype, shape) in fields.items():
            offset = -(-self._end // ALIGNMENT) * ALIGNMENT
            made[name] = _Field(name, lane, dtype, (count, *shape), offset)
            self._end = offset + made[name].count * dtype.itemsize
        return made

    def schema(self) -> list[dict[str, Any]]:
        """Every array of a reply: name, lane, dtype, shape, offset in bytes."""
        return [
            {"name": f.name, "lane": f.lane, "dtype": f.dtype.str, "shape": list(f.shape), "offset": f.offset}
            for part in (self._obs, [self._matches], self._step, self._final)
            for lane in part
            for f in lane.values()
        ]

    # -- the server's side --------------------------------------------------------------------------------------------

    def rows(self, buffer: Any) -> list[LaneRow]:
        """Rows whose arrays, but for the actions, are views of a writable buffer of `size` bytes."""
        made = []
        for lane in range(self.lanes):
            obs, step = self._obs[lane], self._step[lane]
            after = ObsRow(self._named(obs, "obs/", buffer), _flag(obs["first"], buffer), _flag(obs["valid"], buffer))
            arrays = {name: _flag(f, buffer) if f.dtype == _FLAG else f.view(buffer) for name, f in step.items()}
            final = self._named(self._final[lane], "final_obs/", buffer) if self._final else {}
            actions = np.zeros(self._actions_shape, self.spec.action.dtype)
            made.append(LaneRow(actions, StepRow(**arrays, final_obs=final), after))
        return made

    @staticmethod
    def _named(fields: dict[str, _Field], prefix: str, buffer: Any) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): f.view(buffer) for name, f in fields.items() if name.startswith(prefix)}

    def write_matches(self, buffer: Any, group: Any, stepped: bool) -> None:
        """Say which lanes of a multi-agent group have a new observation, and which matches ended with this step, and how."""
        if not self._matches:
            return
        advanced, ended, outcome = (field.view(buffer) for field in self._matches.values())
        advanced[:], ended[:] = 0, 0
        advanced[list(group.advanced)] = 1
        for m in group.ended if stepped else ():
            ended[m], outcome[m] = 1, group.outcomes(m)

    def read_actions(self, request: bytes, rows: Sequence[LaneRow]) -> None:
        """Copy the actions of a STEP to the rows. Raises `ProtocolError` for another size."""
        if len(request) != HEADER.size + self.lanes * self.actions_size:
            raise ProtocolError(f"a step of {len(request)} bytes")
        for lane, row in enumerate(rows):
            offset = HEADER.size + lane * self.actions_size
            count = self.lane_size * self.spec.action.width
            row.actions[:] = np.frombuffer(request, self._actions_dtype, count, offset).reshape(self._actions_shape)

    # -- the trainer's side -------------------------------------------------------------------------------------------

    def check(self, rows: Sequence[ObsRow]) -> None:
        """Raise `Refused` where the server's observations are not of the shapes and dtypes of these rows."""
        if len(rows) != self.lanes:
            raise Refused(f"the server's group has {self.lanes} lanes, the run's has {len(rows)}")
        for lane, row in enumerate(rows):
            here = {name: (a.dtype, a.shape) for name, a in row.obs.items()}
            there = {n[4:]: (f.dtype, f.shape) for n, f in self._obs[lane].items() if n.startswith("obs/")}
            if here != there:
                raise Refused(f"the server's observations are {_words(there)}, the run's are {_words(here)}")

    def step(self, sequence: int, rows: Sequence[LaneRow]) -> bytes:
        """A STEP with the actions of these rows."""
        nothing = bytes(self.actions_size)  # of a lane that has no episode yet
        actions = [
            nothing if row.actions is None else np.ascontiguousarray(row.actions, self._actions_dtype).tobytes() for row in rows
        ]
        return b"".join([HEADER.pack(STEP, sequence), *actions])

    def kind(self, reply: bytes, sequence: int) -> int:
        """The kind of a reply. Raises `ProtocolError` for one of another kind, size or sequence number."""
        if len(reply) < HEADER.size:
            raise ProtocolError(f"a reply of {len(reply)} bytes")
        kind, number = HEADER.unpack_from(reply)
        if kind == FAULT:
            return kind
        if self.sizes.get(kind) != len(reply) or number != sequence:
            raise ProtocolError(f"reply {number} of kind {kind} and {len(reply)} bytes, where reply {sequence} was expected")
        return kind

    def read_matches(self, reply: bytes) -> tuple[list[int] | None, list[int], np.ndarray]:
        """Lanes with a new observation (None: all), matches that ended, and float64 [matches, agents] how."""
        if not self._matches:
            return None, [], np.zeros((0, 0))
        advanced, ended, outcome = (field.view(reply) for field in self._matches.values())
        return np.flatnonzero(advanced).tolist(), np.flatnonzero(ended).tolist(), outcome

    def read_obs(self, reply: bytes, rows: Sequence[ObsRow], lanes: Iterable[int]) -> None:
        """Copy the observations of these lanes and their flags to the rows."""
        for lane in lanes:
            fields, row = self._obs[lane], rows[lane]
            np.not_equal(fields["first"].view(reply), 0, out=row.first)  # any byte may come; a bool must be 0 or 1
            np.not_equal(fields["valid"].view(reply), 0, out=row.valid)
            self._copy(fields, "obs/", reply, row.obs)

    def read_last_obs(self, reply: bytes, rows: Sequence[dict[str, np.ndarray]], lanes: Iterable[int]) -> None:
        """Copy only the observations of these lanes, by name."""
        for lane in lanes:
            self._copy(self._obs[lane], "obs/", reply, rows[lane])

    def valid(self, reply: bytes) -> list[np.ndarray]:
        """`valid` of each lane, bool [C]."""
        return [fields["valid"].view(reply) != 0 for fields in self._obs]

    def read_step(self, reply: bytes, kind: int, rows: Sequence[LaneRow], lanes: Iterable[int]) -> None:
        """Copy everything of a STEPPED or STEPPED_FINAL to the rows of these lanes."""
        self.read_obs(reply, [row.after for row in rows], lanes)
        for lane in lanes:
            fields, step = self._step[lane], rows[lane].step
            step.reward[:] = fields["reward"].view(reply)
            np.not_equal(fields["terminated"].view(reply), 0, out=step.terminated)
            np.not_equal(fields["truncated"].view(reply), 0, out=step.truncated)
            step.episode_return[:] = fields["episode_return"].view(reply)
            step.episode_length[:] = fields["episode_length"].view(reply)
            if kind == STEPPED_FINAL:
                self._copy(self._final[lane], "final_obs/", reply, step.final_obs)

    @staticmethod
    def _copy(fields: dict[str, _Field], prefix: str, reply: bytes, rows: dict[str, np.ndarray]) -> None:
        for name, row in rows.items():
            row[...] = fields[prefix + name].view(reply)


def _flag(field: _Field, buffer: Any) -> np.ndarray:
    return field.view(buffer).view(bool)


def _words(arrays: dict[str, tuple[np.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {dtype.name} {list(shape)}" for name, (dtype, shape) in arrays.items())


def reset_request(sequence: int, seed: int) -> bytes:
    """A RESET."""
    return HEADER.pack(RESET, sequence) + SEED.pack(seed)


def fault_reply(sequence: int, message: str, frames: str) -> bytes:
    """A FAULT: the environment's error, and where it arose."""
    return HEADER.pack(FAULT, sequence) + json.dumps({"message": message, "frames": frames}).encode()


def read_fault(reply: bytes) -> tuple[str, str]:
    """(message, frames) of a FAULT. Raises `ProtocolError` for anything else."""
    said = _json(reply[HEADER.size :])
    message, frames = said.get("message"), said.get("frames")
    if not isinstance(message, str) or not isinstance(frames, str):
        raise ProtocolError("a fault without a message")
    return message, frames
