"""Environment servers for tests: in this process, or in one of their own that can be killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
from worlds import CountingEnv, local_group

from headrace.config import EnvConfig
from headrace.envs.core.contract import EnvGroup, LaneRow, ObsRow
from headrace.envs.remote import protocol
from headrace.envs.remote.group import RemoteGroup
from headrace.envs.remote.server import EnvServer
from headrace.envs.remote.session import MakeGroup, Offer
from headrace.transport.credentials import Credentials
from headrace.transport.messages import HEADER

NAME = "test/counting"


def counting(num_envs: int, training: bool = True) -> EnvGroup:
    """Counting worlds."""
    return local_group([CountingEnv() for _ in range(num_envs)], name=NAME)


def offer(make_group: MakeGroup = counting, num_envs: int = 64, options: EnvConfig | None = None) -> Offer:
    """An offer of what `make_group` makes."""
    group = make_group(1, True)
    group.close()
    options = options or EnvConfig()
    return Offer(NAME, protocol.shared_options(options), group.spec, make_group, num_envs, {"policy.core": "gru"}, "vectors")


@contextmanager
def serving(made: Offer | None = None, own: Credentials | None = None, port: int = 0) -> Iterator[str]:
    """A server in this process; gives its address."""
    server = EnvServer(made or offer(), f"127.0.0.1:{port}", own or Credentials())
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop(0)


def remote_group(address: str, num_envs: int = 5, **settings: object) -> RemoteGroup:
    """A group at a server."""
    return RemoteGroup(address, NAME, EnvConfig(**settings), num_envs)  # type: ignore[arg-type]


_given: set[int] = set()


def free_port() -> int:
    """A TCP port of this machine that nobody uses. Below those that the kernel gives to whoever asks for any port: a server that
    is started later, or again, finds it free."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def wait_until(condition: Callable[[], object], seconds: float = 60, seen: object = "") -> None:
    """Poll until the condition is true; AssertionError after `seconds`, which shows what was `seen`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time {seen}"
        time.sleep(0.005)


_said: weakref.WeakKeyDictionary[EnvGroup, list[str]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def hearing(group: EnvGroup) -> Iterator[list[str]]:
    """Keep what the group says in here, for `messages_of`. A message comes with whichever call is next, also with a reset."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield _said.setdefault(group, [])
    _said[group].extend(str(warning.message) for warning in caught)


def finish(group: EnvGroup, seconds: float = 60) -> None:
    """Wait for a group's step or reset; its messages are dropped."""
    with hearing(group):
        wait_until(group.recv, seconds)
    _said.pop(group)


def messages_of(group: EnvGroup, until: str, seconds: float = 60) -> list[str]:
    """What the group says, up to a message that contains `until`."""

    def said() -> bool:
        with hearing(group) as texts:
            group.recv()
        return any(until in text for text in texts)

    wait_until(said, seconds, _said.setdefault(group, []))
    return _said.pop(group)


class Stepper:
    """Steps a group with one lane, and keeps every row."""

    def __init__(self, group: EnvGroup, spec_from: EnvGroup, seed: int = 0) -> None:
        from worlds import rows_for

        self._rows_for = lambda: rows_for(spec_from.spec, group.num_envs)
        self.group, self._rng = group, np.random.default_rng(1)
        self._width = spec_from.spec.action.width
        self.after: ObsRow = self._rows_for()[1]
        self.seed = seed

    def reset(self) -> ObsRow:
        """The first observations."""
        self.begin_reset()
        finish(self.group)
        return self.after

    def begin_reset(self) -> None:
        """Without waiting."""
        with hearing(self.group):
            self.group.reset(self.seed, [self.after])

    def begin_step(self) -> LaneRow:
        """Send random actions."""
        now, self.after = self._rows_for()
        actions = self._rng.integers(0, 5, (self.group.num_envs, self._width)).astype(np.int32)
        row = LaneRow(actions, now, self.after)
        with hearing(self.group):
            self.group.send([row])
        return row

    def step(self) -> LaneRow:
        """Send random actions, and wait."""
        row = self.begin_step()
        finish(self.group)
        return row


class ServerProcess:
    """`headrace serve-envs` as a process of its own. `protocol`: the version that it speaks, if not this one's."""

    def __init__(
        self, *flags: str, env: str = "gym/CartPole-v1", port: int | None = None, prefix: Sequence[str] = (),
        protocol: int | None = None,
    ) -> None:  # fmt: skip
        program = ["-m", "headrace.cli"]
        if protocol is not None:
            code = "from headrace.envs.remote import protocol; import sys; protocol.PROTOCOL = int(sys.argv.pop(1))"
            program = ["-c", f"{code}; from headrace import cli; sys.exit(cli.main())", str(protocol)]
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._command = [*prefix, sys.executable, *program, "serve-envs", "--env", env, *flags]
        if not {"--dial", "--listen"} & set(flags):
            self._command += ["--listen", self.address]
        self.process: subprocess.Popen[str] | None = None
        self.environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_TOKEN"}

    def start(self, log: Path) -> ServerProcess:
        """Start it, and wait until it says so."""
        with log.open("a") as out:
            before = log.read_text().count(" x ")
            self.process = subprocess.Popen(self._command, stdout=out, stderr=out, text=True, env=self.environment)

        def says() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, log.read_text()
            return log.read_text().count(" x ") > before

        wait_until(says, 120)
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


# -- whoever is no trainer --------------------------------------------------------------------------------------------


def _raw(address: str, rng: random.Random) -> None:
    """Garbage at the port, sometimes after the beginning of HTTP/2."""
    host, _, port = address.partition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=1)
    except OSError:
        return  # the server is being started again
    with connection as there:
        there.settimeout(0.05)
        try:
            if rng.random() < 0.7:
                there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                if rng.random() < 0.5:
                    there.sendall(b"\0\0\0\4\0\0\0\0\0")  # SETTINGS
            for _ in range(rng.randrange(1, 5)):
                if rng.random() < 0.5:  # a frame with a header that might be one
                    size = rng.randrange(64)
                    there.sendall(size.to_bytes(3, "big") + bytes([rng.randrange(11), rng.randrange(256)]) + b"\0\0\0\1")
                    there.sendall(rng.randbytes(size))
                else:
                    there.sendall(rng.randbytes(rng.randrange(2000)))
            there.recv(1000)
        except OSError:
            pass


def _messages(address: str, rng: random.Random, token: str, hello: bytes) -> list[bytes]:
    """gRPC messages that are none of ours; what came back."""
    messages = [hello] if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(4)
        if kind == 0:
            messages.append(rng.randbytes(rng.randrange(200)))
        elif kind == 1:
            damaged = bytearray(hello)
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            messages.append(bytes(damaged))
        elif kind == 2:
            messages.append(HEADER.pack(rng.randrange(4), rng.randrange(2**32)) + rng.randbytes(rng.randrange(60)))
        else:
            messages.append(b"[" * rng.randrange(100_000))
    metadata = [("authorization", f"Bearer {token}")]
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            return list(channel.stream_stream(protocol.SERVICE.method)(iter(messages), metadata=metadata, timeout=5))
        except grpc.RpcError:
            return []


def fuzz(address: str, seconds: float, answers: list[bytes], token: str, env: str = NAME) -> None:
    """Garbage for some seconds, from strangers and from somebody with the token. `answers`: what strangers were answered."""
    rng = random.Random(5)
    hello = protocol.Hello(env, 2, True, None).to_bytes()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _raw(address, rng)
        answers += _messages(address, rng, "not-the-right-token", hello)
        _messages(address, rng, token, hello)  # one of us, gone mad
