"""Memory of large tensors on the CPU."""

from __future__ import annotations

import ctypes
import platform

# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next large tensors.

    By default glibc maps every block above 32 MiB anew and unmaps it when it is freed, so each forward pass takes a page fault,
    and a page of zeros from the kernel, for every 4 KiB of its activations: for a Nature CNN with about a thousand images that
    is a quarter to a third of the time (benchmarks/policy_speed.py measures it). Afterwards the resident size stays at its peak.

    Returns whether it worked: False where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
