"""A release: its artifacts, and that `pip install headrace` gets them from an index and trains where there is no compiler."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from headrace_atari import processor_levels

ROOT = Path(__file__).parents[1]
PARTS = {"headrace": {"doom_preload", "elu", "ipc", "pixels", "ppo", "replay"}, "headrace_atari": {"atari"}}
MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}
"""What an ELF file says of the processor that it is for."""


PICTURES = """
    import hashlib, json, sys
    import numpy as np
    import torch
    import headrace
    from headrace import _native
    from headrace._native import elu
    from headrace_atari._native import atari
    from headrace.policies.activations import ELU
    digest = hashlib.sha256()
    for game in ("pong", "breakout", "montezuma_revenge"):
        envs = headrace.make_vec(f"atari/{game}", 4)
        observations, _ = envs.reset(seed=1)
        random = np.random.default_rng(0)
        for _ in range(300):
            observations, rewards, *_ = envs.step(random.integers(0, envs.single_action_space.n, 4))
            digest.update(np.ascontiguousarray(observations).tobytes() + np.asarray(rewards, np.float64).tobytes())
        envs.close()
    x = torch.linspace(-20, 5, 999)
    error = (ELU()(x) - torch.nn.functional.elu(x)).abs().max().item()
    print(json.dumps([_native.LEVEL, atari.__file__, digest.hexdigest(), error]))
"""


@pytest.fixture
def index(tmp_path):
    """Makes a package index of a folder of artifacts on this machine, and returns its address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def serve(dist):
            for path in dist.iterdir():
                folder = tmp_path / "index" / path.name.split("-")[0].replace("_", "-")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / path.name).symlink_to(path)
            return f"http://127.0.0.1:{server.server_port}/"

        yield serve
        server.shutdown()


def copy_of_the_repository(folder):
    """The files that git knows of, as they are here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not (shutil.which("make") and shutil.which("git")), reason="no make or git here")
def test_a_release_installs_from_an_index_and_trains_where_there_is_no_compiler(tmp_path, index):
    source, dist = copy_of_the_repository(tmp_path / "source"), tmp_path / "dist"
    subprocess.run(
        ["make", "release", "VERSION=9.8.7", f"VENV={tmp_path / 'tools'}", f"DIST={dist}", f"PYTHON={sys.executable}"],
        cwd=source, check=True, timeout=3000,
    )  # fmt: skip
    assert re.search(r"^## 9\.8\.7 - ", (source / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sorted(path.name for path in dist.glob("*.tar.gz")) == ["headrace-9.8.7.tar.gz", "headrace_atari-9.8.7.tar.gz"]
    wheels = {(wheel.name.split("-")[0], wheel.stem[-7:].strip("_")): wheel for wheel in dist.glob("*.whl")}
    assert wheels.keys() == {(name, machine) for name in PARTS for machine in MACHINES}
    for (name, machine), wheel in wheels.items():
        assert min(map(int, re.findall(r"manylinux_2_(\d+)_", wheel.name))) <= 28, "RHEL 8 has glibc 2.28"
        assert wheel.stat().st_size < 5e6
        with ZipFile(wheel) as files:
            modules = [file for file in files.namelist() if file.endswith(".so")]
            assert {Path(module).name.split(".")[0] for module in modules} == PARTS[name]
            assert {int.from_bytes(files.read(module)[18:20], "little") for module in modules} == {MACHINES[machine]}
            assert any("x86_64_v" in module for module in modules) == (machine == "x86_64")
            assert {f"{name}/_native/{part}.pyi" for part in PARTS[name] - {"doom_preload"}} <= set(files.namelist())
    venv.create(tmp_path / "clean", with_pip=True)
    binaries = tmp_path / "clean/bin"
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
    environment |= {"PATH": str(binaries), "HOME": str(tmp_path)}
    assert shutil.which("cc", path=environment["PATH"]) is None
    install = [binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt", "--extra-index-url", index(dist)]
    subprocess.run([*install, "headrace[atari]==9.8.7"], env=environment, check=True, timeout=900, cwd=tmp_path)

    command = ["headrace", "train", "--env", "gym/CartPole-v1", "--max-minutes", "0.1", "--log-interval", "1", "--no-video"]
    done = subprocess.run(
        [binaries / command[0], *command[1:]],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/gym-CartPole-v1__default__0/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["global_step"] > 1000

    found = {}
    for level in [name for name, needed in processor_levels.LEVELS.items() if needed <= processor_levels.processor_flags()]:
        done = subprocess.run(
            [binaries / "python", "-c", textwrap.dedent(PICTURES)],
            env=environment | {processor_levels.VARIABLE: level},
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        used, file, digest, error = json.loads(done.stdout.splitlines()[-1])
        assert used == level
        assert f"/{level}/" in file
        assert error < 1e-6
        found[level] = digest
    assert len(found) >= 1
    assert len(set(found.values())) == 1, f"other pictures on another processor: {found}"
