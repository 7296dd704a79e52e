"""Checkpoints: tensors and JSON on disk, each complete and verified or absent.

A checkpoint is a folder `checkpoints/<sequence>-step-<step>`:

    tensors.safetensors   every tensor by name
    state.json            everything else
    manifest              step, score, milestone, length and SHA-256 of both files (JSON, under a line with its own SHA-256)

A checkpoint is written under another name, flushed to the device and renamed: a process that is killed at any instruction leaves
the earlier checkpoints unchanged. A sequence number is never used twice, so nothing is overwritten. Nothing is pickled, so
loading runs no code.

`headrace.runs.state_tree` turns any tree of modules' and optimizers' states into that form and back, exactly.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

import safetensors.torch
import torch

from headrace.config.errors import UserError
from headrace.config.file_reading import Unreadable, parse_json, read_bytes, shortened
from headrace.runs import state_tree
from headrace.runs.error_texts import reason
from headrace.runs.files import free_space, sha256, write_synced
from headrace.runs.state_tree import on_cpu, unpack

FORMAT = 1  # version of the layout on disk

_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest"
_MOST_MANIFEST = 1 << 20
_LISTED = 3  # damaged checkpoints that an error message lists
_LISTINGS = 100  # how often a folder is listed whose checkpoints are deleted before they are read


class CheckpointError(UserError, RuntimeError):
    """A checkpoint could not be written or read. The message says which one, why, and what is left."""

    exit_code = 2


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read from disk and verified."""

    path: Path
    step: int  # global_step at which it was saved
    score: float | None
    tensors: dict[str, torch.Tensor]  # on the CPU
    state: Any  # what `state.json` holds
    damaged: tuple[str, ...] = ()  # a message for each checkpoint that was skipped, because it is damaged or does not fit

    def unpack(self) -> Any:
        """The tree that was given to `state_tree.pack`. Raises `CheckpointError` if the files do not belong together."""
        try:
            return unpack(self.tensors, self.state)
        except ValueError as error:
            raise CheckpointError(f"{self.path} is damaged: {shortened(str(error))}") from error


Use = Callable[[Checkpoint], None]  # takes what a checkpoint holds, or raises `CheckpointError` where it does not fit

# -- writing ----------------------------------------------------------------------------------------------------------


