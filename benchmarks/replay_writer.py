"""From a finished trajectory to the replay: microseconds of CPU time per slot, in one native call and environment by environment.

    python benchmarks/replay_writer.py

`TrajectoryWriter` writes a slot of C environments in one call. The other side is tests/experience/numpy_writer.py, which writes
the same rows and priorities to the last bit with NumPy, one environment after the other; until then the package did it in that
way. Both write the same slots to replays of their own in turn, round by round; medians are compared. Slots hold T steps; the
histories are full, so that no memory is new. Prints a table, writes results/replay_writer.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import summary

from headrace.experience.replay.buffer import Field, Replay, ReplayConfig
from headrace.experience.replay.writer import TrajectoryWriter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "experience"))
from numpy_writer import NumpyWriter

EPISODE, SLOTS, GAMMA = 100, 8, 0.99


def trajectories(image: bool, T: int, C: int) -> dict[str, np.ndarray]:
    """`SLOTS` slots in a row of C environments, whose episodes end one after the other."""
    rng, rows = np.random.default_rng(0), SLOTS * T + 1
    t = np.arange(rows)[:, None] + EPISODE // C * np.arange(C)
    step = t % EPISODE
    if image:
        frames = rng.integers(0, 256, (rows + 3, C, 84, 84), dtype=np.uint8)
        observation = np.stack([frames[i : i + rows] for i in range(4)], 2)
        for i in range(3):  # an episode's first stack holds copies of its first frame
            observation[:, :, 2 - i][step <= i] = observation[:, :, 3 - i][step <= i]
    else:
        observation = rng.random((rows, C, 17), dtype=np.float32)
    numbers = {name: rng.random((rows, C), dtype=np.float32) for name in ("reward", "q", "value")}
    whole = numbers | {
        "obs/obs": observation, "first": step == 0, "valid": step != EPISODE - 1, "terminated": step == EPISODE - 2,
        "truncated": np.zeros((rows, C), bool), "action": np.zeros((rows, C, 1), np.int32),
        "version": np.zeros((rows, C), np.int32), "env_index": np.broadcast_to(np.arange(C, dtype=np.int32), (rows, C)),
    }  # fmt: skip

    def slots(name: str, array: np.ndarray) -> np.ndarray:
        length = T + (name in ("obs/obs", "first", "valid"))
        return np.ascontiguousarray(np.stack([array[k * T : k * T + length] for k in range(SLOTS)]))

    return {name: slots(name, array) for name, array in whole.items()}


def make_replay(image: bool, C: int) -> Replay:
    shape, dtype = ((1, 84, 84), "uint8") if image else ((17,), "float32")
    observation = Field("obs/obs", shape, dtype, stack=4 if image else 1)
    config = ReplayConfig(histories=C, capacity=200 * C, slack=1.0, n_step=3, minimum=1)
    return Replay(config, [observation, Field("action", (1,), "int32"), Field("version", (), "int32")])


def seconds(write: Callable[[int], None]) -> float:
    """CPU time of one pass over all slots, per slot."""
    began = process_time()
    for slot in range(SLOTS):
        write(slot)
    return (process_time() - began) / SLOTS


def measure(image: bool, T: int, C: int, rounds: int) -> dict[str, Any]:
    """Medians of both, and their ratio."""
    arrays = trajectories(image, T, C)
    views = [{name: array[slot] for name, array in arrays.items()} for slot in range(SLOTS)]
    replays = make_replay(image, C), make_replay(image, C)
    native, numpy = TrajectoryWriter(replays[0], arrays, GAMMA), NumpyWriter(replays[1], GAMMA)
    ways: tuple[Callable[[int], None], ...] = (native.write, lambda slot: numpy.write(views[slot]))
    for write in ways * 2:  # the histories are full after it
        seconds(write)
    times = [[seconds(write) for write in ways] for _ in range(rounds)]
    assert replays[0].stats() == replays[1].stats()
    assert replays[0].native.total() == replays[1].native.total()
    after, before = (1e6 * float(np.median(column)) for column in zip(*times, strict=True))
    what = "84x84, stacks of 4" if image else "17 numbers"
    return {"observation": what, "T": T, "C": C, "environment by environment": round(before, 1), "one call": round(after, 1),
            "ratio": round(before / after, 1), "one call, per step": round(after / (T * C), 3)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=32, help="T: steps of a trajectory")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "replay_writer.json")
    args = parser.parse_args()
    rows = [measure(image, args.steps, C, args.rounds) for image in (True, False) for C in (8, 32)]
    print("CPU microseconds per slot\n\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(x) for x in row.values()) + " |")
    summary.write(args.out, {"machine": summary.machine(), "rounds": args.rounds, "cpu_us_per_slot": rows})


if __name__ == "__main__":
    main()
