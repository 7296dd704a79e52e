"""Wheels for other machines: what is in them, and that they install and train where there is no compiler."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from headrace_atari import processor_levels

ROOT = Path(__file__).parents[1]
PARTS = {"headrace": {"doom_yield", "elu", "ipc", "replay"}, "headrace_atari": {"atari"}}
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_the_wheels_install_and_train_where_there_is_no_compiler(tmp_path):
    subprocess.run(
        ["make", "wheel", f"VENV={tmp_path / 'tools'}", f"DIST={tmp_path / 'dist'}", f"PYTHON={sys.executable}"],
        cwd=ROOT, check=True, timeout=1500,
    )  # fmt: skip
    wheels = {(wheel.name.split("-")[0], wheel.stem[-7:].strip("_")): wheel for wheel in (tmp_path / "dist").iterdir()}
    assert wheels.keys() == {(name, machine) for name in PARTS for machine in MACHINES}
    for (name, machine), wheel in wheels.items():
        assert min(map(int, re.findall(r"manylinux_2_(\d+)_", wheel.name))) <= 28, "RHEL 8 has glibc 2.28"
        assert wheel.stat().st_size < 5e6
        with ZipFile(wheel) as files:
            modules = [file for file in files.namelist() if file.endswith(".so")]
            assert {Path(module).name.split(".")[0] for module in modules} == PARTS[name]
            assert {int.from_bytes(files.read(module)[18:20], "little") for module in modules} == {MACHINES[machine]}
            assert any("x86_64_v" in module for module in modules) == (machine == "x86_64")
            assert {f"{name}/_native/{part}.pyi" for part in PARTS[name] - {"doom_yield"}} <= set(files.namelist())
    mine = [wheels[name, os.uname().machine] for name in PARTS]
    venv.create(tmp_path / "clean", with_pip=True)
    binaries = tmp_path / "clean/bin"
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
    environment |= {"PATH": str(binaries), "HOME": str(tmp_path)}
    assert shutil.which("cc", path=environment["PATH"]) is None
    subprocess.run(
        [binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{mine[0]}[atari]", mine[1]],
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
    flags = processor_levels.processor_flags()
    for level in [name for name, needed in processor_levels.LEVELS.items() if needed <= flags]:
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
