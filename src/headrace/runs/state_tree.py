"""Trees of state as tensors and JSON, and back: what modules, optimizers and generators give as their state.

In the JSON a tensor is {"$tensor": name}, an array {"$array": name}, a tuple {"$tuple": [...]}, and a dictionary whose keys are
not all plain strings (an optimizer's state is keyed by integers) {"$dict": [[key, value], ...]}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import safetensors.torch
import torch


def pack(tree: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Split a tree into its tensors, named by their path (`policy/encoder.0.weight`), and JSON for everything else.

    The tree may hold dictionaries, lists, tuples, tensors, NumPy arrays and scalars (which come back as Python numbers), and
    JSON values, NaN and infinity included. Raises `TypeError`, with the path, for anything else.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _pack(tree, "", tensors)


def _pack(node: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    def inside(items: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [_pack(value, f"{path}/{key}" if path else str(key), tensors) for key, value in items]

    def keep(tensor: torch.Tensor) -> str:
        name = path
        while name in tensors:  # {1: a, "1": b} share a path
            name += "'"
        tensors[name] = tensor
        return name

    match node:
        case np.generic():
            return node.item()
        case None | bool() | int() | float() | str():
            return node
        case torch.Tensor():
            return {"$tensor": keep(node)}
        case np.ndarray():
            return {"$array": keep(torch.from_numpy(np.array(node, order="C")))}
        case list():
            return inside(enumerate(node))
        case tuple():
            return {"$tuple": inside(enumerate(node))}
        case dict():
            values = inside(node.items())
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return dict(zip(node, values, strict=True))
            return {"$dict": [[_pack(key, path, tensors), value] for key, value in zip(node, values, strict=True)]}
    raise TypeError(f"cannot store a {type(node).__name__} in a checkpoint (at {path or 'the top'})")


def unpack(tensors: dict[str, torch.Tensor], state: Any) -> Any:
    """The inverse of `pack`. Raises `ValueError` for what `pack` did not give."""
    try:
        return _unpack(tensors, state)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its tensors and its JSON do not belong together ({type(error).__name__}: {error})") from error


def _unpack(tensors: dict[str, torch.Tensor], state: Any) -> Any:
    match state:
        case {"$tensor": name}:
            return tensors[name]
        case {"$array": name}:
            return tensors[name].numpy()
        case {"$tuple": items}:
            return tuple(_unpack(tensors, item) for item in items)
        case {"$dict": items}:
            return {_unpack(tensors, key): _unpack(tensors, value) for key, value in items}
        case dict():
            return {key: _unpack(tensors, value) for key, value in state.items()}
        case list():
            return [_unpack(tensors, item) for item in state]
    return state


def on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies for safetensors, which refuses tensors that share memory (tied weights) or are not contiguous (channels-last)."""
    return {name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, t in tensors.items()}


def to_bytes(tree: Any) -> bytes:
    """A tree (see `pack`) as one piece, for memory and not for disk: it is not verified when it is read."""
    tensors, state = pack(tree)
    head = json.dumps(state).encode()
    return len(head).to_bytes(8, "little") + head + safetensors.torch.save(on_cpu(tensors))


def from_bytes(data: bytes) -> Any:
    """The inverse of `to_bytes`."""
    end = 8 + int.from_bytes(data[:8], "little")
    return unpack(safetensors.torch.load(data[end:]), json.loads(data[8:end]))


def check_like(value: Any, like: Any, name: str) -> None:
    """Raise `ValueError`, with the place, where a tree from disk is unlike one of this program.

    Dictionaries must have the same keys, lists and tuples the same lengths, tensors the same shapes and dtypes; a number must be
    a finite number, and anything else of the same type. The values are not compared.
    """
    if isinstance(like, torch.Tensor):
        if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (like.shape, like.dtype):
            raise ValueError(f"{name} is {_described(value)}, not {_described(like)}")
    elif isinstance(like, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {_described(value)}, not {_described(like)}")
        if value.keys() != like.keys():
            differ = {"missing": like.keys() - value.keys(), "unknown": value.keys() - like.keys()}
            words = [f"{what}: {', '.join(sorted(map(str, keys))[:3])}" for what, keys in differ.items() if keys]
            raise ValueError(f"{name} has other entries ({'; '.join(words)})")
        for key, item in like.items():
            check_like(value[key], item, f"{name}.{key}")
    elif isinstance(like, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(like):
            raise ValueError(f"{name} is {_described(value)}, not {_described(like)}")
        for i, item in enumerate(like):
            check_like(value[i], item, f"{name}[{i}]")
    elif _kind(value) is not _kind(like) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name} is {_described(value)}, not {_described(like)}")


def _kind(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.40}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
