"""`RemoteGroup`: a group whose environments a server steps.

A `Connection` connects, and connects again when the stream has ended; its thread queues what it receives as events. The thread of
the group's owner does all the rest, in `reset`, `send` and `recv`, so that one thread alone writes rows.

When a stream is lost, the episodes of its environments are lost, too. The group reports them as truncated episodes:

    row t    the lost step: reward 0, `truncated`. Its unknown return and length are not reported
    row t+1  the last observation that was received, `valid` False
    row t+2  the first observation of a new episode, `first` True, as soon as a server is connected again

Same-step environments have the last observation in `final_obs` of row t, and row t+1 waits for the new episode. In multi-agent
environments every lane in an episode is truncated, and every match ends without an outcome.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, Literal

import numpy as np

from headrace.config import ConfigError, EnvConfig
from headrace.config.seeds import next_seed
from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.core.errors import EnvironmentFault, TooFewFree
from headrace.envs.groups.rewards import reward_transform
from headrace.envs.remote import protocol
from headrace.envs.remote.connect import greet, stream_source
from headrace.envs.remote.protocol import GroupLayout, Hello, Welcome
from headrace.transport.connection import Connection, Event
from headrace.transport.messages import ProtocolError, Refused
from headrace.transport.streams import Stream

CONNECTED = "connected"
PATIENCE = 5.0  # seconds that an evaluation waits for environments that are in use: those of a group that was just closed
_states: dict[str, str] = {}
"""The last message about each address that this process has shown, so that several groups do not repeat it."""
_states_lock = threading.Lock()


class RemoteGroup(EnvGroup):
    """`num_envs` environments at the server `address`. See `EnvGroup`, and the module for a lost server.

    Args:
        address: an entry of `envs.remote` other than `local`.
        options: settings of the environment, which must be the server's, too, and of the connection.
        spec: the run's specification, which the server's must equal. None: that of the first server, which must not change.
    """

    def __init__(
        self, address: str, env: str, options: EnvConfig, num_envs: int, *, training: bool = True, spec: EnvSpec | None = None
    ) -> None:
        self.address, self.num_envs = address, num_envs
        self._timeout = options.remote_timeout
        self._hello, self._like = Hello(env, num_envs, training, protocol.shared_options(options)), spec
        self._to_learn = reward_transform(options)
        self._wake: Callable[[], None] = lambda: None
        self._events: deque[tuple[Event | Literal["notice"], Stream | None, Any]] = deque()
        self._welcomed = threading.Event()
        self._refused: Refused | None = None  # the reason, if the last attempt to connect was refused
        # only the owner's thread uses what follows
        self._layout: GroupLayout  # layout of the last server's messages; not set before the first connection
        self._stream: Stream | None = None
        self._begun: Stream | None = None  # the stream on which the current episodes began; no other stream can continue them
        self._task: Literal["", "reset", "step", "step ends, episode begins"] = ""
        self._waits_for: Literal["", "observed", "stepped"] = ""
        self._ended = False  # Next-step environments: the connection was lost, and the next step begins new episodes
        self._sequence = 0
        self._seed = 0
        self._episodes = 0  # number of reset requests
        self._last: dict[str, np.ndarray] = {}  # arrays of the last reply, with the observations of the current rows
        self._outcomes = np.zeros((0, 0))  # float64 [matches, agents]: outcomes of the matches in `ended`; NaN if unknown
        self._out: list[ObsRow] = []
        self._rows: list[LaneRow] = []
        self._connection = Connection(stream_source(address, options), self._greet, self._handle, f"remote {address}")
        self._connection.start()

    @property
    def spec(self) -> EnvSpec:  # type: ignore[override]  # an environment server sends it
        """The server's specification; waits for the server, and tells the user why.

        Training also waits for a server that refuses it, since it may be started anew. An evaluation raises `ConfigError` then,
        `TooFewFree` where the server has too few environments.
        """
        began = monotonic()
        while not self._welcomed.wait(0.1):
            refused = self._refused
            if refused is None or not self._gives_up:
                self._take_events()
                continue
            text = f"environment server {self.address}: {refused}"
            if not isinstance(refused, TooFewFree):
                raise ConfigError(text)
            if monotonic() - began > PATIENCE:
                raise TooFewFree(text, refused.free)
        return self._spec

    @property
    def _gives_up(self) -> bool:
        """Whether a refusal ends the wait: that of an evaluation that has not begun."""
        return self._refused is not None and not self._hello.training and not self._welcomed.is_set()

    @property
    def lanes(self) -> int:  # type: ignore[override]
        """L; waits for the server."""
        return self.num_envs * len(self.spec.agents) or 1

    @property
    def lane_size(self) -> int:  # type: ignore[override]
        """C; waits for the server."""
        return 1 if self.spec.agents else self.num_envs

    def outcomes(self, m: int) -> np.ndarray:
        """float64 [A]: the outcomes of the agents of match `m`, which has ended; NaN if its connection was lost."""
        return self._outcomes[m]

    # -- the owner's thread -------------------------------------------------------------------------------------------

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`. `recv` is False until a server is connected and has answered."""
        self._take_events()
        self._seed, self._out = seed, list(out)
        self._task = "reset"
        self._begin_episode()

    def send(self, rows: Sequence[LaneRow]) -> None:
        self._take_events()
        self._rows = list(rows)
        self._task = "step"
        if self._ended:
            self._out = [row.after for row in rows]
            self._begin_episode()
        elif self._stream is None or self._stream is not self._begun:
            self._cut()
        else:
            self._sequence += 1
            self._waits_for = "stepped"
            self._stream.request(self._layout.step_request(self._sequence % 2**32, rows))

    def recv(self) -> bool:
        """See `EnvGroup.recv`. Raises the server's `EnvironmentFault`, but nothing for a lost connection."""
        self._take_events()
        return not self._task

    def notify(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def _take_events(self) -> None:
        while self._events:
            kind, stream, content = self._events.popleft()
            if kind == "notice":
                # an empty registry: Python would show a repeated text only once
                warnings.warn_explicit(content, UserWarning, __file__, 1, registry={})
            elif kind == "up":
                self._stream, self._layout = stream, content
                if self._waits_for == "observed":
                    self._begin_episode()
            elif stream is not self._stream:
                continue
            elif kind == "message":
                self._message(content)
            else:
                self._stream = None
                if self._waits_for == "stepped":
                    self._cut()

    def _begin_episode(self) -> None:
        """Request first observations, now or as soon as a server is connected."""
        self._waits_for = "observed"
        if self._stream is None:
            return
        self._sequence += 1
        seed = next_seed(self._seed, self._episodes)  # after a reconnection, other episodes than before
        self._episodes += 1
        self._begun = self._stream
        self._stream.request(self._layout.reset_request(self._sequence % 2**32, seed))

    def _message(self, reply: bytes) -> None:
        assert self._stream is not None
        try:
            kind, arrays = self._layout.read_reply(reply, self._sequence % 2**32)
            if kind == protocol.FAULT:
                message, frames = protocol.read_fault(reply)
                raise EnvironmentFault(f"{message} (at the environment server {self.address})", frames)
            if self._waits_for != ("observed" if kind == protocol.OBSERVED else "stepped"):
                raise ProtocolError(f"a reply of kind {kind} that was not asked for")
        except ProtocolError as error:
            self._stream.close(str(error))  # a "down" event follows
            return
        self._waits_for, self._last = "", arrays
        if "advanced" in arrays:
            self.advanced = np.flatnonzero(arrays["advanced"]).tolist()
            self.ended, self._outcomes = np.flatnonzero(arrays["ended"]).tolist(), arrays["outcome"]
        if kind == protocol.OBSERVED:
            self._first_observed()
        else:
            for lane in self._advanced():
                row = self._rows[lane]
                row.step.copy_from(StepRow.view(arrays, lane))
                row.after.copy_from(ObsRow.view(arrays, lane))
                row.step.reward[:] = self._to_learn(row.step.reward)
        self._task = ""

    def _first_observed(self) -> None:
        for lane in self._advanced():
            self._out[lane].copy_from(ObsRow.view(self._last, lane))
            self._out[lane].first[:] = True
            self._out[lane].valid[:] = True
            if self._task == "step":  # the step was only a reset
                self._rows[lane].step.write_nothing()
        self._ended = False

    def _advanced(self) -> Sequence[int]:
        return range(self._layout.lanes) if self.advanced is None else self.advanced

    def _cut(self) -> None:
        """Report the current step and its episodes as lost."""
        layout, last = self._layout, self._last
        valid = last["valid"]
        if layout.spec.agents:  # the last reply has every lane's last observation, also of those that wait for their turn
            self.advanced = [lane for lane in range(layout.lanes) if valid[lane][0]]
            self.ended = range(self.num_envs)
            self._outcomes = np.full((self.num_envs, len(layout.spec.agents)), np.nan)
        same_step = layout.spec.autoreset == "same-step"
        for lane in self._advanced():
            step, after = self._rows[lane].step, self._rows[lane].after
            step.write_nothing()
            step.truncated[:] = valid[lane]
            for name, array in (step.final_obs if same_step else after.obs).items():
                array[:] = last[f"obs/{name}"][lane]
            if not same_step:
                after.first[:], after.valid[:] = False, False
        if same_step:
            self._task = "step ends, episode begins"
            self._out = [row.after for row in self._rows]
            self._begin_episode()
        else:
            self._ended, self._task, self._waits_for = True, "", ""

    # -- the connection's thread --------------------------------------------------------------------------------------

    def _greet(self, stream: Stream) -> tuple[GroupLayout, Iterator[bytes]]:
        stream.on_slow = lambda seconds: self._notice(f"no answer for {seconds:.0f} s; it is given {self._timeout:g} s")
        self._refused = None
        try:
            welcome, messages = greet(stream, self._hello, self._timeout)
            return self._check(welcome), messages
        except Refused as error:
            self._refused = error
            raise

    def _handle(self, kind: Event, stream: Stream | None, content: Any) -> None:
        if kind == "message":
            self._notice(CONNECTED)
        elif kind != "up" and not self._gives_up:
            self._notice(content)
        if kind != "failed":
            self._events.append((kind, stream, content))
            self._wake()

    def _notice(self, state: str) -> None:
        """Tell the user about the address, unless another group of this process has just said the same."""
        if self._connection.closed:
            return
        with _states_lock:
            if _states.get(self.address, CONNECTED) == state:
                return
            _states[self.address] = state
        text = " is back" if state == CONNECTED else f": {state}. Its groups wait until it is back; the others go on"
        self._events.append(("notice", None, f"Environment server {self.address}{text}"))
        self._wake()

    def _check(self, welcome: Welcome) -> GroupLayout:
        """The layout of the group's messages. Raises `Refused` if the server's environment differs from the run's."""
        size = (welcome.lanes, welcome.lane_size)
        agents = len(welcome.spec.agents)
        expected = (self.num_envs * agents, 1) if agents else (1, self.num_envs)
        if size != expected:
            raise Refused(f"the server's group has {size[0]} lanes of {size[1]} agents; {expected} are expected")
        if welcome.env != self._hello.env:
            raise Refused(f"the server has {welcome.env}, and {self._hello.env} is asked for")
        self._like = self._like or welcome.spec
        theirs = _traits(welcome.spec)
        for what, ours in _traits(self._like).items():
            if ours != theirs[what]:
                raise Refused(f"the server's environment has other {what} than the run: {theirs[what]} instead of {ours}")
        layout = GroupLayout(welcome.spec, *size)
        self._spec = welcome.spec
        self._welcomed.set()
        return layout

    def set_state(self, state: dict[str, Any]) -> None:
        """Raises `EnvironmentFault`."""
        raise EnvironmentFault("environments of a server cannot go on from a saved state")

    def close(self) -> None:
        """End the stream; the server then closes the environments."""
        self._connection.close()


def _traits(spec: EnvSpec) -> dict[str, object]:
    """What server and run must agree on; it differs if the server has another version of the environment's package."""
    observations = {name: f"{array.dtype.name} {list(array.shape)}" for name, array in sorted(spec.observation.items())}
    return {
        "observations": observations,
        "actions": spec.action.parts,
        "frames per step": spec.frameskip,
        "autoreset": spec.autoreset,
        "agents": spec.agents,
    }
