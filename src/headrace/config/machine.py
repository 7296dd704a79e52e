"""Facts about the machine, for settings with the value `auto`. Importing torch takes seconds, so it is imported on use."""

from __future__ import annotations

import re
from pathlib import Path


def default_device() -> str:
    """`cuda` where there is a CUDA device, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def native_bf16(device: str) -> bool:
    """Whether the device computes bfloat16 natively."""
    if device != "cpu":
        import torch

        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", cpuinfo.read_text()) is not None
