"""A wheel for other machines: which level of processors it uses, and that it installs and trains where there is no compiler."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from headrace import _native

ROOT = Path(__file__).parents[1]
LEVELS = frozenset(_native.LEVELS)


PICTURES = """
    import hashlib, json, sys
    import numpy as np
    import torch
    import headrace
    from headrace import _native
    from headrace._native import atari, elu
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_the_wheel_installs_and_trains_where_there_is_no_compiler(tmp_path):
    subprocess.run(
        ["make", "wheel", f"VENV={tmp_path / 'tools'}", f"DIST={tmp_path / 'dist'}", f"PYTHON={sys.executable}"],
        cwd=ROOT, check=True, timeout=1200,
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "manylinux_2_28" in wheel.name, "RHEL 8 has glibc 2.28"
    parts = {Path(name).name.split(".")[0] for name in ZipFile(wheel).namelist() if name.endswith(".so")}
    assert parts >= {"atari", "doom_yield", "elu", "ipc", "replay"}
    assert "atari_kernels" not in parts, "only tests use it"
    venv.create(tmp_path / "clean", with_pip=True)
    binaries = tmp_path / "clean/bin"
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
    environment |= {"PATH": str(binaries), "HOME": str(tmp_path)}
    assert shutil.which("cc", path=environment["PATH"]) is None
    subprocess.run(
        [binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[atari]"],
        env=environment, check=True, timeout=900, cwd=tmp_path,
    )  # fmt: skip

    command = ["headrace", "train", "--env", "gym/CartPole-v1", "--max-minutes", "0.1", "--log-interval", "1", "--no-video"]
    done = subprocess.run(
        [binaries / command[0], *command[1:]],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/gym-CartPole-v1__default__0/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["global_step"] > 1000

    found = {}
    for level in [name for name, needed in _native.LEVELS.items() if needed <= _native._processor_flags()]:
        done = subprocess.run(
            [binaries / "python", "-c", textwrap.dedent(PICTURES)],
            env=environment | {_native.VARIABLE: level}, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        used, file, digest, error = json.loads(done.stdout.splitlines()[-1])
        assert used == level
        assert f"/{level}/" in file
        assert error < 1e-6
        found[level] = digest
    assert len(found) >= 1
    assert len(set(found.values())) == 1, f"other pictures on another processor: {found}"
