"""Machines that are namespaces of this one, the host: each has processes, a network interface with an address, a host name, /tmp
and /dev/shm of its own.

They hang on one bridge, which is in a namespace too, so the host's network is not touched. A namespace lasts as long as its
first process, and that one ends when the pipe to its standard input is closed: with the process that made it, however that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil

Cut = Literal["silent", "down"]
FIRST = """
read -r pid rest </proc/self/stat  # as the host counts processes
set -e
ip link set lo up
{set_up}
echo $pid
exec env --ignore-signal=CHLD cat >/dev/null  # so nobody need wait for processes whose parent has gone
"""
"""The script of a namespace's first process."""
OWN_FILES = """
{keep}
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t proc proc /proc
mount -t sysfs sysfs /sys
{put_back}
echo {name} >/proc/sys/kernel/hostname
printf '127.0.0.1 localhost\\n127.0.1.1 {name}\\n' >/tmp/hosts
mount --bind /tmp/hosts /etc/hosts
"""
"""Its own name is at a loopback address, as Debian has it."""


@cache
def lacks() -> str:
    """Why there can be no such machines here; "" if there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if missing := [tool for tool in ("ip", "unshare", "nsenter", "mount") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not installed"
    made = subprocess.run(
        ["unshare", "-nmpu", "--fork", "sh", "-c", "ip link add type veth && ip link add type bridge && mount -t sysfs s /sys"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return made.stderr.strip()


class Inside(subprocess.Popen[Any]):
    """A program in a namespace: `nsenter`, which ends as its child does. Signals are for that child."""

    def send_signal(self, sig: int) -> None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children():
                child.send_signal(sig)


class Namespace:
    """Its first process. `kinds`: options of `unshare`; `set_up`: a shell script for it."""

    def __init__(self, kinds: list[str], set_up: str) -> None:
        command = ["unshare", *kinds, "--fork", "sh", "-c", FIRST.format(set_up=set_up)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._first = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        assert self._first.stdout is not None
        line = self._first.stdout.readline()
        assert line, self._first.communicate()[1]
        self.pid = int(line)
        """Of the first process, as the host counts."""

    def popen(self, command: list[str], **how: Any) -> Inside:
        """Start a program there; `how`: see `subprocess.Popen`."""
        return Inside(["nsenter", "--all", f"--target={self.pid}", "--", *command], **how)

    def run(self, *command: str) -> str:
        """Run a program there to its end; what it printed. Raises `CalledProcessError` if it fails."""
        entered = ["nsenter", "--all", f"--target={self.pid}", "--", *command]
        return subprocess.run(entered, stdout=subprocess.PIPE, text=True, check=True).stdout

    def kill(self) -> None:
        """Kill every process there at once."""
        if self._first.poll() is None:  # else its number may be another process's
            os.kill(self.pid, signal.SIGKILL)
            self._first.communicate()


class Machine(Namespace):
    """One machine. `folder`: one of the host's that is there too, at the same path."""

    def __init__(self, network: Network, number: int, name: str, folder: Path | None) -> None:
        keep, put_back = f"mount --bind {folder} /mnt", f"mkdir -p {folder}\nmount --move /mnt {folder}"
        files = OWN_FILES.format(keep=keep if folder else "", put_back=put_back if folder else "", name=name)
        super().__init__(["--net", "--pid", "--mount", "--uts"], files)
        self.name, self.address = name, f"{network.prefix}.{number}"
        self.root = Path(f"/proc/{self.pid}/root")
        """Its files."""
        self._network, self._port = network, f"p{self.pid}"
        self._before = self._files()
        network.bridge.run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        network.bridge.run("ip", "link", "set", self._port, "master", "bridge", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._up()

    def _up(self) -> None:
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "replace", "default", "dev", "eth0")

    def cut(self, how: Cut) -> None:
        """Cut its link: `silent`, so that what is sent is lost and nobody is told, or with its interface `down`."""
        if how == "down":
            self.run("ip", "link", "set", "eth0", "down")
        else:
            self._network.bridge.run("ip", "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        """Undo `cut`."""
        self._network.bridge.run("ip", "link", "set", self._port, "master", "bridge")
        self._up()

    def lose_power(self) -> None:
        """All of it is gone at once, and nothing of it tells the others: their connections stay open."""
        self.cut("silent")
        self.kill()

    def traffic(self) -> dict[str, int]:
        """Bytes that its link has carried: `sent`, `received`."""
        counts = self.root / "sys/class/net/eth0/statistics"
        return {name: int((counts / f"{way}_bytes").read_text()) for name, way in (("sent", "tx"), ("received", "rx"))}

    def processes(self) -> Iterator[psutil.Process]:
        """All but the first, with their pids on the host."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in psutil.process_iter():
            with suppress(OSError):
                if process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    yield process

    def running(self, module: str) -> list[int]:
        """Pids of the processes there that were started as `python -m` this module."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if module in process.cmdline():
                    found.append(process.pid)
        return found

    def traces(self) -> list[str]:
        """Names of processes and of new files in /tmp and /dev/shm."""
        return [process.name() for process in self.processes()] + sorted(self._files() - self._before)

    def _files(self) -> set[str]:
        return {f"{folder}/{name}" for folder in ("tmp", "dev/shm") for name in os.listdir(self.root / folder)}


class Network:
    """A bridge, and the machines on it. `network.machines` are those that were not killed."""

    def __init__(self) -> None:
        self.prefix = f"10.77.{os.getpid() % 250 + 1}"
        """Of all addresses."""
        self.bridge = Namespace(["--net"], "ip link add bridge type bridge\nip link set bridge up")
        self._made: list[Machine] = []

    def add(self, folder: Path | None = None, number: int | None = None) -> Machine:
        """Another machine; `number`: the end of its address, if that is to be the one of a machine that is gone. `folder`: see
        `Machine`."""
        count = len(self._made)
        self._made.append(machine := Machine(self, number or count + 1, f"machine-{count}", folder))
        return machine

    def close(self) -> None:
        """Kill all of them."""
        for namespace in (*self._made, self.bridge):
            namespace.kill()


@contextmanager
def network() -> Iterator[Network]:
    """A network without machines, which ends with the block."""
    made = Network()
    try:
        yield made
    finally:
        made.close()
