"""Facts about the machine, for settings with the value `auto`. Importing torch takes seconds, so it is imported on use."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.config.errors import ConfigError

RANK_STORE = "HEADRACE_RANK_STORE"
"""Environment variable: a file through which the ranks of one machine find each other, or tcp://HOST:PORT at the first rank.
Without it they use MASTER_ADDR and MASTER_PORT, which `torchrun` sets."""

RUN_BEGAN = "HEADRACE_RUN_BEGAN"
"""Environment variable of ranks that start again after a failure: when they first started (perf_counter)."""


@dataclass(frozen=True)
class Rank:
    """This process among those that learn one policy together."""

    index: int = 0
    size: int = 1
    """Ranks of the whole run."""
    local: int = 0
    """Number of the rank on its machine, which is the number of its GPU."""
    local_size: int = 1
    """Ranks on this machine."""


def place(variables: Mapping[str, str], index: str, size: str) -> tuple[int, int]:
    """Which machine or process this is, and of how many, by the variables of these names. Raises `ConfigError` for values that
    cannot be."""
    with suppress(ValueError):
        if 0 <= (here := int(variables[index])) < (count := int(variables[size])):
            return here, count
    raise ConfigError(
        f"{index} is {variables[index]} and {size} {variables[size]}: machines have numbers from 0 to {size} - 1"
    )


def rank() -> Rank:
    """From the environment variables that `torchrun` sets; one rank without them. Raises `ConfigError` as `place` does."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or "RANK" not in os.environ:
        return Rank()
    index, size = place(os.environ, "RANK", "WORLD_SIZE")
    return Rank(index, size, int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def cores() -> int:
    """Cores that this process may use, shared out among the ranks of a run on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // rank().local_size)


def default_device() -> str:
    """`cuda` where there is a CUDA device, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def native_bf16(device: str) -> bool:
    """Whether bfloat16 is faster there than float32."""
    if device != "cpu":
        import torch

        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and cpu_has_fast_bf16(cpuinfo.read_text())


def cpu_has_fast_bf16(cpuinfo: str) -> bool:
    """By /proc/cpuinfo. Intel's processors are fast in AMX, which virtual machines may hide. In AVX-512 alone bf16 took one of
    them 1.5 times as long as float32, and AMD's 0.6 to 0.9 times (docs/performance-results.md)."""
    if re.search(r"\bavx512_bf16\b", cpuinfo):
        return "GenuineIntel" not in cpuinfo or re.search(r"\bamx_bf16\b", cpuinfo) is not None
    return re.search(r"\b(amx_bf16|bf16)\b", cpuinfo) is not None
