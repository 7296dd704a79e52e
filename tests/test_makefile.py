"""`make train` and `make test` fetch the build of torch that this machine can use."""

import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = """#!/bin/sh
if [ "$1" = config ]; then echo "$CONFIG"; else echo "$@" >>"$LOG"; fi
"""


@pytest.fixture
def address():
    """A server that answers, on this machine."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize("machine", ["plain", "gpu", "own index", "out of reach"])
def test_torch_without_cuda_where_there_is_no_gpu(tmp_path, address, machine):
    tools = tmp_path / "tools"
    for name in ("sh", "grep", "touch", "test", "find", "make", "tr", "flock"):
        (tools / name).parent.mkdir(exist_ok=True)
        (tools / name).symlink_to(shutil.which(name))
    if machine == "gpu":
        program(tools / "nvidia-smi", "#!/bin/sh\n")
    program(tmp_path / "venv/bin/pip", PIP)
    program(tmp_path / "venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "venv/.tools").touch()
    index = "http://127.0.0.1:9" if machine == "out of reach" else address
    config = ":env:.extra-index-url='somewhere'" if machine == "own index" else "global.timeout='9'"
    command = ["make", "-s", f"VENV={tmp_path / 'venv'}", f"CPU_INDEX={index}", f"{tmp_path / 'venv/.test'}"]
    environment = {"PATH": str(tools), "LOG": str(tmp_path / "log"), "CONFIG": config, "no_proxy": "*"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=60)
    lines = [line.partition("install -q ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    (torch,) = (line for line in lines if " torch" in line and "gymnasium" not in line)
    assert torch.endswith(f"--extra-index-url {index}") == (machine == "plain")
    (training,) = (line for line in lines if "gymnasium" in line)
    assert {"ale-py>=0.12.1", "matplotlib>=3.9", "imageio-ffmpeg>=0.5"} <= set(training.split())
    assert not any(package in training for package in ("mypy", "mujoco", "vizdoom", "pytest"))
    built = [line.removeprefix("--no-build-isolation --no-deps ") for line in lines if "-e " in line]
    assert sorted(built[:-1]) == ["-e .", "-e packages/headrace-atari"]
    assert lines[-1].endswith("-e packages/headrace-atari -e .[all,dev]")
    assert "headrace" not in training
    assert os.path.exists(tmp_path / "venv/.train")


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_a_build_that_fails_stops_the_installation(tmp_path):
    program(tmp_path / "venv/bin/pip", '#!/bin/sh\ncase "$*" in *"-e ."*) exit 3 ;; esac\n')
    program(tmp_path / "venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "venv/.tools").touch()
    command = ["make", "-s", f"VENV={tmp_path / 'venv'}", "CPU_INDEX=http://127.0.0.1:9", f"{tmp_path / 'venv/.train'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert not os.path.exists(tmp_path / "venv/.train")


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_byte_code_is_kept_though_the_environment_forbids_it(tmp_path):
    program(tmp_path / "venv/bin/headrace", '#!/bin/sh\necho "${PYTHONDONTWRITEBYTECODE-kept}"\n')
    (tmp_path / "venv/.train").touch()
    command = ["make", "-s", "--old-file", str(tmp_path / "venv/.train"), f"VENV={tmp_path / 'venv'}", "train"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60).stdout == "kept\n"