def save(
    folder: Path,
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
    files = {_TENSORS: safetensors.torch.save(on_cpu(tensors)), _STATE: json.dumps(state).encode()}
    manifest = {
        "format": FORMAT,
        "step": step,
        "score": score,
        "milestone": milestone,
        "saved": time.time(),
        "files": {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()},
    }
    body = json.dumps(manifest, indent=1).encode() + b"\n"
    files[_MANIFEST] = sha256(body).encode() + b"\n" + body

    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_left_overs(folder)
        sequence = max((number for number, _ in _entries(folder)), default=0) + 1
        path = folder / f"{sequence:06d}-step-{step}"
        aside = _aside(path)
        try:
            aside.mkdir()
            for name, data in files.items():
                write_synced(aside / name, data)
            if attach is not None:
                attach(aside)
            _sync(aside)
            os.rename(aside, path)
            _sync(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)  # the first error is the one to raise; the next save removes the rest
            raise
    except OSError as error:
        need = sum(map(len, files.values()))
        raise CheckpointError(
            f"cannot write a checkpoint of {need / 1e6:.1f} MB to {folder} ({free_space(folder)}): "
            f"{reason(error)}. Earlier checkpoints are untouched"
        ) from error
    try:
        _prune(folder, keep)
    except OSError as error:
        warnings.warn(f"a checkpoint that is no longer kept cannot be deleted: {error}", stacklevel=2)
    return path


def _sync(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _prune(folder: Path, keep: int) -> None:
    entries = _entries(folder)
    manifests: dict[Path, _Manifest] = {}
    for _, path in entries:
        with suppress(CheckpointError):  # `load_newest` reports it; here it counts as one without a score
            manifests[path] = _manifest(path)
    scores = {path: m.score for path, m in manifests.items() if m.score is not None}
    best = max(reversed(scores), key=lambda path: scores[path], default=None)
    for _, path in entries[:-1]:  # attached folders may be large
        for attached in path.iterdir() if path.is_dir() else ():
            if attached.is_dir():
                _remove(attached)
    for _, path in entries[:-keep]:
        if path != best and not (path in manifests and manifests[path].milestone):
            # Renamed first, so that no reader sees, and no killed process leaves, an incomplete checkpoint under its name.
            doomed = _aside(path)
            os.rename(path, doomed)
            _remove(doomed)


def _aside(path: Path) -> Path:
    """A name for what is not, or no longer, a checkpoint; another every time, since left-overs may stay."""
    return path.with_name(f".tmp-{path.name}-{uuid4().hex}")


def _remove_left_overs(folder: Path) -> None:
    """Delete what killed processes left. What cannot be deleted (another user's file, one that is open on NFS) harms nobody."""
    for left_over in folder.glob(".tmp-*"):
        try:
            _remove(left_over)
        except OSError as error:
            warnings.warn(f"the rest of a checkpoint cannot be deleted: {error}", stacklevel=3)


def _remove(path: Path) -> None:
    """Delete a folder with what is in it, or whatever was put in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- reading ----------------------------------------------------------------------------------------------------------


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint. Raises `CheckpointError` if any byte differs from what was written."""
    manifest = _manifest(path)
    data = {name: _read_verified(path / name, *facts) for name, facts in manifest.files.items()}
    try:
        tensors = safetensors.torch.load(data[_TENSORS])
    except Exception as error:  # the library raises errors of many kinds for what it did not write
        raise CheckpointError(f"{path / _TENSORS} is damaged: it holds no tensors ({shortened(str(error))})") from error
    try:
        state = parse_json(data[_STATE], path / _STATE)
    except Unreadable as error:
        raise CheckpointError(f"{path / _STATE} is damaged: {error.reason}") from error
    return Checkpoint(path, manifest.step, manifest.score, tensors, state)


class _Pruned(Exception):
    """A checkpoint that was listed is no longer there: the run that saves beside us keeps newer ones."""


@contextmanager
def _listed(path: Path) -> Iterator[None]:
    """Tell a checkpoint that was deleted since it was listed from one that is damaged."""
    try:
        yield
    except CheckpointError as error:
        if not os.path.lexists(path):
            raise _Pruned from error
        raise


def _listing_again(folder: Path, load_one: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """What `load_one` returns. It lists the folder, and does so again where a checkpoint was deleted before it was read."""
    for _ in range(_LISTINGS):
        with suppress(_Pruned):
            return load_one()
    raise CheckpointError(f"the checkpoints in {folder} are deleted faster than they can be read")


def load_newest(folder: Path, use: Use | None = None, among: Collection[Path] | None = None) -> Checkpoint | None:
    """The newest undamaged checkpoint in `folder` that `use` accepts; None if there are no checkpoints. With `among`, only those
    paths are considered, and newer ones are verified.

    The others are skipped and listed in `Checkpoint.damaged`, for the caller to report. Raises `CheckpointError` if there are
    checkpoints but none can be used: a run must not start from the beginning unnoticed.
    """

    def load_one() -> Checkpoint | None:
        paths, damaged = [path for _, path in reversed(_entries(folder))], list[str]()
        for path in takewhile(lambda path: among is not None and path not in among, paths):
            try:
                with _listed(path):
                    load(path)
            except CheckpointError as error:
                damaged.append(str(error))
        return _first_usable([path for path in paths if among is None or path in among], use, folder, damaged)

    return _listing_again(folder, load_one)


def moments(folder: Path) -> dict[Path, tuple[int, bool]]:
    """For every undamaged checkpoint in `folder` that was saved together with a whole population: the number of that moment, and
    whether the policy had finished learning by then."""
    found = {}
    for _, path in _entries(folder):
        with suppress(CheckpointError):  # `load_newest` reports it
            state = load(path).state
            if isinstance(state, dict) and isinstance(state.get("moment"), int):
                found[path] = state["moment"], bool(state.get("ended"))
    return found


def load_best(folder: Path, use: Use | None = None) -> Checkpoint | None:
    """The undamaged checkpoint with the highest score that `use` accepts, as in `load_newest`; None if none has a score."""

    def load_one() -> Checkpoint | None:
        scored: list[tuple[float, int, Path]] = []
        unreadable: list[str] = []
        for number, path in _entries(folder):
            try:
                with _listed(path):
                    score = _manifest(path).score
                if score is not None:
                    scored.append((score, number, path))
            except CheckpointError as error:
                unreadable.append(str(error))
        return _first_usable([path for *_, path in sorted(scored, reverse=True)], use, folder, unreadable)

    return _listing_again(folder, load_one)


def find(folder: Path, step: int) -> Path | None:
    """The path of the newest checkpoint of this global step in `folder`, or None. The checkpoint is not read."""
    return next((path for _, path in reversed(_entries(folder)) if path.name.endswith(f"-step-{step}")), None)


def some(folder: Path) -> Path:
    """The path of the newest checkpoint in `folder`, which is not read; without one, of a checkpoint that might be there."""
    return next((path for _, path in reversed(_entries(folder))), folder / "000001-step-1000")


def _first_usable(paths: Iterable[Path], use: Use | None, folder: Path, damaged: list[str]) -> Checkpoint | None:
    """The first usable checkpoint of `paths`. `damaged`: messages about checkpoints already found to be unusable."""
    for path in paths:
        try:
            with _listed(path):
                found = load(path)
            if use is not None:
                use(found)
            return replace(found, damaged=tuple(damaged))
        except CheckpointError as error:
            damaged.append(str(error))
    if not damaged:
        return None
    more = f"\n  and {len(damaged) - _LISTED} more" if len(damaged) > _LISTED else ""
    listed = "\n  ".join(damaged[:_LISTED])
    raise CheckpointError(
        f"every checkpoint in {folder} is damaged or does not fit:\n  {listed}{more}\nTo train from the beginning, delete them"
    )


def _entries(folder: Path) -> list[tuple[int, Path]]:
    """Finished checkpoints with their sequence numbers, oldest first. Raises `CheckpointError` for a folder that is there but
    cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.is_symlink():
            return []
        raise CheckpointError(f"the checkpoints in {folder} cannot be read: {error.strerror}") from error
    return sorted((int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name)))


def _read_verified(path: Path, size: int, digest: str) -> bytes:
    try:
        data = read_bytes(path, size)
    except Unreadable as error:
        raise CheckpointError(f"{path} is damaged: {error.reason}") from error
    if sha256(data) != digest:
        raise CheckpointError(f"{path} is damaged: its SHA-256 differs from that of the data written")
    return data


@dataclass(frozen=True)
class _Manifest:
    step: int
    score: float | None
    milestone: bool
    files: dict[str, tuple[int, str]]  # length and SHA-256 of each file


def _manifest(path: Path) -> _Manifest:
    """Read a checkpoint's manifest. Raises `CheckpointError`, also where its checksum is right but its contents are not."""
    where = path / _MANIFEST
    try:
        digest, _, body = read_bytes(where, _MOST_MANIFEST).partition(b"\n")
        if digest.decode(errors="replace") != sha256(body):
            raise CheckpointError(f"{where} is damaged: its SHA-256 differs from that of the data written")
        data = parse_json(body, where)
    except Unreadable as error:
        raise CheckpointError(f"{where} is damaged: {error.reason}") from error
    if isinstance(data, dict) and data.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {data.get('format')!r:.40}; this version reads format {FORMAT}")
    try:
        step, score = data["step"], data["score"]
        files = {name: (data["files"][name]["bytes"], data["files"][name]["sha256"]) for name in (_TENSORS, _STATE)}
        whole = all(type(number) is int and number >= 0 for number in (step, *(size for size, _ in files.values())))
        if not whole or not (score is None or math.isfinite(score)):
            raise ValueError("its numbers are impossible")
        return _Manifest(step, score, data["milestone"], files)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where} is damaged: it does not say what a manifest says ({error!r:.100})") from error


# -- for another process -----------------------------------------------------------------------------------------------


def to_bytes(found: Checkpoint) -> bytes:
    return state_tree.to_bytes([str(found.path), found.step, found.score, found.tensors, found.state])


def from_bytes(data: bytes) -> Checkpoint:
    """The inverse of `to_bytes`."""
    path, *rest = state_tree.from_bytes(data)
    return Checkpoint(Path(path), *rest)
