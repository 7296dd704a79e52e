import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import resource, sys
import torch
from headrace.accelerator.cpu_allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for i in range(30):
    if i == 20:  # small blocks nibble at the freed ones at first
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(48_000_000, dtype=torch.uint8).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_tensors_are_not_faulted_in_again():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True).stdout)
        for how in ("default", "keep")
    }
    assert faults["default"] > 1000  # else this test shows nothing
    assert faults["keep"] < faults["default"] / 10
