"""Environment servers, which listen for trainers or dial a trainer that listens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import gymnasium

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core import registry
from headrace.envs.core.family_interface import kind_of
from headrace.envs.core.settings import default_options, defaults
from headrace.envs.make import describe_here, make_group
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import Hello
from headrace.envs.remote.session import Offer, Session
from headrace.transport.credentials import Credentials, check_address, credentials
from headrace.transport.listeners import Listener
from headrace.transport.streams import FIRST_PAUSE, Backoff, Caller, Endpoint, Stream

SPARE_STREAMS = 16  # streams beside those of groups, for trainers that ask for the specification or are refused
HELLO_TIMEOUT = 30.0  # seconds that a caller may take for its hello
CLOSE_TIMEOUT = 3.0  # seconds that a server which ends gives its environments to close
ANSWER_TIMEOUT = 10.0
"""Seconds that a dialled trainer may take for its hello. A trainer sends it or ends the stream at once, but gRPC may keep a call
for ever if the listener closes at that moment."""


def make_offer(env: str, num_envs: int, options: EnvConfig | None = None) -> Offer:
    """The `Offer` of a registered environment. Makes one environment to read its spaces. Raises what `make.make_group` raises."""
    registry.check_one(env)
    # rewards are sent raw; the trainer scales and clips them
    options = replace(options or default_options(env), reward_scale=1.0, reward_clip=None, reward_soft_clip=None)
    spec = describe_here(env, options)
    return Offer(
        env=env,
        options=protocol.shared_options(options),
        spec=spec,
        make_group=lambda count, training: make_group(env, options, count, training=training),
        num_envs=num_envs,
        defaults=dict(defaults(env)),
        observes=registry.observes(env) or kind_of(spec),
    )


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _endpoint(address: str, own: Credentials, compression: bool) -> Endpoint:
    return Endpoint(protocol.SERVICE, address, own, protocol.LARGEST_REQUEST, compression)


class EnvServer(Listener):
    """Listens for trainers at `port`. Threads of this process step the environments."""

    def __init__(
        self, offer: Offer, listen: str, own: Credentials, compression: bool = False, report: Callable[[str], None] = _print
    ) -> None:
        """Raises `ConfigError` if it cannot listen, or if other machines can reach the address and there is no token."""
        self.offer, self._report = offer, report
        super().__init__(_endpoint(listen, own, compression), self._serve, streams=offer.num_envs + SPARE_STREAMS)

    def _serve(self, stream: Stream) -> Iterator[bytes]:
        stream.expect(HELLO_TIMEOUT, "no hello")
        session = Session(self.offer, self._report)
        stream.on_gone = session.left
        return session.answers(iter(stream))


class Dialler:
    """Dials a listening trainer again and again, so that one stream always waits for a group that needs environments."""

    def __init__(self, offer: Offer, address: str, own: Credentials, report: Callable[[str], None], compression: bool = False):
        self.offer, self._address, self._report = offer, check_address(address), report
        self._caller = Caller(_endpoint(address, own, compression), protocol.OF_SIMULATOR)
        self._stopped = threading.Event()
        self._taken = threading.Event()
        self._streams: WeakSet[Stream] = WeakSet()  # those that are open, and perhaps others
        self._last = ""

    def wait(self) -> None:
        """Serve until `stop`."""
        backoff = Backoff()
        while not self._stopped.is_set():
            if self.offer.used >= self.offer.num_envs:
                self._stopped.wait(FIRST_PAUSE)
                continue
            self._taken.clear()
            self._streams.add(stream := self._caller.open())
            thread = threading.Thread(target=self._serve, args=(stream,), name="remote-envs", daemon=True)
            thread.start()
            while thread.is_alive() and not self._taken.is_set() and not self._stopped.is_set():
                self._taken.wait(0.05)
            if self._taken.is_set():
                backoff.reset()
            else:
                backoff.wait(self._stopped)

    def _serve(self, stream: Stream) -> None:
        def began(hello: Hello) -> None:
            self._say(f"a trainer at {self._address} uses the environments")
            self._taken.set()

        stream.expect(ANSWER_TIMEOUT, f"no hello within {ANSWER_TIMEOUT:g} seconds")
        session = Session(self.offer, self._report)
        stream.on_gone = session.left
        for answer in session.answers(iter(stream), began):
            stream.send(answer)
        stream.finish()
        for _ in stream:  # until the trainer has ended the stream, so that the last messages arrive
            pass
        self._say(f"{self._address}: {stream.ended}")
        stream.close()

    def _say(self, text: str) -> None:
        if text != self._last and not self._stopped.is_set():
            self._last = text
            self._report(text)

    def stop(self) -> None:
        """End all streams."""
        self._stopped.set()
        for stream in [*self._streams]:
            stream.close()


def serve_offer(
    offer: Offer,
    *,
    listen: str | None = "127.0.0.1:0",
    dial: str | None = None,
    own: Credentials,
    compression: bool = False,
) -> None:
    """Serve until the process ends, or until Ctrl-C."""
    try:
        server: Dialler | EnvServer
        if dial is not None:
            server, where = Dialler(offer, dial, own, _print, compression), f"for the trainer at {dial}"
        else:
            assert listen is not None
            server = EnvServer(offer, listen, own, compression)
            where = f"at {listen}" if listen.startswith("unix:") else f"at {listen.rpartition(':')[0]}:{server.port}"
        _print(f"{offer.num_envs} x {offer.env} {where}")
        try:
            server.wait()
        finally:
            server.stop()
            offer.wait_until_free(CLOSE_TIMEOUT)
    except KeyboardInterrupt:
        hung = f"; {hanging} of its environments gave no answer any more" if (hanging := offer.used) else ""
        _print(f"The environment server has stopped{hung}")
        raise


def serve(
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    *,
    num_envs: int = 1,
    listen: str | None = "127.0.0.1:7777",
    dial: str | None = None,
    env: str = "my/env",
    options: EnvConfig | None = None,
    token_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    compression: bool = False,
) -> None:
    """Serve a Gymnasium environment to trainers until the process ends, from a process of your own and without torch.

    `make_env` makes one environment; at most `num_envs` are in use at a time. `env` is the id under which trainers ask for it
    (``headrace train --env my/env --envs.remote HOST:PORT``). Either `listen` at an address, or `dial` a trainer that listens. An
    address that other machines can reach needs a token, from `token_file` or the environment variable HEADRACE_TOKEN.

    Raises `ConfigError`, and `EnvironmentFault` where the environment cannot be made.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
    registry.register(env)(lambda _, *, render_mode=None: make_env())
    offer = make_offer(env, num_envs, options or EnvConfig())
    own = credentials(token_file, tls_ca, tls_cert, tls_key)
    serve_offer(offer, listen=listen, dial=dial, own=own, compression=compression)
