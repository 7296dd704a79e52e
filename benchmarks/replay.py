"""The replay alone: sum tree, batch assembly, codecs, memory, and Ape-X's rates; against cpprb and torchrl.

    python benchmarks/replay.py --cpprb VENV/bin/python --torchrl VENV/bin/python

Libraries that are not given are left out. Each runs in a process of its own; rounds of all libraries alternate, so that
a noisy machine disturbs all alike, and medians are compared. Prints tables and writes benchmarks/results/replay.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import summary

from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "experience"))
from history_writer import HistoryWriter

GAMES = ("Pong", "Breakout", "MsPacman", "SpaceInvaders", "Seaquest", "Qbert")
EPISODE = 500


def record(game: str, count: int) -> np.ndarray:
    """Frames as an agent sees them (84x84, grey, every 4th, maximum of the last two) under random actions."""
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    env = gym.wrappers.AtariPreprocessing(gym.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.25))
    env.action_space.seed(0)
    frames, done = np.empty((count, 84, 84), np.uint8), True
    for i in range(count):
        if done:
            frames[i], _ = env.reset(seed=i)
            done = False
            continue
        frames[i], _, terminated, truncated, _ = env.step(env.action_space.sample())
        done = terminated or truncated
    return frames


class Contender:
    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self.process = subprocess.Popen([python, Path(__file__).with_name("contenders.py"), "replay", name], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, **order: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} died with {self.process.wait()}")
        return json.loads(line)["reply"]


def interleaved(contenders: list[Contender], action: str, count: int, rounds: int) -> dict[str, float]:
    """Median microseconds per call of each."""
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    for _ in range(rounds):
        for c in contenders:
            seconds[c.name] += c(do=action, count=count)
    return {name: round(1e6 * float(np.median(s)), 1) for name, s in seconds.items()}


def table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    print(f"\n{title}\n\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(x) for x in row) + " |", flush=True)


def compare(args: argparse.Namespace, frames_path: str) -> dict[str, Any]:
    pythons = {"headrace": sys.executable, "cpprb": args.cpprb, "torchrl": args.torchrl}
    contenders = [Contender(name, python) for name, python in pythons.items() if python]
    prioritized = [c for c in contenders if c.name != "torchrl"]
    result: dict[str, Any] = {}
    for c in prioritized:
        c(do="vectors", size=1_000_000)
    for action in ("sample", "update"):
        result[action] = interleaved(prioritized, action, 300, 5)
    result["sample_keys"] = interleaved(contenders[:1], "sample_keys", 300, 5)
    for c in contenders:
        c(do="frames", path=frames_path, episode=EPISODE)
    result["assemble"] = interleaved(contenders, "sample", 10, 5)
    result["assemble_two_threads"] = interleaved(contenders[:1], "sample_two_threads", 10, 5)
    for c in contenders:
        assert c.process.stdin is not None
        c.process.stdin.close()
        c.process.wait()
    ours = {k: v["headrace"] for k, v in result.items()}
    def theirs(key: str, name: str) -> str:
        return f"{result[key][name]} ({result[key][name] / ours[key]:.1f}x)" if name in result[key] else "-"

    rows = [[what, ours[key], *(theirs(key, c.name) for c in contenders[1:])]
            for what, key in (("sample 512 of 1M, four floats each", "sample"), ("update 512 of 1M", "update"),
                              ("sample 512 stacked Atari observations and their successors", "assemble"))]
    rows += [["sample 512 of 1M, keys and weights only", ours["sample_keys"]] + ["-"] * (len(contenders) - 1),
             ["the stacked Atari batch with two threads", ours["assemble_two_threads"]] + ["-"] * (len(contenders) - 1)]
    table("Microseconds (median; in brackets: times as long as Headrace)", ["", *(c.name for c in contenders)], rows)
    return result


def columns(codec: str) -> dict[str, ReplayField]:
    """Of a replay of Atari frames."""
    return {"obs": ReplayField((84, 84), "uint8", stack=4, compressed=codec != "none"), "act": ReplayField((), "int32")}


def atari_replay(frames: np.ndarray, codec: str, level: int, block: int) -> tuple[Replay, float]:
    """A replay of these frames, and the microseconds that adding one took."""
    count = len(frames)
    config = ReplayConfig(histories=1, capacity=count, slack=1.0, minimum=1, codec_level=level, block=block,
                          packed_share=1.0, codec=codec)  # type: ignore[arg-type]
    replay = Replay(config, columns(codec))
    writer, ends = HistoryWriter(replay, 0), np.arange(1, count + 1) % EPISODE == 0
    actions, ones, discounts = np.zeros(50, np.int32), np.ones(50, np.float32), np.where(ends, 0, 0.99).astype(np.float32)
    start = time.perf_counter()
    for i in range(0, count, 50):
        writer.append({"obs": frames[i:i + 50], "act": actions}, ones, discounts[i:i + 50], ends[i:i + 50])
    seconds = time.perf_counter() - start
    writer.ready(np.random.default_rng(0).random(count).astype(np.float32))
    return replay, 1e6 * seconds / count


def codecs(recorded: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Every codec on every game, in turn; bytes are what the kernel gave, all columns and the sum tree included."""
    results = []
    for codec, level, block in (("none", 0, 8), ("lz4", 1, 8), ("lz4", 1, 16), ("lz4", 8, 8), ("zstd", -5, 8), ("zstd", 1, 8),
                                ("zstd", 1, 16), ("zstd", 3, 16)):
        for game, frames in recorded.items():
            replay, add = atari_replay(frames, codec, level, block)
            replay.sample(512)
            batch, seconds = replay.empty_batch(512), []
            for _ in range(7):
                start = time.perf_counter()
                replay.sample(512, batch)
                seconds.append(time.perf_counter() - start)
            held = os.fstat(replay.segment.fd).st_blocks * 512
            results.append({"codec": codec, "level": level, "block": block, "game": game, "add_us": round(add, 2),
                            "sample_us": round(1e6 * float(np.median(seconds)) / 512, 2), "bytes": round(held / len(frames))})
    rows = []
    for key in dict.fromkeys((r["codec"], r["level"], r["block"]) for r in results):
        these = [r for r in results if (r["codec"], r["level"], r["block"]) == key]
        rows.append([f"{key[0]} {key[1]}" if key[0] != "none" else "none", key[2], f"{np.mean([r['add_us'] for r in these]):.1f}",
                     f"{np.mean([r['sample_us'] for r in these]):.1f}", *(r["bytes"] for r in these)])
    table("Codecs on 84x84 frames, one thread; bytes per transition, everything included",
          ["codec", "rows per block", "us to add a frame", "us to sample a transition (both stacks)", *recorded], rows)
    return results


