"""CUDA memory that other processes can open, through the driver itself.

What torch offers for this counts references in files under /dev/shm, which a killed process leaves behind.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

HANDLE_BYTES = 64
_PAGE = 2 << 20


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * HANDLE_BYTES),)


class _Block:
    """Device memory as an array that torch understands (`__cuda_array_interface__`); closed or freed with its last tensor."""

    def __init__(self, pointer: int, nbytes: int, release: str):
        self.pointer, self._release = pointer, getattr(_driver(), release)
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 2}

    def __del__(self) -> None:
        self._release(ctypes.c_uint64(self.pointer))


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'error').decode()} ({code})")


def allocate(nbytes: int, device: str) -> tuple[Tensor, bytes]:
    """Memory uint8 [nbytes] and its handle for other processes."""
    import torch

    torch.cuda.synchronize(device)  # makes the device's context this thread's
    pointer, handle = ctypes.c_uint64(), _Handle()
    whole = -(-nbytes // _PAGE) * _PAGE  # a handle is for whole pages; nothing else is to be in them
    _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(whole))
    memory = _tensor(_Block(pointer.value, nbytes, "cuMemFree_v2"), device)
    _call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
    return memory, bytes(handle.bytes)


def open_handle(handle: bytes, nbytes: int, device: str) -> Tensor:
    """Another process's memory uint8 [nbytes]."""
    import torch

    torch.cuda.synchronize(device)
    pointer, lazily = ctypes.c_uint64(), 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _Handle.from_buffer_copy(handle), ctypes.c_uint(lazily))
    return _tensor(_Block(pointer.value, nbytes, "cuIpcCloseMemHandle"), device)


def _tensor(block: _Block, device: str) -> Tensor:
    import torch

    tensor = torch.as_tensor(block, device=device)
    if tensor.data_ptr() != block.pointer:
        raise RuntimeError(f"memory of another device than {device}")
    return tensor
