"""Where the wheels run: installed on other systems, processors and Pythons, they must do there what they do here.

    make wheel && python benchmarks/platforms.py                    # all systems, and the tables of docs/installing.md
    python benchmarks/platforms.py trixie-aarch64                   # one of them
    python benchmarks/platforms.py --pythons /opt/3.12/bin/python3  # other Pythons of this system

A system is the root file system of a Debian suite, which debootstrap makes below `--roots` and which is kept. In it pip installs
the wheels into an empty virtual environment. Then `wheel_check.py` runs: facts, pictures of three games, and CartPole to its goal
where there is a build of torch without CUDA; then tests. Where Debian's own Python is older than ours, the source package of a
later suite is compiled first. All this needs root, the programs debootstrap and unshare, and for the other processor
qemu-user-static with binfmt_misc.

The pictures must be the same bits everywhere. Times under qemu are an emulator's, and say nothing of a real processor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import summary

REPOSITORY = Path(__file__).parents[1]
RESULT = REPOSITORY / "benchmarks/results/platforms.json"
PAGE = REPOSITORY / "docs/installing.md"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
FROM_HERE = ("etc/ssl/certs/ca-certificates.crt", "etc/resolv.conf", "etc/hosts")
TO_COMPILE = "build-essential,libssl-dev,zlib1g-dev,libffi-dev,libbz2-dev,liblzma-dev,libsqlite3-dev,libexpat1-dev"
TO_COPY = ("pyproject.toml", "benchmarks/wheel_check.py", "packages/headrace-atari/native/atari/games.json")
CONSOLE_TESTS = tuple(f"packages/headrace-atari/tests/test_{name}.py" for name in ("env", "games", "starts", "vector"))


@dataclass(frozen=True)
class System:
    """What the wheels are tried on: a Debian suite, or a Python of this system."""

    suite: str | None
    machine: str = platform.machine()
    torch: str | None = None  # a requirement for a build without CUDA, or `DEBIAN_TORCH`; None: there is neither
    compiled: tuple[str, str] | None = None  # Python's source package, and the suite that has it
    interpreter: str | None = None  # of this system
    tests: tuple[str, ...] = CONSOLE_TESTS

    @property
    def name(self) -> str:
        return f"{self.suite}-{self.machine}" if self.suite else self.python.replace("/", "-").strip("-")

    @property
    def python(self) -> str:
        return self.interpreter or (f"/opt/{self.compiled[0]}/bin/{self.compiled[0]}" if self.compiled else "/usr/bin/python3")


# The package index has builds of torch without CUDA only for aarch64, up to 2.10. For x86-64 there is Debian's, for the Python of
# its suite, and what is in `--links`.
DEBIAN_TORCH = "python3-torch"
SYSTEMS = (
    System("bullseye", "x86_64", torch="torch==2.13.0", compiled=("python3.11", "bookworm")),
    System("trixie", "x86_64", torch=DEBIAN_TORCH),
    System("sid", "x86_64", torch=DEBIAN_TORCH),
    System("bookworm", "aarch64", torch="torch==2.9.1", tests=CONSOLE_TESTS[:1]),
    System("trixie", "aarch64", torch="torch==2.9.1", tests=CONSOLE_TESTS[:1]),
    System("sid", "aarch64", torch="torch==2.9.1", tests=CONSOLE_TESTS[:1]),
)


class Root:
    """The root file system of a system, in a folder of its own below `folder`. This system's is `/`: the folder is for files."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system, self.path = system, folder / system.name
        self.prefix = "" if system.suite else str(self.path)  # of the folder, as commands see it

    def make(self) -> None:
        """Make what is missing of it: Debian's packages, this machine's certificates and name servers, Python."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.system.suite:
            return
        if not (self.path / "etc/debian_version").exists():
            packages = TO_COMPILE if self.system.compiled else "python3,python3-venv"
            options = ["--variant=minbase", f"--arch={DEBIAN[self.system.machine]}", f"--include={packages}"]
            subprocess.run(["debootstrap", *options, self.system.suite, str(self.path)], check=True, stdout=subprocess.DEVNULL)
        for name in FROM_HERE:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(f"/{name}", self.path / name)
        if self.system.compiled and not (self.path / self.system.python[1:]).exists():
            name, suite = self.system.compiled  # pyexpat is built in, as Debian does: its patches need that
            self.run(
                f"cd /etc/apt && sed -n 's/^deb \\([^ ]*\\) .*/deb-src \\1 {suite} main/p' sources.list >sources.list.d/src.list"
                f" && apt-get -q update && cd /opt && apt-get -q source {name} && cd {name}-*/"
                f" && echo 'pyexpat pyexpat.c -lexpat' >Modules/Setup.local"
                f" && ./configure -q --without-ensurepip --prefix=/opt/{name}"
                f" && make -s -j{len(os.sched_getaffinity(0))} && make -s install"
            )

    def run(self, command: str, **options: Any) -> str:
        """Run a shell command in the root, with file systems of its own that vanish with it; returns what it prints."""
        mounts = "mount -t proc proc $0/proc && mount --rbind /dev $0/dev && mount -t tmpfs -o mode=1777 shm $0/dev/shm"
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{mounts} && exec chroot $0 sh -ec "$1"']
        shell = [*enter, str(self.path)] if self.system.suite else ["sh", "-ec"]
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
        environment = pip | {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        done = subprocess.run([*shell, command], env=environment, stdout=subprocess.PIPE, text=True, check=False, **options)
        if done.returncode:
            raise SystemExit(f"{self.system.name}: exit status {done.returncode} of: {command}\n{done.stdout[-4000:]}")
        return done.stdout


def wheels_for(python: str, machine: str, folder: Path) -> list[Path]:
    """The wheels in `folder` for a Python such as "3.13": those of its version, or of all versions from 3.12."""
    major, minor = map(int, python.split("."))
    tag = f"-cp{major}{minor}-" if minor < 12 else "-abi3-"
    return [wheel for wheel in sorted(folder.glob(f"*_{machine}.whl")) if tag in wheel.name]


def try_system(system: System, args: argparse.Namespace) -> dict[str, Any]:
    """Install the wheels on `system`; returns what `wheel_check.py` found there, with what was done."""
    root = Root(system, args.roots)
    root.make()
    version = root.run(f"{system.python} -c 'import sys; print(*sys.version_info[:2], sep=\".\")'").strip()
    wheels = [wheel for wheel in wheels_for(version, system.machine, args.wheels) if system.torch or "atari" in wheel.name]
    copy, environment = root.path / "checkout", f"{root.prefix}/venv"
    shutil.rmtree(copy, ignore_errors=True)
    for path in (*TO_COPY, *system.tests):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / path, copy / path)
    for path in (*wheels, *(args.links.glob("torch-*.whl") if args.links else ())):
        shutil.copy(path, copy)
    required, options = [f"./{wheel.name}" for wheel in wheels], ""
    if system.torch == DEBIAN_TORCH:
        root.run(f"apt-get -q update && apt-get -q install --yes --no-install-recommends {DEBIAN_TORCH}")
        options = "--system-site-packages"
    elif system.torch:
        required.append(system.torch)
    there = f"cd {root.prefix}/checkout"
    pip = f"{environment}/bin/pip install -q --no-compile --only-binary :all: --find-links ."
    begun = time.perf_counter()
    root.run(f"{there} && rm -rf {environment} && {system.python} -m venv {options} {environment} && {pip} {' '.join(required)}")
    seconds = round(time.perf_counter() - begun)
    options = f"--minutes {args.minutes} --placement {args.placement}"
    printed = root.run(f"{there} && {environment}/bin/python benchmarks/wheel_check.py {options}")
    tests = root.run(
        f"{there} && {pip} pytest pytest-timeout hypothesis && {environment}/bin/python -m pytest -p no:cacheprovider"
        f" --timeout 1200 {' '.join(system.tests)} || test $? -eq 1"  # a failure is in the row
    )
    how = "here" if not system.suite else "chroot" if system.machine == platform.machine() else "chroot, qemu-user"
    return {
        "name": system.name if system.suite else f"here-{version}",
        "suite": system.suite or platform.freedesktop_os_release().get("VERSION_CODENAME", "?"),
        "how": how,
        "install_seconds": seconds,
        "wheels": {wheel.name: wheel.stat().st_size for wheel in wheels},
        "tests": tests.splitlines()[-1].strip("= "),
        **json.loads(printed.splitlines()[-1]),
    }


def same_pictures(rows: list[dict[str, Any]]) -> bool:
    return len({json.dumps([found["digest"] for found in row["games"].values()]) for row in rows}) == 1


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    heads = ("Debian", "glibc", "processor", "Python", "torch", "how", "pictures", "frames/s", "CartPole", "tests")
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    pictures = "same bits" if same_pictures(rows) else "DIFFER"
    for row in rows:
        pole = row["cartpole"]
        trained = "no torch"
        if pole:
            trained = f"{pole['return']:.0f} of 500, {pole['steps']:,} steps, {pole['seconds']} s, {pole['placement']}"
        speed = " / ".join(f"{found['frames_per_s']:,}" for found in row["games"].values())
        facts = [row["suite"], row["libc"].split()[-1], row["machine"], row["python"], row["packages"]["torch"] or "none"]
        lines.append("| " + " | ".join([*facts, row["how"], pictures, speed, trained, row["tests"]]) + " |")
    return "\n".join(lines)


def sizes(rows: list[dict[str, Any]]) -> str:
    """The sizes of the wheels that were installed, as a table in Markdown."""
    found = {name: size for row in rows for name, size in row["wheels"].items()}
    return "\n".join(["| wheel | MB |", "| --- | --- |", *(f"| `{name}` | {found[name] / 1e6:.1f} |" for name in sorted(found))])


def page_with(page: str, rows: list[dict[str, Any]]) -> str:
    """The text of docs/installing.md with its tables made of these rows."""
    for name, text in (("sizes", sizes(rows)), ("systems", table(rows))):
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        page = f"{before}{begin}{text}\n{rest[rest.index('<!-- end -->') :]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {system.name: system for system in SYSTEMS}
    parser.add_argument("systems", nargs="*", help=f"of {', '.join(known)}; default: all, or none with --pythons")
    parser.add_argument("--pythons", nargs="*", default=[], help="interpreters of this system, by their paths")
    parser.add_argument("--consoles", action="store_true", help="headrace-atari alone, without torch")
    parser.add_argument("--wheels", type=Path, default=REPOSITORY / "dist", help="folder of the wheels")
    parser.add_argument("--roots", type=Path, default=Path("/var/tmp/headrace-platforms"), help="folder of the root file systems")
    parser.add_argument("--links", type=Path, help="folder with a build of torch that the package index lacks")
    parser.add_argument("--minutes", type=float, default=30, help="CartPole's training ends after so many minutes at the latest")
    parser.add_argument("--placement", default="served", help="CartPole's placement; serial takes the least processor time")
    parser.add_argument("--json", type=Path, default=RESULT, help="file of the results, to which these are added")
    args = parser.parse_args()
    if unknown := set(args.systems) - known.keys():
        parser.error(f"no systems {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [known[name] for name in args.systems or (() if args.pythons else known)]
    chosen += [System(None, interpreter=path) for path in args.pythons]
    if args.consoles:
        chosen = [replace(system, torch=None) for system in chosen]
    rows = json.loads(args.json.read_text())["rows"] if args.json.exists() else []
    for system in chosen:
        row = try_system(system, args)
        rows = sorted(
            [*(old for old in rows if old["name"] != row["name"]), row], key=lambda row: (row["machine"], row["python"])
        )
        summary.write(args.json, {"machine": summary.machine(), "rows": rows})
        if args.json == RESULT:
            PAGE.write_text(page_with(PAGE.read_text(), rows))
        print(table(rows), flush=True)
    sys.exit(not same_pictures(rows) or any("failed" in row["tests"] for row in rows))


if __name__ == "__main__":
    main()
