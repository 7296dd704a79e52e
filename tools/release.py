"""Releases of the packages `headrace` and `headrace-atari`. Both have the version in packages/headrace-atari/pyproject.toml.

    python tools/release.py prepare [VERSION]   write the version where it is named, and the changelog's section for it
    python tools/release.py sdist DIST          make the source distributions of both
    python tools/release.py check DIST          check what lies in DIST: with twine, by building the source distributions, and by
                                                installing each package into an empty environment and using it there

`make release VERSION=0.2.0` runs all three, with `make wheel` in between. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
FOLDERS = {"headrace-atari": "packages/headrace-atari", "headrace": "."}
"""The packages, each after those that it needs."""
CONSOLES = """
import importlib.util
import numpy, headrace_atari
envs = headrace_atari.AtariVector("pong", 2)
observations, infos = envs.reset(seed=0)
observations, *_ = envs.step(numpy.zeros(2, int))
assert observations.shape == (2, 4, 84, 84), observations.shape
"""
SMOKE = {
    "headrace-atari": CONSOLES + 'assert importlib.util.find_spec("torch") is None, "PyTorch was installed"\n',
    "headrace": CONSOLES
    + """
import headrace
config = headrace.make_config("gym/CartPole-v1", **{"sampling.placement": "serial", "learning.total_steps": 2048})
assert headrace.train(config).folder
""",
}
"""What must run where only this package and what it needs are installed."""


class ReleaseError(Exception):
    """What stands against a release; the message says what to do."""


# -- version and changelog -----------------------------------------------------------------------------------------------


def version_of(root: Path) -> str:
    """The version of both packages."""
    match = re.search(r'^version = "([^"]+)"', (root / FOLDERS["headrace-atari"] / "pyproject.toml").read_text(), re.MULTILINE)
    assert match
    return match[1]


def set_version(root: Path, version: str) -> None:
    """Write the version, with what must agree with it: the citation, and of which `headrace-atari` this `headrace` is.

    Raises `ReleaseError` for a version that is not X.Y.Z.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"{version!r} is not a version like 1.2.3")
    least = ".".join([*version.split(".")[:2], "0"])
    for name, pattern, text in (
        (f"{FOLDERS['headrace-atari']}/pyproject.toml", r'^version = "[^"]+"', f'version = "{version}"'),
        ("pyproject.toml", r'"headrace-atari~=[^"]+"', f'"headrace-atari~={least}"'),
        ("CITATION.cff", r"^version: .*$", f"version: {version}"),
    ):
        path = root / name
        changed, count = re.subn(pattern, text, path.read_text(), flags=re.MULTILINE)
        if count != 1:
            raise ReleaseError(f"{path} names the version {count} times, not once")
        path.write_text(changed)


def released(changelog: str, version: str, date: str) -> str:
    """The changelog with what stood under Unreleased in a section of this version, and nothing under Unreleased.

    Raises `ReleaseError` if nothing stands there, unless the version has its section already, or if both are there.
    """
    head, marker, rest = changelog.partition("## Unreleased\n")
    if not marker:
        raise ReleaseError("the changelog has no section Unreleased")
    entries, heading, older = re.fullmatch(r"(.*?)(^## |\Z)(.*)", rest, re.MULTILINE | re.DOTALL).groups()  # type: ignore[union-attr]
    known = re.search(rf"^## {re.escape(version)}(?= |$)", changelog, re.MULTILINE)
    if known and not entries.strip():
        return changelog
    if known:
        raise ReleaseError(f"the changelog has a section {version} and entries under Unreleased: choose another version")
    if not entries.strip():
        raise ReleaseError("nothing stands under Unreleased in the changelog")
    return f"{head}{marker}\n## {version} - {date}\n\n{entries.strip()}\n" + (f"\n{heading}{older}" if heading else "")


def prepare(root: Path, version: str | None, date: str) -> str:
    """Write the version, if one is given, and the changelog's section. Returns the version."""
    version = version or version_of(root)
    path = root / "CHANGELOG.md"
    changelog = released(path.read_text(), version, date)
    set_version(root, version)
    path.write_text(changelog)
    return version


# -- artifacts -----------------------------------------------------------------------------------------------------------


def run(*command: object, folder: Path | None = None) -> None:
    """Run a command. Raises `ReleaseError` with its name if it fails; its output is on the terminal."""
    if code := subprocess.run([str(part) for part in command], cwd=folder, check=False).returncode:
        raise ReleaseError(f"exit code {code}: {' '.join(str(part) for part in command)}")


def sdist(dist: Path) -> None:
    """Make the source distributions of both packages."""
    dist.mkdir(parents=True, exist_ok=True)
    program = f"from scikit_build_core.build import build_sdist; build_sdist({str(dist.resolve())!r})"
    for folder in FOLDERS.values():
        run(sys.executable, "-c", program, folder=ROOT / folder)


def check(dist: Path) -> None:
    """Check the wheels and source distributions of this version."""
    version = version_of(ROOT)
    stems = {name: f"{name.replace('-', '_')}-{version}" for name in FOLDERS}
    wheels = {name: sorted(dist.glob(f"{stem}-*.whl")) for name, stem in stems.items()}
    sources = {name: dist / f"{stem}.tar.gz" for name, stem in stems.items()}
    if missing := [stems[name] for name in FOLDERS if not wheels[name] or not sources[name].is_file()]:
        raise ReleaseError(f"{dist} lacks the wheel or the source distribution of {' and '.join(missing)}")
    artifacts = [path for name in FOLDERS for path in (*wheels[name], sources[name])]
    run(sys.executable, "-m", "twine", "check", "--strict", *artifacts)
    for name in FOLDERS:
        with tempfile.TemporaryDirectory(prefix="headrace-release-") as scratch:
            builds(sources[name], wheels[name][0], Path(scratch))
            works(name, version, dist, Path(scratch))
    for path in artifacts:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")


def builds(source: Path, wheel: Path, scratch: Path) -> None:
    """A source distribution makes a wheel with the same Python files. Raises `ReleaseError` if not."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", scratch, source)
    (built,) = scratch.glob("*.whl")
    ours, theirs = ({name for name in ZipFile(path).namelist() if name.endswith(".py")} for path in (built, wheel))
    if ours != theirs:
        raise ReleaseError(f"{source.name} and {wheel.name} differ in {', '.join(sorted(ours ^ theirs))}")


def works(name: str, version: str, dist: Path, scratch: Path) -> None:
    """The package installs into an empty environment and works there. Both packages are taken from `dist` alone."""
    venv.create(scratch / "venv", with_pip=True)
    python = scratch / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    ours = list(FOLDERS)[: list(FOLDERS).index(name) + 1]
    run(*install, "--no-deps", "--no-index", "--find-links", dist.resolve(), *(f"{each}=={version}" for each in ours))
    run(*install, "-c", ROOT / "constraints.txt", f"{name}=={version}")
    run(python, "-c", SMOKE[name], folder=scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare").add_argument("version", nargs="?", help="like 1.2.3; without it the version that is there")
    for name in ("sdist", "check"):
        commands.add_parser(name).add_argument("dist", type=Path, help="folder of the artifacts")
    args = parser.parse_args()
    try:
        if args.command == "prepare":
            print(prepare(ROOT, args.version, datetime.date.today().isoformat()))
        else:
            {"sdist": sdist, "check": check}[args.command](args.dist)
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
