"""CUDA memory that other processes can open, through the bindings of CUDA's driver (package cuda-bindings, which the extra `cuda`
brings, and PyTorch for CUDA from 2.10 on).

What torch itself offers for this counts references in files under /dev/shm, which a killed process leaves behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rollout workers never import torch
    from torch import Tensor

HANDLE_BYTES = 64
_PAGE = 2 << 20


class _Block:
    """Device memory as an array that torch understands (`__cuda_array_interface__`); closed or freed with its last tensor."""

    def __init__(self, pointer: Any, nbytes: int, release: str):
        self.pointer, self._release = int(pointer), getattr(_driver(), release)
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (self.pointer, False), "version": 2}

    def __del__(self) -> None:
        self._release(self.pointer)


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise RuntimeError("that needs the package cuda-bindings: pip install 'headrace[cuda]'") from error
    return driver


def _call(name: str, *arguments: Any) -> Any:
    code, *results = getattr(_driver(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code.name} ({int(code)})")
    return results[0]


def allocate(nbytes: int, device: str) -> tuple[Tensor, bytes]:
    """Memory uint8 [nbytes] and its handle for other processes. Raises RuntimeError if there is not enough."""
    _use(device)
    whole = -(-nbytes // _PAGE) * _PAGE  # a handle is for whole pages; nothing else is to be in them
    block = _Block(pointer := _call("cuMemAlloc", whole), nbytes, "cuMemFree")
    return _tensor(block, device), bytes(_call("cuIpcGetMemHandle", pointer).reserved)


def open_handle(handle: bytes, nbytes: int, device: str) -> Tensor:
    """Another process's memory uint8 [nbytes]. Raises RuntimeError if it cannot be reached."""
    _use(device)
    driver = _driver()
    shared = driver.CUipcMemHandle()
    shared.reserved = handle
    lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value  # the only flag there is
    return _tensor(_Block(_call("cuIpcOpenMemHandle", shared, lazily), nbytes, "cuIpcCloseMemHandle"), device)


def _use(device: str) -> None:
    import torch

    torch.cuda.synchronize(device)  # makes the device's context this thread's


def _tensor(block: _Block, device: str) -> Tensor:
    import torch

    tensor = torch.as_tensor(block, device=device)
    if tensor.data_ptr() != block.pointer:
        raise RuntimeError(f"memory of another device than {device}")
    return tensor
