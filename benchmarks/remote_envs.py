"""What environments at a server cost: one stream's messages, local against remote, and how many groups hide a network's delay.

    python benchmarks/remote_envs.py [--part stream local network] [--seconds 3] [--json FILE]

stream    a group that costs nothing: group-steps/s, MB/s, and the processor time of a message on both sides
local     the same environments in this process and at a server over loopback, one group after another and several at once
network   environments at a "host" behind a delay and a rate of 1 Gbit/s, by the number of groups. Needs root: the host is a
          network namespace, and tc limits the rate. Where the kernel has netem, that delays packets; where it has not, a relay of
          this script does, which holds up every piece of data by half of the round trip each way.

Actions are chosen at once: there is no policy and no learner, so that everything that is left is the way to the environments.
"""

from __future__ import annotations

import argparse
import heapq
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import summary

from headrace.config import EnvConfig
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvGroup, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.core.settings import default_options
from headrace.envs.make import make_group
from headrace.envs.remote import protocol
from headrace.envs.remote.group import RemoteGroup
from headrace.envs.remote.server import EnvServer, make_offer
from headrace.envs.remote.session import Offer
from headrace.transport.credentials import Credentials

NOTHING = "bench/nothing"
TOKEN = "a-token-for-benchmarks"
SMALL, LARGE = (4,), (4, 84, 84)


class NothingGroup:
    """Environments that cost nothing: observations stay what they are."""

    lanes = 1

    def __init__(self, shape: tuple[int, ...], num_envs: int) -> None:
        dtype = np.dtype(np.uint8 if len(shape) == 3 else np.float32)
        self.spec = EnvSpec({"obs": ArraySpec(shape, dtype)}, ActionSpec((Categorical(4),)), name=NOTHING)
        self.num_envs = self.lane_size = num_envs

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        pass

    def send(self, rows: Sequence[LaneRow]) -> None:
        rows[0].after.valid[:] = True

    def recv(self) -> bool:
        return True

    def notify(self, wake: Any) -> None:
        pass

    def close(self) -> None:
        pass


def offer_of(env: str, num_envs: int) -> Offer:
    """What the server process of this script serves: a registered environment, or bench/nothing with a shape."""
    if not env.startswith(NOTHING):
        return make_offer(env, num_envs)
    shape = SMALL if env.endswith("small") else LARGE
    options = protocol.shared_options(EnvConfig())
    return Offer(env, options, NothingGroup(shape, 1).spec, lambda n, _: NothingGroup(shape, n), num_envs, {}, "vectors")


def serve(env: str, listen: str) -> None:
    """The server process: says its port, then the processor time it has used whenever it is asked (a line of input)."""
    server = EnvServer(offer_of(env, 4096), listen, Credentials(TOKEN))
    print(server.port, flush=True)
    for _ in sys.stdin:
        print(processor_time(), flush=True)
    server.stop(0)


def processor_time() -> float:
    """Of this process, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Server:
    """`serve` in a process of its own, as a context."""

    def __init__(self, env: str, listen: str = "127.0.0.1:0", prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, __file__, "--serve", env, listen]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.env, self.address = env, f"{listen.rpartition(':')[0]}:{self._line()}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the server process has ended"
        return line

    def processor_time(self) -> float:
        """Of the server, in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()


class Driver:
    """Steps groups as a rollout worker does: whichever is ready first."""

    def __init__(self, groups: Sequence[EnvGroup], spec: EnvSpec) -> None:
        self._groups = groups
        self._woken = threading.Event()
        self._rows, rng = [], np.random.default_rng(0)
        choices = [part.n for part in spec.action.parts if isinstance(part, Categorical)]
        for group in groups:
            n = group.num_envs
            step = StepRow.zeros(n)
            if spec.autoreset == "same-step":
                step.final_obs = ObsRow.zeros(spec, n).obs
            actions = np.stack([rng.integers(0, most, n) for most in choices], 1).astype(np.int32)
            self._rows.append([LaneRow(actions, step, ObsRow.zeros(spec, n))])
            group.notify(self._woken.set)
        for group, rows in zip(groups, self._rows, strict=True):
            group.reset(0, [rows[0].after])
        self.run(0.5)

    def run(self, seconds: float) -> float:
        """Group-steps per second."""
        steps, began = 0, time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            self._woken.clear()
            done = 0
            for group, rows in zip(self._groups, self._rows, strict=True):
                if group.recv():
                    group.send(rows)
                    done += 1
            steps += done
            if not done:
                self._woken.wait(0.1)
        return steps / (now - began)


