"""The kernels that a GPU gets, run on the CPU, one lane after the other."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from headrace_atari.kernels import SOURCES, assemble, cache_folder


class HostKernels:
    """In place of `CudaKernels`: the same source on the CPU. `backwards` runs the lanes of a phase in the opposite order.

    With the compiled blocks of a game the source is compiled with g++ first. `counts`: steps of warps in compiled blocks, lanes
    that were active in them, and both weighted with instructions.
    """

    def __init__(self, backwards: bool = False) -> None:
        self.device = torch.device("cpu")
        self.backwards = backwards
        self.counts = [0, 0, 0, 0]

    def load(self, program: str | None) -> Any:
        return _HostModule(self, None if program is None else host_library(program))

    def together(self, launches: Sequence[Callable[[], None]]) -> None:
        for launch in launches:
            launch()

    def add(self, counts: Sequence[int]) -> None:
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]


def host_library(program: str) -> Path:
    """The kernels with the compiled blocks of a game as a library of this machine."""
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-DHR_PORTABLE"]
    # Else the libraries of several games in a process share the tables of the first one: static data of inline functions.
    options += ["-fvisibility=hidden", "-fno-gnu-unique"]
    source = assemble()  # so that a change of any header is another key
    folder = cache_folder() / "kernels"
    digest = hashlib.sha256("\0".join([source, program, *options]).encode()).hexdigest()
    library = folder / f"{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (Path(scratch) / "program.hpp").write_text(program)
            command = ["g++", *options, '-DHR_PROGRAM="program.hpp"', f"-I{scratch}", f"-I{SOURCES}"]
            command += [str(SOURCES / "atari" / "cuda" / "host_entry.cpp"), "-o", f"{scratch}/library.so"]
            subprocess.run(command, check=True, timeout=500)
            os.replace(f"{scratch}/library.so", library)
    return library


class _HostModule:
    def __init__(self, owner: HostKernels, library: Path | None) -> None:
        self._owner = owner
        self._launch = None if library is None else ctypes.CDLL(str(library)).launch_kernel

    def launch(self, kernel: str, grid: int, block: int, words: Sequence[int]) -> None:
        if self._launch is None:
            import headrace_atari._native.atari_kernels as host  # only there where headrace was installed with pip install -e

            self._owner.add(host.launch(kernel, grid, block, list(words), self._owner.backwards))
            return
        counts = (ctypes.c_ulonglong * 4)()
        array = (ctypes.c_longlong * len(words))(*words)
        if self._launch(kernel.encode(), grid, block, array, len(words), int(self._owner.backwards), counts):
            raise ValueError(f"the arguments of the kernel {kernel} do not fit")
        self._owner.add(list(counts))
