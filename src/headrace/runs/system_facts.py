"""What a process ran on: versions, machine, git commit and command line."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = ("headrace", "torch", "numpy", "gymnasium", "ale-py", "vizdoom", "dm_control", "mujoco", "safetensors")


def system_facts() -> dict[str, Any]:
    """Versions, machine, git commit and command line of this process, as plain JSON types."""
    import torch

    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": versions(PACKAGES),
        "git": _git(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of these packages that are installed."""
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _processor() -> str:
    """Its name, family and model; virtual machines hide the rest of the name."""
    info = Path("/proc/cpuinfo")
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", info.read_text(), re.MULTILINE)) if info.exists() else {}
    numbers = [f"{name} {found[key]}" for key, name in (("cpu family", "family"), ("model", "model")) if key in found]
    return ", ".join([found.get("model name") or platform.processor(), *numbers])


def _git() -> dict[str, Any] | None:
    """Commit of the working directory's repository and whether files differ from it; None outside of one."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", *args], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):  # no git, or none that may be executed
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "modified": bool(git("status", "--porcelain", "--untracked-files=no"))} if commit else None
