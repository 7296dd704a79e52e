"""Saving and restoring a replay: its counters always, its contents on request. JSON and safetensors, nothing pickled."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load
from safetensors.numpy import save as to_bytes

import headrace._native.replay as native
from headrace.config.file_reading import read_json
from headrace.experience.replay.buffer import Replay, ReplayConfig
from headrace.runs.files import read_synced, write_synced, write_whole

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
        "fields": _described(replay),
        "stats": dataclasses.asdict(replay.stats()),
        "random": [str(word) for word in replay.native.random_state()],
        "histories": [],
    }
    if contents:
        for history in range(replay.config.histories):
            state["histories"].append(_save_history(replay, history, _history_path(folder, history)))
    write_whole(folder / _STATE, json.dumps(state, indent=1))
    return folder


def restore(replay: Replay, folder: os.PathLike[str] | str, gamma: float | None = None) -> bool:
    """Fill an empty replay with what `save` wrote; says whether there were contents. Keys given out before stay valid. `gamma`:
    the discount that rows have from now on, 0 after termination; None: the one that they had.

    Raises:
        FileNotFoundError: `folder` holds no finished state.
        ValueError: it was saved by a replay of another shape, with shorter returns or sequences, or is damaged; the replay is
            then still empty.
    """
    folder = Path(folder)
    if not os.path.lexists(folder / _STATE):
        raise FileNotFoundError(f"{folder} holds no finished state of a replay")
    state = read_json(folder / _STATE)
    try:
        if state["fields"] != _described(replay) or state["config"]["histories"] != replay.config.histories:
            raise ValueError(f"{folder} holds a replay with other fields or another number of histories")
        saved = [(saved["first"], saved["sha256"]) for saved in state["histories"]]
        if saved:
            before = {"window": replay.config.window} | state["config"]  # older states do not have it
            _check_reach(replay, before["n_step"], before["window"], before["period"], folder)
        stats = {name: state["stats"][name] for name in dataclasses.asdict(replay.stats())}
        if saved:
            stats["samples"] = _samples_in_balance(replay.config, before, stats)
        random = [int(word) for word in state["random"]]
        numbers = [first for first, _ in saved] + list(stats.values()) + random
        words = all(type(number) is int and 0 <= number < 2**64 for number in numbers)
        if len(saved) not in (0, replay.config.histories) or len(random) != 4 or not words:
            raise TypeError("its numbers are impossible")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / _STATE} is damaged: {type(error).__name__}: {error}") from error
    for history, (_, digest) in enumerate(saved):
        _check_history(replay, _history_path(folder, history), digest)
    for history, (first, _) in enumerate(saved):
        newest = _restore_history(replay, history, first, _history_path(folder, history), gamma)
        # Counters are saved first; what arrived meanwhile has later numbers, which must not be given out a second time.
        stats["inserts"] = max(stats["inserts"], newest + 1)
    if saved:
        replay.native.restore_statistics(stats, random)
    return bool(saved)


def _samples_in_balance(now: ReplayConfig, before: dict[str, Any], stats: dict[str, int]) -> int:
    """The count of samples with which as many more are allowed as were before. With another ratio or minimum the saved count
    would make the learner or the rollout workers wait until the whole past is made up for."""
    ratio, old = now.samples_per_insert, before["samples_per_insert"]
    if ratio is None or (ratio, now.minimum) == (old, before["minimum"]):
        return stats["samples"]
    allowed = 0.0 if old is None else max(0.0, old * (stats["inserts"] - before["minimum"]) - stats["samples"])
    return max(0, round(ratio * (stats["inserts"] - now.minimum) - allowed))


def restored_in_part(replay: Replay, folder: os.PathLike[str] | str) -> bool:
    """Whether a replay that is not empty has only a part of the contents in `folder`, since who restored them was killed. A
    replay that goes on never has fewer inserts than were saved of it."""
    try:
        state = read_json(Path(folder) / _STATE)
        return bool(state["histories"]) and state["stats"]["inserts"] > replay.stats().inserts
    except (OSError, ValueError, KeyError, TypeError):  # what cannot be read was not restored
        return False


def _check_reach(replay: Replay, n_step: int, window: int, period: int, folder: Path) -> None:
    """Raise `ValueError` where returns or sequences are longer than they were. Rows before a gap, such as where a writer was
    replaced, start none of those that would reach over it; which rows that are for longer ones is not known any more."""
    now = replay.config
    if now.n_step > n_step:
        raise ValueError(f"{folder} holds transitions whose returns are of {n_step} steps (replay.n_step), not of {now.n_step}")
    if now.period != period or now.window + now.n_step > window + n_step:
        raise ValueError(f"{folder} holds other or shorter sequences (sampling.rollout, q.burn_in, q.sequence, replay.n_step)")


def _described(replay: Replay) -> list[dict[str, Any]]:
    """The fields of a replay as JSON types."""
    return [
        {"name": name, "shape": list(f.shape), "dtype": f.dtype.name, "stack": f.stack, "compressed": f.compressed}
        for name, f in replay.fields.items()
    ]


def _check_history(replay: Replay, path: Path, digest: Any) -> None:
    """Raise `ValueError` unless `path` holds what `_save_history` wrote."""
    data = read_synced(path, digest)
    try:
        arrays = load(data)
        rows = len(arrays["flags"])
        shapes = {f"field.{name}": (f.dtype, (rows, *f.shape)) for name, f in replay.fields.items()}
        shapes |= {"reward": (np.dtype(np.float32), (rows,)), "discount": (np.dtype(np.float32), (rows,))}
        shapes |= {"stamps": (np.dtype(np.uint64), (rows,)), "priorities": (np.dtype(np.float32), (rows,))}
        unlike = [name for name, like in shapes.items() if (arrays[name].dtype, arrays[name].shape) != like]
        if unlike or not 0 <= int(arrays["ready"][0]) <= rows:
            raise ValueError(f"impossible {', '.join(unlike) or 'ready'}")
    except Exception as error:  # the library raises errors of many kinds for what it did not write
        raise ValueError(f"{path} is damaged: {error}") from error


def _history_path(folder: os.PathLike[str] | str, history: int) -> Path:
    return Path(folder) / f"history-{history}.safetensors"


def _save_history(replay: Replay, history: int, path: Path) -> dict[str, Any]:
    low, head, ready = replay.native.span(history)
    count = head - low
    while True:
        stamps, priorities = np.empty(count, np.uint64), np.empty(count, np.float32)
        columns = {f"field.{name}": np.empty((count, *f.shape), f.dtype) for name, f in replay.fields.items()}
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
    priorities[max(0, ready - low) :] = -1.0
    columns |= {"reward": reward, "discount": discount, "flags": flags, "stamps": stamps, "priorities": priorities}
    data = to_bytes(columns | {"ready": np.array([max(0, ready - low)])})
    return {"first": int(low), "sha256": write_synced(path, data)}


def _restore_history(replay: Replay, history: int, first: int, path: Path, gamma: float | None) -> int:
    """Returns the newest arrival number of its transitions; -1 if there are none."""
    data = load(path.read_bytes())
    flags, ready, discount = data["flags"], int(data["ready"][0]), data["discount"]
    if gamma is not None:
        discount[discount != 0] = gamma
    replay.native.restore_history(history, first, int(flags[0] >> native.FLAG_BITS) if len(flags) else 0)
    mask = np.uint32((1 << native.FLAG_BITS) - 1)  # of the flags; the rest is the age, which follows from them
    step = min(1024, replay.config.rows)  # a replay that has become smaller keeps the newest rows
    for start in range(0, len(flags), step):
        part = slice(start, start + step)
        fields = [data[f"field.{name}"][part] for name in replay.fields]
        own_flags = (flags[part] & mask).astype(np.uint8)
        replay.native.append(history, fields, data["reward"][part], discount[part], own_flags)
    replay.native.ready(history, data["priorities"][:ready])
    replay.native.restore_stamps(history, first, data["stamps"][:ready])
    there = data["priorities"][:ready] >= 0
    return int(data["stamps"][:ready][there].max()) if there.any() else -1
