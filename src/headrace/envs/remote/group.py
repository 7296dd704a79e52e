"""A group whose environments are at a server: `RemoteGroup`.

A thread of the group connects, and connects again when the stream has ended; it hands over what comes as events. Everything else
happens in the thread of the group's owner, in `send` and `recv`, so that rows are written by one thread only.

Where a stream is lost, so is the episode of each of its environments. The contract's rows of a truncated episode say so:

    row t    the step that was lost: reward 0, `truncated`. Its return and length are not reported, since nobody knows them
    row t+1  the last observation that was received, `valid` False
    row t+2  the first observation of a new episode, `first` True, as soon as a server is there again

Same-step environments have the last observation in `final_obs` of row t, and row t+1 waits for the new episode. In multi-agent
environments this happens to every lane that is in an episode, and every match has ended, without an outcome.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from headrace.config import EnvConfig
from headrace.config.seeds import next_seed
from headrace.envs.contract import EnvironmentFault, EnvSpec, LaneRow, ObsRow
from headrace.envs.group import reward_transform
from headrace.envs.remote import protocol
from headrace.envs.remote.connect import Unreachable, connector, greet
from headrace.envs.remote.protocol import Hello, Layout, ProtocolError, Refused, Welcome
from headrace.envs.remote.transport import Link

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds between two attempts to connect: doubled from the first to the longest, plus up to a quarter at random."""
JOIN_TIMEOUT = 2.0
"""Seconds that `close` waits for the group's thread."""


