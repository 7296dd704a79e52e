"""Checkpoints: tensors and JSON on disk, each complete and verified or absent.

A checkpoint is a folder `checkpoints/<sequence>-step-<step>`:

    tensors.safetensors   every tensor by name
    state.json            everything else
    manifest              step, score, milestone, length and SHA-256 of both files (JSON, under a line with its own SHA-256)

A checkpoint is written under another name, flushed to the device and renamed: a process that is killed at any instruction leaves
the earlier checkpoints unchanged. A sequence number is never used twice, so nothing is overwritten. Nothing is pickled, so
loading runs no code.

`pack` and `unpack` turn any tree of modules' and optimizers' states into that form and back, exactly.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from headrace.runs.files import free_space

FORMAT = 1
"""Version of the layout on disk."""

_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. The message says which one, why, and what is left."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read from disk and verified."""

    path: Path
    step: int
    """global_step at which it was saved."""
    score: float | None
    tensors: dict[str, torch.Tensor]
    """On the CPU."""
    state: Any
    """What `state.json` holds."""
    damaged: tuple[str, ...] = ()
    """A message for each newer checkpoint that was skipped because it is damaged."""

    def unpack(self) -> Any:
        """The tree that was given to `pack`."""
        return unpack(self.tensors, self.state)


# -- writing ----------------------------------------------------------------------------------------------------------


