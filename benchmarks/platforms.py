"""Where the wheels run: each is installed into root file systems of older and other systems, and must do there what it does here.

    make wheel && python benchmarks/platforms.py --wheels dist      # all rows of the table in docs/installing.md
    python benchmarks/platforms.py --wheels dist trixie-aarch64     # one of them

Needs root, the programs debootstrap and unshare, and for the other architecture qemu-user-static with binfmt_misc. A root is made
once, by debootstrap from the packages of a Debian suite, below `--roots`, and kept. In it pip installs the wheels into an empty
virtual environment, and `wheel_check.py` runs: facts, pictures of three games, and CartPole to its goal where there is a build of
torch without CUDA. Where Debian's own Python is older than ours, its source package of a later suite is compiled first.

The pictures must be the same bits in all rows. Times under qemu are an emulator's, and say nothing of a real processor.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import summary

HERE = Path(__file__).parent
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True)
class Row:
    """A system on which wheels are tried."""

    suite: str  # of Debian
    machine: str = "x86_64"
    torch: str | None = None  # a requirement for a build without CUDA; None: there is none for this Python and machine
    compiled: tuple[str, str] | None = None  # Python's source package, and the suite that has it

    @property
    def name(self) -> str:
        return f"{self.suite}-{self.machine}"

    @property
    def python(self) -> str:
        return f"/opt/{self.compiled[0]}/bin/{self.compiled[0]}" if self.compiled else "/usr/bin/python3"


# The package index has builds of torch without CUDA only for aarch64, up to 2.10; one for x86-64 has to be in `--links`.
ROWS = (
    Row("bullseye", torch="torch==2.13.0", compiled=("python3.11", "bookworm")),
    Row("trixie"),
    Row("sid"),
    Row("bookworm", "aarch64", torch="torch==2.9.1"),
    Row("trixie", "aarch64", torch="torch==2.9.1"),
    Row("sid", "aarch64", torch="torch==2.9.1"),
)
TO_COMPILE = ("build-essential", "libssl-dev", "zlib1g-dev", "libffi-dev", "libbz2-dev", "liblzma-dev", "libsqlite3-dev")


class Root:
    """The root file system of a row, in a folder below `folder`."""

    def __init__(self, row: Row, folder: Path) -> None:
        self.row, self.path = row, folder / row.name

    def make(self) -> None:
        """Make what is missing of it: Debian's packages, this machine's certificates and name servers, Python."""
        if not (self.path / "etc/debian_version").exists():
            packages = ["ca-certificates", *(TO_COMPILE if self.row.compiled else ("python3", "python3-venv"))]
            options = ["--variant=minbase", f"--arch={DEBIAN[self.row.machine]}", f"--include={','.join(packages)}"]
            subprocess.run(["debootstrap", *options, self.row.suite, str(self.path)], check=True, stdout=subprocess.DEVNULL)
        for name in (CERTIFICATES, "etc/resolv.conf", "etc/hosts"):
            shutil.copyfile(f"/{name}", self.path / name)
        if self.row.compiled and not (self.path / self.row.python[1:]).exists():
            name, suite = self.row.compiled
            self.run(
                f"cd /etc/apt && sed -n 's/^deb \\([^ ]*\\) .*/deb-src \\1 {suite} main/p' sources.list >sources.list.d/src.list"
                f" && apt-get -q update && cd /opt && apt-get -q source {name} && cd {name}-*/"
                f" && ./configure -q --prefix=/opt/{name} && make -s -j{len(os.sched_getaffinity(0))} && make -s install"
            )

    def run(self, command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the root, with file systems of its own that vanish with it."""
        mounts = "mount -t proc proc $0/proc && mount --rbind /dev $0/dev && mount -t tmpfs -o mode=1777 shm $0/dev/shm"
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{mounts} && exec chroot $0 sh -ec "$1"']
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
        environment = pip | {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        return subprocess.run([*enter, str(self.path), command], env=environment, text=True, check=True, **options)


def wheels_for(python: str, machine: str, folder: Path) -> list[Path]:
    """The wheels in `folder` for a Python such as "3.13": those of its version, or of all versions from 3.12."""
    major, minor = map(int, python.split("."))
    tag = f"-cp{major}{minor}-" if minor < 12 else "-abi3-"
    return [wheel for wheel in sorted(folder.glob(f"*_{machine}.whl")) if tag in wheel.name]


def try_row(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """Install the wheels in the root of `row`; returns what `wheel_check.py` found there, with what was done."""
    root = Root(row, args.roots)
    root.make()
    shown = root.run(f"{row.python} -c 'import sys; print(*sys.version_info[:2], sep=\".\")'", stdout=subprocess.PIPE).stdout
    wheels = [wheel for wheel in wheels_for(shown.strip(), row.machine, args.wheels) if row.torch or "atari" in wheel.name]
    inside = root.path / "wheels"
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir()
    for path in (*wheels, HERE / "wheel_check.py", *(args.links.glob("torch-*.whl") if args.links else ())):
        shutil.copy(path, inside)
    required = " ".join([f"/wheels/{wheel.name}" for wheel in wheels] + ([row.torch] if row.torch else []))
    begun = time.perf_counter()
    root.run(
        f"rm -rf /venv && {row.python} -m venv /venv"
        f" && /venv/bin/pip install -q --no-compile --only-binary :all: --find-links /wheels {required}"
    )
    seconds = round(time.perf_counter() - begun)
    done = root.run(f"/venv/bin/python /wheels/wheel_check.py --minutes {args.minutes}", stdout=subprocess.PIPE)
    found = json.loads(done.stdout.splitlines()[-1])
    how = "chroot" if row.machine == platform.machine() else "chroot, qemu-user"
    return {**asdict(row), "how": how, "install_seconds": seconds, "wheels": {w.name: w.stat().st_size for w in wheels}, **found}


def same_pictures(rows: list[dict[str, Any]]) -> bool:
    return len({json.dumps([found["digest"] for found in row["games"].values()]) for row in rows}) == 1


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| Debian | processor | glibc | Python | torch | how | pictures | frames/s | CartPole |", "| --- " * 9 + "|"]
    pictures = "same bits" if same_pictures(rows) else "DIFFER"
    for row in rows:
        pole = row["cartpole"]
        trained = f"{pole['return']:.0f} of 500, {pole['steps']:,} steps, {pole['seconds']} s" if pole else "no torch"
        speed = " / ".join(f"{found['frames_per_s']:,}" for found in row["games"].values())
        facts = [row["suite"], row["machine"], row["libc"].split()[-1], row["python"], row["packages"]["torch"] or "none"]
        lines.append("| " + " | ".join([*facts, row["how"], pictures, speed, trained]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(row.name for row in ROWS)}; default: all")
    parser.add_argument("--wheels", type=Path, default=Path("dist"), help="folder of the wheels")
    parser.add_argument("--roots", type=Path, default=Path("/var/tmp/headrace-platforms"), help="folder of the root file systems")
    parser.add_argument("--links", type=Path, help="folder with a build of torch that the package index lacks")
    parser.add_argument("--minutes", type=float, default=30, help="CartPole's training ends after so many minutes at the latest")
    parser.add_argument("--json", type=Path, default=HERE / "results/platforms.json")
    args = parser.parse_args()
    known = {row.name: row for row in ROWS}
    if unknown := set(args.rows) - known.keys():
        parser.error(f"unknown rows {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    kept = json.loads(args.json.read_text())["rows"] if args.json.exists() else []
    results = {f"{row['suite']}-{row['machine']}": row for row in kept}
    args.roots.mkdir(parents=True, exist_ok=True)
    for name in args.rows or known:
        results[name] = try_row(known[name], args)
        rows = [results[name] for name in known if name in results]
        summary.write(args.json, {"machine": summary.machine(), "rows": rows})
        print(table(rows), flush=True)
    sys.exit(not same_pictures(list(results.values())))


if __name__ == "__main__":
    main()