HISTORIES, CHUNK = 16, 50


def feed(replay: Replay, path: str, rate: float, seconds: float, results: Any) -> None:
    """An actor's side of the replay: chunks of 50 rows of each history in turn, `rate` transitions per second."""
    frames = np.load(path)
    writers = [HistoryWriter(replay, history) for history in range(HISTORIES)]
    discounts, none, actions = np.full(CHUNK, 0.99, np.float32), np.zeros(CHUNK, bool), np.zeros(CHUNK, np.int32)
    priorities = np.random.default_rng(0).random(CHUNK).astype(np.float32)
    start, cpu, sent = time.monotonic(), time.process_time(), 0
    while time.monotonic() - start < seconds:
        due = int((time.monotonic() - start) * rate)
        while sent + CHUNK <= due:
            history = sent // CHUNK % HISTORIES
            at = sent % (len(frames) - CHUNK)
            writers[history].append({"obs": frames[at:at + CHUNK], "act": actions}, discounts, discounts, none)
            writers[history].ready(priorities[: CHUNK if sent >= CHUNK * HISTORIES else CHUNK - 3])
            sent += CHUNK
        time.sleep(0.002)
    results.put((sent / (time.monotonic() - start), (time.process_time() - cpu) / (time.monotonic() - start)))


def sustained(path: str, codec: str, seconds: float) -> dict[str, Any]:
    """12.5K inserts and 19 batches of 512 per second: are the rates held, and with how much of a core?"""
    capacity = 60_000
    config = ReplayConfig(histories=HISTORIES, capacity=capacity, minimum=10_000, codec=codec)  # type: ignore[arg-type]
    replay = Replay(config, columns(codec))
    context = mp.get_context("spawn")
    results = context.Queue()
    writer = context.Process(target=feed, args=(replay, path, 12_500.0, seconds + 8, results))
    writer.start()
    replay.wait(512, timeout=60)
    time.sleep(5)  # until the histories are full and every page has been touched once
    batch, batches, late = replay.empty_batch(512), 0, 0
    priorities = np.random.default_rng(1).random(512).astype(np.float32)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    while (elapsed := time.monotonic() - start) < seconds - 4:
        if batches < elapsed * 19:
            replay.sample(512, batch)
            late += replay.update(batch.keys, priorities)
            batches += 1
            if batches % 100 == 0:
                replay.evict()
        else:
            time.sleep(0.001)
    after = resource.getrusage(resource.RUSAGE_SELF)
    inserts, writer_share = results.get()
    writer.join()
    stats = replay.stats()
    return {"codec": codec, "inserts_per_s": round(inserts), "batches_per_s": round(batches / elapsed, 1),
            "writer_cores": round(writer_share, 3),
            "sampler_cores": round((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / elapsed, 3),
            "late": late, "size": stats.size,
            "bytes_per_transition": round(os.fstat(replay.segment.fd).st_blocks * 512 / stats.size)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpprb", help="Python interpreter that has cpprb")
    parser.add_argument("--torchrl", help="Python interpreter that has torchrl")
    parser.add_argument("--frames", type=int, default=20_000, help="Atari frames per measurement, a multiple of 500")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the measurement of sustained rates")
    args = parser.parse_args()
    result: dict[str, Any] = {"system": summary.machine(), "batch": 512, "frames": args.frames}
    with tempfile.TemporaryDirectory() as folder:
        recorded = {game: record(game, min(args.frames, 8000)) for game in GAMES}
        path = f"{folder}/frames.npy"
        frames = np.concatenate(list(recorded.values()))[: args.frames]
        np.save(path, frames)
        result["compare"] = compare(args, path)
        result["codecs"] = codecs({game: f[:4000] for game, f in recorded.items()})
        result["sustained"] = [sustained(path, codec, args.seconds) for codec in ("none", "lz4", "zstd")]
    table("Ape-X's rates: 12.5K inserts/s and 19 batches of 512 per second", list(result["sustained"][0]),
          [list(r.values()) for r in result["sustained"]])
    target = Path(__file__).with_name("results") / "replay.json"
    summary.write(target, result)


if __name__ == "__main__":
    main()
