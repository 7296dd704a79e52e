"""Threads of torch in the command `headrace train`, where it learns itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.parametrize(("placement", "own", "expected"), [
    ("device", {}, {"10000"}), ("device", {"GOMP_SPINCOUNT": "77"}, {"77"}), ("served", {}, {"0"}),
])  # fmt: skip
def test_threads_that_wait_soon_give_their_core_up(
    placement: str, own: dict[str, str], expected: set[str], tmp_path: Path
) -> None:
    """Else one that has lost its core to another program holds the others up for seconds. The children of a fork server sleep."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "train", "--env", "atari/pong", "--sampling.placement", placement,
         "--learning.total-steps", "100", "--learning.device", "cpu", "--run.no-dashboard", "--run.folder", tmp_path / "run"],
        capture_output=True, text=True, timeout=120, check=True, env=environment | own | {"OMP_DISPLAY_ENV": "verbose"},
    )  # fmt: skip
    found = set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ran.stderr))
    assert found == expected if placement == "device" else expected < found, "the command itself may import torch, too"