@contextmanager
def driving(address: str, env: str, num_envs: int, groups: int) -> Iterator[Driver]:
    """Groups at a server."""
    options = default_options(env) if not env.startswith(NOTHING) else EnvConfig()
    made = [RemoteGroup(address, env, options, num_envs) for _ in range(groups)]
    try:
        yield Driver(made, made[0].spec)
    finally:
        for group in made:
            group.close()


# -- the parts --------------------------------------------------------------------------------------------------------


def stream(seconds: float) -> list[dict[str, Any]]:
    """The cost of a message."""
    rows = []
    print(f"{'environments x observation':<30}{'streams':>8}{'steps/s':>10}{'MB/s':>8}{'us/step here':>14}{'us/step server':>16}")
    for name, shape, num_envs in (("small", SMALL, 16), ("large", LARGE, 32)):
        env = f"{NOTHING}-{name}"
        size = protocol.GroupLayout(NothingGroup(shape, 1).spec, 1, num_envs).largest.nbytes
        with Server(env) as server:
            for streams in (1, 2, 4):
                with driving(server.address, env, num_envs, streams) as driver:
                    before, there = processor_time(), server.processor_time()
                    rate = driver.run(seconds)
                    here, there = processor_time() - before, server.processor_time() - there
                steps = rate * seconds
                row = {"environments": num_envs, "shape": list(shape), "bytes": size, "streams": streams, "steps_per_s": rate}
                row |= {"MB_per_s": rate * size / 1e6, "us_here": 1e6 * here / steps, "us_server": 1e6 * there / steps}
                rows.append(row)
                what = f"{num_envs} x {list(shape)} ({size:,} B)"
                print(
                    f"{what:<30}{streams:>8}{rate:>10,.0f}{row['MB_per_s']:>8,.0f}{row['us_here']:>14.0f}{row['us_server']:>16.0f}"
                )
    return rows


def local(seconds: float) -> list[dict[str, Any]]:
    """Local against remote over loopback."""
    rows = []
    print(f"{'environment':<24}{'groups':>8}{'local':>14}{'remote':>14}{'ratio':>8}   (frames/s)")
    for env, num_envs in (("gym/CartPole-v1", 16), ("atari/pong", 32)):
        options = default_options(env)
        with Server(env) as server:
            for groups in (1, 2):
                here = [make_group(env, options, num_envs) for _ in range(groups)]
                spec = here[0].spec
                inside = Driver(here, spec)
                with driving(server.address, env, num_envs, groups) as outside:
                    rates: dict[str, list[float]] = {"local": [], "remote": []}
                    for _ in range(3):  # by turns, so that a busy machine is unfair to both
                        rates["local"].append(inside.run(seconds / 3))
                        rates["remote"].append(outside.run(seconds / 3))
                for group in here:
                    group.close()
                frames = {name: float(np.median(r)) * num_envs * spec.frameskip for name, r in rates.items()}
                rows.append({"env": env, "environments": num_envs, "groups": groups, "frames_per_s": frames})
                ratio = frames["remote"] / frames["local"]
                print(f"{env:<24}{groups:>8}{frames['local']:>14,.0f}{frames['remote']:>14,.0f}{ratio:>8.2f}")
    return rows


def network(seconds: float) -> list[dict[str, Any]]:
    """Groups against delay."""
    rows = []
    with ExitStack() as stack:
        host = stack.enter_context(Host())
        for env, num_envs in (("gym/CartPole-v1", 16), ("atari/pong", 32)):
            server = stack.enter_context(Server(env, f"{host.address}:0", host.prefix))
            counts = (1, 2, 4, 8, 16)
            print(f"\n{env}, {num_envs} environments in a group, {host.words}: group-steps/s")
            print(f"{'round trip':<14}" + "".join(f"{f'{n} groups':>12}" for n in counts))
            for milliseconds in (0, 1, 20):
                with host.delayed(server.address, milliseconds) as address:
                    rates = []
                    for groups in counts:
                        with driving(address, env, num_envs, groups) as driver:
                            rates.append(driver.run(seconds))
                rows += [
                    {"env": env, "environments": num_envs, "round_trip_ms": milliseconds, "groups": n, "steps_per_s": rate}
                    for n, rate in zip(counts, rates, strict=True)
                ]
                print(f"{f'{milliseconds} ms':<14}" + "".join(f"{rate:>12,.0f}" for rate in rates), flush=True)
    return rows


