"""Another "host": a network namespace of this machine, at the other end of a pair of virtual network devices."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

RELAY = Path(__file__).parents[2] / "benchmarks" / "remote_envs.py"

_numbers = itertools.count()


def _run(*command: str) -> str:
    """Run a command; its output. Raises `CalledProcessError`."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Host:
    """As a context: a namespace that can be reached at `address`, and reaches this one at `home`. Skips the test where the system
    does not permit namespaces."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.name = f"hr{os.getpid()}-{number}"
        self.device, self._there = f"hrv{os.getpid() % 100_000}{number}"[:15], f"hrw{os.getpid() % 100_000}{number}"[:15]
        net = f"10.231.{(os.getpid() + number) % 250 + 1}"
        self.home, self.address = f"{net}.1", f"{net}.2"

    def __enter__(self) -> Host:
        try:
            _run("ip", "netns", "add", self.name)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        try:
            _run("ip", "link", "add", self.device, "type", "veth", "peer", "name", self._there)
            _run("ip", "link", "set", self._there, "netns", self.name)
            _run("ip", "addr", "add", f"{self.home}/24", "dev", self.device)
            _run("ip", "link", "set", self.device, "up")
            for command in (
                f"ip addr add {self.address}/24 dev {self._there}", f"ip link set {self._there} up", "ip link set lo up",
            ):  # fmt: skip
                _run("ip", "netns", "exec", self.name, *command.split())
        except BaseException as error:
            self.__exit__()
            if isinstance(error, subprocess.CalledProcessError):
                pytest.skip(f"no virtual network devices here: {error.stderr}")
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        subprocess.run(["ip", "link", "del", self.device], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    @property
    def prefix(self) -> list[str]:
        """Before a command that is to run on the other host."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Nothing comes through any more."""
        _run("ip", "link", "set", self.device, "down")

    def mend(self) -> None:
        """The inverse of `cut`."""
        _run("ip", "link", "set", self.device, "up")

    @contextmanager
    def delayed(self, address: str, milliseconds: float) -> Iterator[str]:
        """The address at which what listens there at `address` is reached with this round trip: the same, or where the kernel
        delays no packets (tc netem) that of a relay in user space."""
        try:
            _run("tc", "qdisc", "replace", "dev", self.device, "root", "netem", "delay", f"{milliseconds}ms")
        except (OSError, subprocess.CalledProcessError):
            command = [sys.executable, str(RELAY), "--relay", address, str(milliseconds / 2000)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
                assert relay.stdout is not None
                try:
                    yield f"127.0.0.1:{relay.stdout.readline().strip()}"
                finally:
                    relay.kill()
        else:
            yield address