class _Announcements:
    """What was last said of each address by this process, so that many groups do not all say the same."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def new(self, address: str, text: str) -> bool:
        """Whether this is news."""
        with self._lock:
            if self._last.get(address, "connected") == text:
                return False
            self._last[address] = text
            return True


_announcements = _Announcements()


class RemoteGroup:
    """`num_envs` environments at the server `address`. See `EnvGroup`, and the module for what happens when the server is lost.

    Args:
        address: an entry of `envs.remote`, but not `local`.
        options: the environment's settings, which must be the server's; and those of the connection.
        spec: of the run, which the server's must be like. None: the server's own, which must stay as it is.
    """

    advanced: Sequence[int] | None = None
    ended: Sequence[int] = ()
    called: int | None = None

    def __init__(
        self, address: str, env: str, options: EnvConfig, num_envs: int, *, training: bool = True, spec: EnvSpec | None = None
    ) -> None:
        self.address, self.num_envs = address, num_envs
        self._timeout = options.remote_timeout
        self._hello, self._like = Hello(env, num_envs, training, protocol.shared_options(options)), spec
        self._connector = connector(address, options)
        self._to_learn = reward_transform(options)
        self._wake: Callable[[], None] = lambda: None
        self._events: deque[tuple[Literal["up", "message", "down", "notice"], Link | None, Any]] = deque()
        self._closed = threading.Event()
        self._welcomed = threading.Event()
        self._opening: Link | None = None
        # what follows belongs to the owner's thread
        self._layout: Layout
        """Of the server that was there last; not set before the first."""
        self._link: Link | None = None
        self._begun: Link | None = None
        """The link on which an episode has begun: no other can go on with it."""
        self._task: Literal["", "reset", "step", "step ends, episode begins"] = ""
        self._waits_for: Literal["", "observed", "stepped"] = ""
        self._ended = False
        """Next-step environments: the episode was cut, and the next step begins a new one."""
        self._sequence = 0
        self._seed = 0
        self._episodes = 0
        """Times that the environments were reset by a request."""
        self._last = b""
        """The last reply, which has the observation of the current row."""
        self._outcomes = np.zeros((0, 0))
        """float64 [matches, agents]: how the matches in `ended` did; NaN where nobody knows."""
        self._out: list[ObsRow] = []
        self._rows: list[LaneRow] = []
        self._thread = threading.Thread(target=self._connect, name=f"remote {address}", daemon=True)
        self._thread.start()

    @property
    def spec(self) -> EnvSpec:
        """The server's specification; waits for the server."""
        self._welcomed.wait()
        return self._welcome.spec

    @property
    def lanes(self) -> int:
        """L; waits for the server."""
        return self.num_envs * len(self.spec.agents) or 1

    @property
    def lane_size(self) -> int:
        """C; waits for the server."""
        return 1 if self.spec.agents else self.num_envs

    def outcomes(self, m: int) -> np.ndarray:
        """float64 [A]: by what the agents of match `m`, which has ended, are compared; NaN where it was lost."""
        return self._outcomes[m]

    # -- the owner's thread -------------------------------------------------------------------------------------------

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`. Where there is no server yet, `recv` is False until there is."""
        self._handle_events()
        self._seed, self._out = seed, list(out)
        self._task = "reset"
        self._begin_episode()

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`."""
        self._handle_events()
        self._rows = list(rows)
        self._task = "step"
        if self._ended:
            self._out = [row.after for row in rows]
            self._begin_episode()
        elif self._link is None or self._link is not self._begun:
            self._cut()
        else:
            self._sequence += 1
            self._waits_for = "stepped"
            self._link.send(self._layout.step(self._sequence % 2**32, rows))

    def recv(self) -> bool:
        """See `EnvGroup.recv`. Raises `EnvironmentFault` where the environment at the server did; never for a lost connection."""
        self._handle_events()
        return not self._task

    def notify(self, wake: Callable[[], None]) -> None:
        """See `EnvGroup.notify`."""
        self._wake = wake
        wake()

    def _handle_events(self) -> None:
        while self._events:
            kind, link, content = self._events.popleft()
            if kind == "notice":
                # each time anew: Python shows a repeated text only once
                warnings.warn_explicit(content, UserWarning, __file__, 1, registry={})
            elif kind == "up":
                self._link, self._layout = link, content
                if self._waits_for == "observed":
                    self._begin_episode()
            elif link is not self._link:
                continue
            elif kind == "message":
                self._message(content)
            else:
                self._link = None
                if self._waits_for == "stepped":
                    self._cut()

    def _begin_episode(self) -> None:
        """Ask for first observations, now or when there is a server."""
        self._waits_for = "observed"
        if self._link is None:
            return
        try:
            self._layout.check(self._out)
        except Refused as refused:
            self._link.close(str(refused))
            return
        self._sequence += 1
        seed = next_seed(self._seed, self._episodes)  # a group that was reconnected does not repeat its episodes
        self._episodes += 1
        self._begun = self._link
        self._link.send(protocol.reset_request(self._sequence % 2**32, seed))

    def _message(self, reply: bytes) -> None:
        assert self._link is not None
        try:
            kind = self._layout.kind(reply, self._sequence % 2**32)
            if kind == protocol.FAULT:
                message, frames = protocol.read_fault(reply)
                raise EnvironmentFault(f"{message} (at the environment server {self.address})", frames)
            if self._waits_for != ("observed" if kind == protocol.OBSERVED else "stepped"):
                raise ProtocolError(f"a reply of kind {kind} that was not asked for")
        except ProtocolError as error:
            self._link.close(str(error))  # which ends the link, and that is an event
            return
        self._waits_for, self._last = "", reply
        self.advanced, self.ended, self._outcomes = self._layout.read_matches(reply)
        if kind == protocol.OBSERVED:
            self._first_observed(reply)
        else:
            lanes = self._advanced()
            self._layout.read_step(reply, kind, self._rows, lanes)
            for lane in lanes:
                step = self._rows[lane].step
                step.reward[:] = self._to_learn(step.reward)
        self._task = ""

    def _first_observed(self, reply: bytes) -> None:
        lanes = self._advanced()
        self._layout.read_obs(reply, self._out, lanes)
        for lane in lanes:
            self._out[lane].first[:] = True
            self._out[lane].valid[:] = True
            if self._task == "step":  # a step that only resets
                self._rows[lane].step.write_nothing()
        self._ended = False

    def _advanced(self) -> Sequence[int]:
        return range(self._layout.lanes) if self.advanced is None else self.advanced

    def _cut(self) -> None:
        """The step is lost, and the episodes with it."""
        layout = self._layout
        valid = layout.valid(self._last)
        if layout.spec.agents:  # the last reply has every lane's last observation, also of those that wait for their turn
            self.advanced = [lane for lane in range(layout.lanes) if valid[lane][0]]
            self.ended = range(self.num_envs)
            self._outcomes = np.full((self.num_envs, len(layout.spec.agents)), np.nan)
        lanes = self._advanced()
        for lane in lanes:
            self._rows[lane].step.write_nothing()
            self._rows[lane].step.truncated[:] = valid[lane]
        if layout.spec.autoreset == "same-step":
            layout.read_last_obs(self._last, [row.step.final_obs for row in self._rows], lanes)
            self._task = "step ends, episode begins"
            self._out = [lane.after for lane in self._rows]
            self._begin_episode()
            return
        layout.read_last_obs(self._last, [row.after.obs for row in self._rows], lanes)
        for lane in lanes:
            self._rows[lane].after.first[:] = False
            self._rows[lane].after.valid[:] = False
        self._ended, self._task, self._waits_for = True, "", ""

    # -- the group's own thread ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect, hand over what comes, and so on until `close`."""
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            try:
                link = self._opening = self._connector.open(self._closed)
                if self._closed.is_set():
                    link.close()
                    return
                link.on_slow = self._slow
                welcome, messages = greet(link, self._hello, self._timeout)
                layout = self._check(welcome)
            except (Unreachable, Refused, ProtocolError) as error:
                if self._opening is not None:
                    self._opening.close()
                self._notice(str(error))
            except Exception as error:  # whatever gRPC raises must not end the thread, or the group would wait for ever
                self._notice(f"{type(error).__name__}: {error}")
            else:
                self._event("up", link, layout)
                for message in messages:
                    pause = FIRST_PAUSE
                    self._notice("connected")
                    self._event("message", link, message)
                link.close()
                self._notice(link.ended)
                self._event("down", link, None)
            self._closed.wait(pause * (1 + random.random() / 4))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _check(self, welcome: Welcome) -> Layout:
        """The layout of the group's messages. Raises `Refused` where the environment is not like the run's."""
        size = (welcome.lanes, welcome.lane_size)
        agents = len(welcome.spec.agents)
        expected = (self.num_envs * agents, 1) if agents else (1, self.num_envs)
        if size != expected:
            raise Refused(f"the server's group has {size[0]} lanes of {size[1]} agents; {expected} are expected")
        if welcome.env != self._hello.env:
            raise Refused(f"the server has {welcome.env}, and {self._hello.env} is asked for")
        like = self._like = self._like or welcome.spec
        for what, ours, theirs in zip(_MUST_AGREE, _traits(like), _traits(welcome.spec), strict=True):
            if ours != theirs:
                raise Refused(f"the server's environment has other {what} than the run: {theirs} instead of {ours}")
        layout = Layout(welcome.spec, *size)
        self._welcome = welcome
        self._welcomed.set()
        return layout

    def _event(self, kind: Literal["up", "message", "down", "notice"], link: Link | None, content: Any) -> None:
        self._events.append((kind, link, content))
        self._wake()

    def _notice(self, what: str) -> None:
        """Tell the user, unless another group of this process has said the same of the address."""
        if self._closed.is_set() or not _announcements.new(self.address, what):
            return
        if what == "connected":
            text = f"Environment server {self.address} is back"
        else:
            text = f"Environment server {self.address}: {what}. Its groups wait until it is back; the others go on"
        self._event("notice", None, text)

    def _slow(self, seconds: float) -> None:
        self._notice(f"no answer for {seconds:.0f} s; it is given {self._timeout:g} s")

    # -- state ----------------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """See `EnvGroup.remember`; there is nothing that could be remembered."""

    def get_state(self) -> dict[str, Any] | None:
        """None: environments elsewhere cannot be put back."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Raises `EnvironmentFault`."""
        raise EnvironmentFault("environments of a server cannot go on from a saved state")

    def close(self) -> None:
        """End the stream, and with it the environments at the server."""
        self._closed.set()
        if self._opening is not None:
            self._opening.close()
        self._connector.close()
        self._thread.join(JOIN_TIMEOUT)


_MUST_AGREE = ("observations", "actions", "frames per step", "autoreset", "agents")


def _traits(spec: EnvSpec) -> tuple[object, ...]:
    """What `_MUST_AGREE` names: nothing else would tell that a server's package of the environment is another version."""
    observation = {name: f"{array.dtype.name} {list(array.shape)}" for name, array in sorted(spec.observation.items())}
    return observation, spec.action.parts, spec.frameskip, spec.autoreset, spec.agents