# -- the network ------------------------------------------------------------------------------------------------------


class Host:
    """A network namespace behind a link of 1 Gbit/s, as a context."""

    def __init__(self) -> None:
        self._name, self._here, self._there = (f"{kind}{os.getpid() % 1_000_000}" for kind in ("hrb", "hrx", "hry"))
        net = f"10.232.{os.getpid() % 250 + 1}"
        self._home, self.address = f"{net}.1", f"{net}.2"
        self.prefix = ["ip", "netns", "exec", self._name]
        self.words = ""

    def __enter__(self) -> Host:
        commands = [
            f"ip netns add {self._name}",
            f"ip link add {self._here} type veth peer name {self._there}",
            f"ip link set {self._there} netns {self._name}",
            f"ip addr add {self._home}/24 dev {self._here}",
            f"ip link set {self._here} up",
            f"{' '.join(self.prefix)} ip addr add {self.address}/24 dev {self._there}",
            f"{' '.join(self.prefix)} ip link set {self._there} up",
        ]
        limit = "root handle 1: tbf rate 1gbit burst 256kb latency 50ms"
        commands += [f"tc qdisc add dev {self._here} {limit}"]
        commands += [f"{' '.join(self.prefix)} tc qdisc add dev {self._there} {limit}"]
        try:
            for command in commands:
                subprocess.run(command.split(), check=True, capture_output=True, text=True)
        except BaseException:
            self.__exit__()
            raise
        self._netem = self._tc("add", 1) and self._tc("del", 0)
        self.words = "1 Gbit/s by tc tbf, delay by " + ("tc netem" if self._netem else "a relay in user space (no netem here)")
        return self

    def _tc(self, what: str, milliseconds: float) -> bool:
        delay = f" netem delay {milliseconds}ms" if what == "add" else ""
        command = f"tc qdisc {what} dev {self._here} parent 1:1 handle 10:{delay}"
        return subprocess.run(command.split(), check=False, capture_output=True).returncode == 0

    @contextmanager
    def delayed(self, address: str, milliseconds: float) -> Iterator[str]:
        """The address at which the server is reached with this round trip added."""
        if not milliseconds:
            yield address
        elif self._netem:
            self._tc("add", milliseconds)
            yield address
            self._tc("del", 0)
        else:
            with relaying(address, milliseconds) as near:
                yield near

    def __exit__(self, *exception: object) -> None:
        for command in (f"ip link del {self._here}", f"ip netns del {self._name}"):
            subprocess.run(command.split(), check=False, capture_output=True)


@contextmanager
def relaying(address: str, milliseconds: float) -> Iterator[str]:
    """The address of a relay to a server, a process that adds this round trip; the server's own where it is 0."""
    if not milliseconds:
        yield address
        return
    command = [sys.executable, __file__, "--relay", address, str(milliseconds / 2000)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def relay(address: str, delay: float) -> None:
    """Pass TCP connections on to `address`, every piece of data `delay` seconds after it came."""
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    others: dict[socket.socket, socket.socket] = {}
    due: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        readable, _, _ = select.select([listener, *others], [], [], wait)
        for ready in readable:
            if ready is listener:
                near = listener.accept()[0]
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:  # the server is gone; it may come back
                    near.close()
                    continue
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                others |= {near: far, far: near}
                continue
            try:
                data = ready.recv(1 << 20)
            except OSError:  # it was reset
                data = b""
            number += 1
            heapq.heappush(due, (time.monotonic() + delay, number, others[ready], data))
            if not data:
                others.pop(ready, None)
        while due and due[0][0] <= time.monotonic():
            _, _, to, data = heapq.heappop(due)
            try:
                to.sendall(data) if data else to.shutdown(socket.SHUT_WR)
            except OSError:
                continue


PARTS = {"stream": stream, "local": local, "network": network}


def main() -> None:
    """Run the parts, print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--relay", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(*asked.serve)
    elif asked.relay:
        relay(asked.relay[0], float(asked.relay[1]))
    else:
        os.environ["HEADRACE_TOKEN"] = TOKEN
        found = {part: PARTS[part](asked.seconds) for part in asked.part}
        if asked.json:
            summary.write(asked.json, found | {"machine": summary.machine()})


if __name__ == "__main__":
    main()
