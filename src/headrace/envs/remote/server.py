"""Environment servers: listen for trainers, or dial a trainer that listens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic
from typing import Any

import grpc
import gymnasium

from headrace.config import ConfigError, EnvConfig
from headrace.envs import registry
from headrace.envs.remote import protocol
from headrace.envs.remote.protocol import Hello
from headrace.envs.remote.session import Offer, Session
from headrace.envs.remote.transport import (
    OF_SIMULATOR,
    Credentials,
    Handler,
    Link,
    channel_options,
    check_address,
    credentials,
    dial,
)

SPARE_STREAMS = 16
"""Streams beside those of the environments: questions for the specification, and refusals."""
HELLO_TIMEOUT = 30.0
"""Seconds that a caller may take for its hello."""
ANSWER_TIMEOUT = 10.0
"""Seconds that a trainer which was dialled has to say hello. Who needs environments does so at once, and who does not ends the
stream; but a call that meets a listener while it closes may be kept by gRPC for ever."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds between two attempts to dial: doubled from the first to the longest."""


def make_offer(env: str, num_envs: int, options: EnvConfig | None = None) -> Offer:
    """What `headrace serve-envs` serves: a registered environment. It is made once, to know its spaces.

    Raises what `registry.make_group` raises.
    """
    registry.check_one(env)
    options = options if options is not None else registry.default_options(env)
    # rewards are sent raw; the trainer scales and clips them
    options = replace(options, reward_scale=1.0, reward_clip=None, reward_soft_clip=None)
    spec = registry.describe_here(env, options)
    return Offer(
        env=env,
        options=protocol.shared_options(options),
        spec=spec,
        make_group=lambda count, training: registry.make_group(env, options, count, training=training),
        num_envs=num_envs,
        defaults=dict(registry.defaults(env)),
        observes=registry.observes(env),
    )


class EnvServer:
    """Listens for trainers. `port` is the one it has. Threads of this process step the environments."""

    def __init__(self, offer: Offer, listen: str, own: Credentials, compression: bool = False) -> None:
        """Raises `ConfigError` where it cannot listen, or where the address is not of this machine and there is no token."""
        self.offer = offer
        streams = offer.num_envs + SPARE_STREAMS
        self._server = grpc.server(
            ThreadPoolExecutor(streams, "remote-envs"),
            handlers=(Handler(own, self._session),),
            options=[*channel_options(protocol.MOST_REQUEST), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=streams,
            compression=grpc.Compression.Gzip if compression else None,
        )
        self.port = own.listen(self._server, listen)
        self._server.start()

    def _session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        silent = threading.Timer(HELLO_TIMEOUT, context.cancel)
        silent.daemon = True
        silent.start()
        try:
            yield from Session(self.offer).answers(_until_cut(requests), lambda _: silent.cancel())
        finally:
            silent.cancel()

    def wait(self) -> None:
        """Serve until `stop`, or the end of the process."""
        self._server.wait_for_termination()

    def stop(self, grace: float = 0.5) -> None:
        """Stop listening; streams have `grace` seconds to end."""
        self._server.stop(grace).wait(grace + 5)


def _until_cut(requests: Iterator[bytes]) -> Iterator[bytes]:
    """A trainer that goes away without a word ends the stream like one that says so."""
    try:
        yield from requests
    except Exception:  # gRPC raises a bare Exception where the peer is gone
        return


class Dialler:
    """Dials a trainer that listens, again and again: one stream always waits for a group that needs environments."""

    def __init__(self, offer: Offer, address: str, own: Credentials, report: Callable[[str], None], compression: bool = False):
        self.offer, self._address, self._own = offer, check_address(address), own
        self._report, self._compression = report, compression
        self._stopped = threading.Event()
        self._taken = threading.Event()
        self._last = ""

    def run(self) -> None:
        """Dial until `stop`."""
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            if self.offer.used >= self.offer.num_envs:
                self._stopped.wait(FIRST_PAUSE)
                continue
            self._taken.clear()
            link = dial(self._address, self._own, OF_SIMULATOR, protocol.MOST_REQUEST, self._compression)
            thread = threading.Thread(target=self._stream, args=(link,), name="remote-envs", daemon=True)
            thread.start()
            late = monotonic() + ANSWER_TIMEOUT
            while thread.is_alive() and not self._taken.is_set() and not self._stopped.is_set():
                self._taken.wait(0.05)
                if monotonic() > late and not self._taken.is_set():
                    link.close(f"no hello within {ANSWER_TIMEOUT:g} seconds")
                    break
            if self._taken.is_set():
                pause = FIRST_PAUSE
            else:
                self._stopped.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _stream(self, link: Link) -> None:
        def began(hello: Hello) -> None:
            self._say(f"a trainer at {self._address} uses the environments")
            self._taken.set()

        for answer in Session(self.offer).answers(iter(link), began):
            link.outbox.put(answer)
            if self._stopped.is_set():
                break
        link.outbox.put(None)
        for _ in link:  # until the trainer has ended the stream: what was sent last arrives
            pass
        self._say(f"{self._address}: {link.ended}")
        link.close()

    def _say(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self._report(text)

    def stop(self) -> None:
        """Dial no more."""
        self._stopped.set()


def serve_offer(
    offer: Offer,
    *,
    listen: str | None = "127.0.0.1:0",
    dial: str | None = None,
    own: Credentials,
    compression: bool = False,
    report: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Serve until the process ends."""
    if dial is not None:
        report(f"{offer.num_envs} x {offer.env} for the trainer at {dial}")
        Dialler(offer, dial, own, report, compression).run()
        return
    assert listen is not None
    server = EnvServer(offer, listen, own, compression)
    address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{server.port}"
    report(f"{offer.num_envs} x {offer.env} at {address}")
    try:
        server.wait()
    finally:
        server.stop()


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
