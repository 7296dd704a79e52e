"""The GPU kernels of the Atari core: their source, compilation and launch.

`CudaKernels` compiles them at first use with NVRTC through the package `cuda-core` (extra `cuda`) and launches them on the
current stream of PyTorch. In tests the same source runs on the CPU (tests/native/host_kernels.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import headrace_atari._native
import headrace_atari._native.atari as native


def _sources() -> Path:
    folders = [Path(native.__file__).parent, Path(native.__file__).parents[1], *map(Path, headrace_atari._native.__path__)]
    return next((folder / "atari_source" for folder in folders if (folder / "atari_source").is_dir()), folders[0])


SOURCES = _sources()
"""Folder of the package's headers and kernels."""
def assemble(program: str | None = None, sources: Path = SOURCES) -> str:
    """The whole source as one text that only includes standard headers. `program`: a game's blocks from `native.block_source`."""
    seen: set[Path] = set()

    def text_of(path: Path) -> str:
        if path in seen:
            return ""
        text = path.read_text()
        if "#pragma once" in text:
            seen.add(path)
        return expanded(path, text)

    def expanded(by: Path, text: str) -> str:
        return re.sub(r'^\s*#include\s+("[^"]*"|HR_PROGRAM)\s*$', lambda match: included(by, match[1]), text, flags=re.MULTILINE)

    def included(by: Path, name: str) -> str:
        if name == "HR_PROGRAM":
            return expanded(by, program or "")
        name = name.strip('"')
        path = next((p for p in (by.parent / name, sources / name) if p.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"{by} includes {name}, which is not below {sources}")
        return text_of(path.resolve())

    macros = {name: str(size) for name, size in native.DEVICE_SIZES.items()}
    if program is not None:
        macros["HR_PROGRAM"] = "1"
    head = "".join(f"#define {name} {value}\n" for name, value in sorted(macros.items()))
    return head + text_of((sources / "atari" / "cuda" / "kernels.cu").resolve())


def cache_folder() -> Path:
    """The folder of compiled kernels: `$HEADRACE_CACHE`, or `headrace` in the user's cache folder."""
    chosen = os.environ.get("HEADRACE_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def compiled(source: str, options: Sequence[str], make: Callable[[], bytes], folder: Path | None = None) -> bytes:
    """The result of `make`, cached on disk under the hash of the source and the options (with the architecture and the compiler's
    version). If the file cannot be written, the next call compiles again."""
    digest = hashlib.sha256("\0".join([source, *options]).encode()).hexdigest()
    path = (folder or cache_folder()) / "kernels" / f"{digest}.bin"
    with suppress(OSError):
        kept = path.read_bytes()
        if kept[:32] == hashlib.sha256(kept[32:]).digest():
            return kept[32:]
    made = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            (Path(scratch) / path.name).write_bytes(hashlib.sha256(made).digest() + made)
            os.replace(Path(scratch) / path.name, path)
    return made


# NVRTC 13.0, which PyTorch brings, takes generic lambdas within functions of the device for functions of the host.
NVRTC_OPTIONS = {"std": "c++20", "fma": False, "device_as_default_execution_space": True}


def nvrtc_compile(source: str, arch: str) -> bytes:
    """The machine code of a source for an architecture like "sm_90", from the cache or compiled. Needs no GPU.

    Raises:
        ImportError: without the package cuda-core, or if it cannot be imported.
        RuntimeError: with the compiler's messages, if it refuses the source.
    """
    core = _cuda_core()
    version = f"cuda-core {core.__version__}, NVRTC {_nvrtc_version()}"

    def make() -> bytes:
        kept = cache_folder() / "kernels"
        print(f"Compiling Atari kernels for {arch}: minutes, once; they are kept in {kept}", file=sys.stderr, flush=True)
        options = core.ProgramOptions(name="headrace_atari", arch=arch, **NVRTC_OPTIONS)
        return bytes(core.Program(source, "c++", options).compile("cubin").code)

    return compiled(source, [arch, version, repr(NVRTC_OPTIONS)], make)


def _nvrtc_version() -> str:
    """The version of the NVRTC library that cuda-core loads from another package."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def _cuda_core() -> Any:
    try:
        import cuda.core

        return cuda.core
    except ModuleNotFoundError as error:
        raise ImportError("Atari on a GPU needs the package cuda-core: pip install 'headrace-atari[cuda]'") from error
    except ImportError as error:
        raise ImportError(f"Atari on a GPU needs the package cuda-core, which cannot be imported: {error}") from error


class CudaKernels:
    """Kernels on one GPU, on the stream of PyTorch that is current when they are launched."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: the device, such as "cuda" or "cuda:1".

        Raises:
            RuntimeError: without a GPU that PyTorch can use.
            ImportError: without the package cuda-core, or if it cannot be imported.
        """
        if not torch.cuda.is_available():
            raise RuntimeError(
                "AtariVector(device='cuda') needs an NVIDIA GPU and a PyTorch that is built for CUDA: "
                "torch.cuda.is_available() is False here. device='cpu' emulates on the threads of the CPU"
            )
        self._core, device = _cuda_core(), torch.device(name)
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        with torch.cuda.device(self.device):
            torch.cuda.current_stream().synchronize()  # creates the context that cuda.core shares
            self._core.Device(self.device.index).set_current()
        major, minor = torch.cuda.get_device_capability(self.device)
        self.arch = f"sm_{major}{minor}"
        self._streams = [torch.cuda.Stream(self.device) for _ in range(16)]

    def together(self, launches: Sequence[Callable[[], None]]) -> None:
        """Launch independent kernels, after all earlier launches and before all later ones."""
        if len(launches) == 1:
            return launches[0]()
        current = torch.cuda.current_stream(self.device)
        for stream in self._streams[: len(launches)]:
            stream.wait_stream(current)
        for i, launch in enumerate(launches):
            with torch.cuda.stream(self._streams[i % len(self._streams)]):
                launch()
        for stream in self._streams[: len(launches)]:
            current.wait_stream(stream)

    def load(self, program: str | None) -> CudaModule:
        """The kernels with the compiled blocks of one game, or with the interpreter for all games."""
        code = nvrtc_compile(assemble(program), self.arch)
        return CudaModule(self._core, self._core.ObjectCode.from_cubin(code), self.device)


class CudaModule:
    """One compiled source: its kernels `step` and `observe`."""

    def __init__(self, core: Any, code: Any, device: torch.device) -> None:
        self._core, self._device = core, device
        self._kernels = {name: code.get_kernel(name) for name in ("step", "observe")}

    def launch(self, kernel: str, grid: int, block: int, words: Sequence[int]) -> None:
        """Launch `kernel` on PyTorch's current stream. `words`: see native/atari/cuda/kernels.hpp."""
        handle = torch.cuda.current_stream(self._device).cuda_stream
        stream = self._core.Stream.from_handle(handle) if handle else self._core.LEGACY_DEFAULT_STREAM
        config = self._core.LaunchConfig(grid=grid, block=block)
        with torch.cuda.device(self._device):  # the default stream belongs to the current device
            self._core.launch(stream, config, self._kernels[kernel], *words)