def save(
    folder: os.PathLike[str] | str,
    step: int,
    tensors: dict[str, torch.Tensor],
    state: Any,
    *,
    keep: int = 3,
    score: float | None = None,
    milestone: bool = False,
    attach: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint to `folder`, delete those that are no longer kept, and return its path.

    Kept are the newest `keep`, the one with the highest `score` (the newest of equals), and every milestone. `state` is any
    JSON-able value. `attach` is called with the folder before it gets its name, to put folders into it (a replay, say), which are
    kept with the newest checkpoint only. Raises `CheckpointError` when it cannot be written, for instance on a full disk; the
    earlier checkpoints are then unchanged, and the incomplete one is removed.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least the newest checkpoint must be kept")
    folder = Path(folder)
    # Copies: safetensors refuses tensors that share memory (tied weights) or are not contiguous (channels-last).
    plain = {name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, t in tensors.items()}
    files = {_TENSORS: safetensors.torch.save(plain), _STATE: json.dumps(state).encode()}
    manifest = {
        "format": FORMAT,
        "step": step,
        "score": score,
        "milestone": milestone,
        "saved": time.time(),
        "files": {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()},
    }
    files[_MANIFEST] = _seal(manifest)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(".tmp-*"):
            shutil.rmtree(left_over)
        sequence = max((number for number, _ in _entries(folder)), default=0) + 1
        path = folder / f"{sequence:06d}-step-{step}"
        aside = folder / f".tmp-{path.name}"
        try:
            aside.mkdir()
            for name, data in files.items():
                _write(aside / name, data)
            if attach is not None:
                attach(aside)
            _sync(aside)
            os.rename(aside, path)
            _sync(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)  # the first error is the one to raise; the next save removes the rest
            raise
        _prune(folder, keep)
    except OSError as error:
        need = sum(map(len, files.values()))
        have = free_space(folder)
        raise CheckpointError(
            f"cannot write a checkpoint of {need / 1e6:.1f} MB to {folder} ({have / 1e6:.1f} MB free): {error.strerror}. "
            "Earlier checkpoints are untouched"
        ) from error
    return path


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _prune(folder: Path, keep: int) -> None:
    entries = _entries(folder)
    manifests: dict[Path, dict[str, Any]] = {}
    for _, path in entries:
        try:
            manifests[path] = _manifest(path)
        except CheckpointError:  # `load_newest` reports it; here it counts as one without a score
            continue
    scored = [path for _, path in entries if manifests.get(path, {}).get("score") is not None]
    best = max(reversed(scored), key=lambda path: manifests[path]["score"], default=None)
    for _, path in entries[:-1]:  # attached folders may be large
        for attached in (p for p in path.iterdir() if p.is_dir()):
            shutil.rmtree(attached)
    for _, path in entries[:-keep]:
        if path != best and not manifests.get(path, {}).get("milestone"):
            # Renamed first, so that no reader sees, and no killed process leaves, an incomplete checkpoint under its name.
            doomed = path.with_name(f".tmp-{path.name}")
            os.rename(path, doomed)
            shutil.rmtree(doomed)


# -- reading ----------------------------------------------------------------------------------------------------------


def load(path: os.PathLike[str] | str) -> Checkpoint:
    """Read and verify one checkpoint. Raises `CheckpointError` if any byte differs from what was written."""
    path = Path(path)
    manifest = _manifest(path)
    data = {}
    for name in (_TENSORS, _STATE):
        facts, data[name] = manifest["files"][name], _read(path / name)
        if len(data[name]) != facts["bytes"]:
            raise CheckpointError(f"{path / name} is damaged: {len(data[name])} bytes, {facts['bytes']} were written")
        if _sha256(data[name]) != facts["sha256"]:
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 differs from that of the data written")
    return Checkpoint(path, manifest["step"], manifest["score"], safetensors.torch.load(data[_TENSORS]), json.loads(data[_STATE]))


def load_newest(folder: os.PathLike[str] | str) -> Checkpoint | None:
    """The newest undamaged checkpoint in `folder`; None if there are no checkpoints.

    Damaged ones are skipped and listed in `Checkpoint.damaged`, for the caller to report. Raises `CheckpointError` if there are
    checkpoints but all are damaged: a run must not start from the beginning unnoticed.
    """
    damaged: list[str] = []
    for _, path in reversed(_entries(Path(folder))):
        try:
            found = load(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        return Checkpoint(found.path, found.step, found.score, found.tensors, found.state, tuple(damaged))
    if damaged:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged:\n  " + "\n  ".join(damaged) + "\nDelete them to start from the beginning"
        )
    return None


def load_best(folder: os.PathLike[str] | str) -> Checkpoint | None:
    """The checkpoint with the highest score, or None if none has one. Raises `CheckpointError` if it is damaged."""
    scored = []
    for number, path in _entries(Path(folder)):
        score = _manifest(path)["score"]
        if score is not None:
            scored.append((score, number, path))
    return load(max(scored)[2]) if scored else None


def find(folder: os.PathLike[str] | str, step: int) -> Path | None:
    """The path of the newest checkpoint of this global step in `folder`, or None. The checkpoint is not read."""
    return next((path for _, path in reversed(_entries(Path(folder))) if path.name.endswith(f"-step-{step}")), None)


def _entries(folder: Path) -> list[tuple[int, Path]]:
    """Finished checkpoints with their sequence numbers, oldest first."""
    if not folder.exists():
        return []
    return sorted((int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _manifest(path: Path) -> dict[str, Any]:
    raw = _read(path / _MANIFEST)
    digest, _, body = raw.partition(b"\n")
    if digest.decode(errors="replace") != _sha256(body):
        raise CheckpointError(f"{path / _MANIFEST} is damaged: its SHA-256 differs from that of the data written")
    manifest = json.loads(body)
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {manifest['format']}; this version reads format {FORMAT}")
    return manifest


def _seal(manifest: dict[str, Any]) -> bytes:
    """The manifest's bytes: the SHA-256 of the JSON on the first line, then the JSON."""
    body = json.dumps(manifest, indent=1).encode() + b"\n"
    return _sha256(body).encode() + b"\n" + body


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- trees of state ---------------------------------------------------------------------------------------------------
#
# In the JSON a tensor is {"$tensor": name}, an array {"$array": name}, a tuple {"$tuple": [...]}, and a dictionary whose
# keys are not all plain strings (an optimizer's state is keyed by integers) {"$dict": [[key, value], ...]}.


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
    """The inverse of `pack`."""
    match state:
        case {"$tensor": name}:
            return tensors[name]
        case {"$array": name}:
            return tensors[name].numpy()
        case {"$tuple": items}:
            return tuple(unpack(tensors, item) for item in items)
        case {"$dict": items}:
            return {unpack(tensors, key): unpack(tensors, value) for key, value in items}
        case dict():
            return {key: unpack(tensors, value) for key, value in state.items()}
        case list():
            return [unpack(tensors, item) for item in state]
    return state


def to_bytes(found: Checkpoint) -> bytes:
    """A checkpoint for another process: its tensors as safetensors, the rest as their metadata."""
    about = {"path": str(found.path), "step": found.step, "score": found.score, "state": found.state}
    return safetensors.torch.save(found.tensors, {"checkpoint": json.dumps(about)})


def from_bytes(data: bytes) -> Checkpoint:
    """The inverse of `to_bytes`."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    about = json.loads(header["__metadata__"]["checkpoint"])
    return Checkpoint(Path(about["path"]), about["step"], about["score"], safetensors.torch.load(data), about["state"])


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`optimizer.load_state_dict(state)`, with every moment in the memory format and on the device of its parameter.

    Checkpoints hold contiguous tensors. Without this, the moments of a channels-last parameter would give the same numbers by a
    slower kernel. The choice of kernel (`foreach`, `fused`, `capturable`) is the optimizer's own, because the device may differ
    from that of the run that saved; so is whether the learning rate is a tensor.
    """
    groups = []
    for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True):
        here: dict[str, Any] = {name: own[name] for name in ("foreach", "fused", "capturable") if name in own}
        if isinstance(own["lr"], torch.Tensor):
            here["lr"] = torch.as_tensor(saved["lr"]).to(own["lr"])
        elif isinstance(saved["lr"], torch.Tensor):
            here["lr"] = saved["lr"].item()
        groups.append({**saved, **here})
    optimizer.load_state_dict({**state, "param_groups": groups})
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def random_state(*generators: np.random.Generator) -> dict[str, Any]:
    """The states of torch's generators (CPU, and CUDA devices) and of the NumPy `generators`, for `pack`."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [generator.bit_generator.state for generator in generators],
    }


def set_random_state(state: dict[str, Any], *generators: np.random.Generator) -> None:
    """Restore what `random_state` gave, with the generators in the same order.

    CUDA states are set for as many devices as there are now. Raises `ValueError` for another number of `generators`.
    """
    if len(state["numpy"]) != len(generators):
        raise ValueError(f"{len(state['numpy'])} generators were saved, {len(generators)} are to be restored")
    torch.set_rng_state(state["torch"])
    for device, saved in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    for generator, saved in zip(generators, state["numpy"], strict=True):
        generator.bit_generator.state = saved
