"""Saving and restoring a replay: its counters always, its contents on request. JSON and safetensors, nothing pickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load
from safetensors.numpy import save as to_bytes

import headrace._native.replay as native
from headrace.experience.replay.buffer import Replay

_STATE = "replay.json"


def save(replay: Replay, folder: os.PathLike[str] | str, contents: bool) -> Path:
    """Write `replay.json` and, with `contents`, one `history-<n>.safetensors` per history into `folder`, which is made.

    `replay.json` is renamed into place last: a folder that has it is whole. Writers may go on; rows that they overwrite
    meanwhile are left out. Contents take as much disk as the rows take memory uncompressed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {
        "config": dataclasses.asdict(replay.config),
        "fields": [dataclasses.asdict(f) for f in replay.fields],
        "stats": dataclasses.asdict(replay.stats()),
        "random": [str(word) for word in replay.native.random_state()],
        "histories": [],
    }
    if contents:
        for history in range(replay.config.histories):
            state["histories"].append(_save_history(replay, history, _history_path(folder, history)))
    written = folder / (_STATE + ".new")
    written.write_text(json.dumps(state, indent=1))
    os.replace(written, folder / _STATE)
    return folder


def restore(replay: Replay, folder: os.PathLike[str] | str) -> bool:
    """Fill an empty replay with what `save` wrote; says whether there were contents. Keys given out before stay valid.

    Raises:
        FileNotFoundError: `folder` holds no finished state.
        ValueError: it was saved by a replay of another shape, or is damaged; the replay is then still empty.
    """
    state = json.loads((Path(folder) / _STATE).read_text())
    fields = [dataclasses.asdict(f) for f in replay.fields]
    if json.loads(json.dumps(fields)) != state["fields"] or state["config"].get("histories") != replay.config.histories:
        raise ValueError(f"{folder} holds a replay with other fields or another number of histories")
    for history, saved in enumerate(state["histories"]):
        if _sha256(_history_path(folder, history).read_bytes()) != saved["sha256"]:
            raise ValueError(f"{_history_path(folder, history)} is damaged: its SHA-256 is not the one of what was written")
    for history, saved in enumerate(state["histories"]):
        _restore_history(replay, history, saved["first"], _history_path(folder, history))
    if state["histories"]:
        replay.native.restore_statistics(state["stats"], [int(word) for word in state["random"]])
    return bool(state["histories"])


def _history_path(folder: os.PathLike[str] | str, history: int) -> Path:
    return Path(folder) / f"history-{history}.safetensors"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _save_history(replay: Replay, history: int, path: Path) -> dict[str, Any]:
    low, head, ready = replay.native.span(history)
    count = head - low
    while True:
        stamps, priorities = np.empty(count, np.uint64), np.empty(count, np.float32)
        columns = {f"field.{f.name}": np.empty((count, *f.shape), f.dtype) for f in replay.fields}
        reward, discount, flags = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.uint32)
        intact = np.ones(1, np.uint8)
        if count:
            key = np.array([history << 40 | low], np.uint64)
            replay.native.windows(key, count, False, list(columns.values()), reward, discount, flags, intact)
            replay.native.read_priorities(history, low, stamps, priorities)
        if intact[0]:
            break
        low, head, ready = replay.native.span(history)  # a writer overwrote the oldest rows: leave some out
        low, count = low + (head - low) // 50, head - low - (head - low) // 50
    priorities[max(0, ready - low):] = -1.0
    data = to_bytes({**columns, "reward": reward, "discount": discount, "flags": flags, "stamps": stamps,
                     "priorities": priorities, "ready": np.array([max(0, ready - low)])})
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"first": int(low), "sha256": _sha256(data)}


def _restore_history(replay: Replay, history: int, first: int, path: Path) -> None:
    data = load(path.read_bytes())
    flags, ready = data["flags"], int(data["ready"][0])
    replay.native.restore_history(history, first, int(flags[0] >> native.FLAG_BITS) if len(flags) else 0)
    mask = np.uint32((1 << native.FLAG_BITS) - 1)  # of the flags; the rest is the age, which follows from them
    for start in range(0, len(flags), 1024):
        part = slice(start, start + 1024)
        replay.native.append(history, [data[f"field.{f.name}"][part] for f in replay.fields], data["reward"][part],
                             data["discount"][part], (flags[part] & mask).astype(np.uint8))
    replay.native.ready(history, data["priorities"][:ready])
    replay.native.restore_stamps(history, first, data["stamps"][:ready])
