"""The replay between processes that write, read and are killed."""

import multiprocessing as mp
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from history_writer import HistoryWriter

from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField

pytestmark = pytest.mark.process

NATIVE = Path(__file__).parents[2] / "native"
HISTORIES, FRAME = 4, (24, 24)
spawn = mp.get_context("spawn")
fork = mp.get_context("fork")  # where how a process starts is beside the point: it takes milliseconds, not seconds


def stamp(history: int, time_: int) -> int:
    """Every frame is filled with a number that says where it belongs."""
    return (history * 7919 + time_ * 31) % 65521


def write_forever(replay: Replay, histories: list[int], limit: int | None = None) -> None:
    writers, times, step = {}, {}, 0
    for history in histories:
        times[history] = replay.native.span(history)[1]
        writers[history] = HistoryWriter(replay, history)
    rng = np.random.default_rng(os.getpid())
    while limit is None or step < limit:
        step += 1
        for history, writer in writers.items():
            count = int(rng.integers(1, 30))
            t = times[history] + np.arange(count)
            frames = np.broadcast_to(np.array([stamp(history, int(i)) for i in t], np.uint16)[:, None, None], (count, *FRAME))
            writer.append({"observation": frames, "time": t}, t.astype(np.float32), np.full(count, 0.5), np.zeros(count))
            ready = max(0, replay.native.span(history)[1] - 3 - replay.native.span(history)[2])
            writer.ready(rng.exponential(1.0, ready).astype(np.float32))
            times[history] += count


def read_forever(replay: Replay) -> None:
    rng = np.random.default_rng(0)
    while True:
        drawn = replay.sample_keys(256)
        if drawn is not None:
            replay.update(drawn[0], rng.exponential(1.0, 256).astype(np.float32))
        replay.evict()


def make(codec: str = "none") -> Replay:
    settings = {"histories": HISTORIES, "capacity": 1200, "slack": 1.0, "minimum": 100, "seed": 1, "codec": codec}
    config = ReplayConfig(**settings)  # type: ignore[arg-type]
    frames = ReplayField(FRAME, "uint16", stack=4, compressed=codec != "none")
    return Replay(config, {"observation": frames, "time": ReplayField((), "int64")})


def check(replay: Replay, batches: int, threads: int = 1) -> int:
    """Every sample must be what its key says, whatever the writers do meanwhile; returns how many were looked at."""
    seen = 0
    for _ in range(batches):
        batch = replay.sample(64, threads=threads)
        if batch is None:
            time.sleep(0.001)
            continue
        for i, key in enumerate(batch.keys.tolist()):
            history, t = key >> 40, key & (1 << 40) - 1
            assert batch.first["time"][i] == t
            frames = batch.first["observation"][i]
            assert (frames == frames[:, :1, :1]).all(), "a frame is torn"
            newest = frames[:, 0, 0].tolist()
            assert newest[-1] == stamp(history, t)
            assert all(f in (stamp(history, t - back), newest[j + 1] if j < 3 else None)
                       for j, (f, back) in enumerate(zip(newest, (3, 2, 1, 0), strict=True)))
            after = batch.next["observation"][i][:, 0, 0].tolist()
            assert after[-1] == stamp(history, t + 3)
            assert batch.reward[i] == pytest.approx(t + 0.5 * (t + 1) + 0.25 * (t + 2), rel=1e-6)
        seen += 64
        replay.update(batch.keys, np.abs(batch.reward.numpy()) % 3)
        replay.evict()
    return seen


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_readers_see_whole_samples_while_writers_overwrite_and_are_killed(codec: str) -> None:
    replay = make(codec)
    rng = np.random.default_rng(0)

    def start(histories: list[int]) -> mp.process.BaseProcess:
        process = fork.Process(target=write_forever, args=(replay, histories), daemon=True)
        process.start()
        return process

    writers = [start([0, 1]), start([2, 3])]
    try:
        deadline = time.monotonic() + 60
        while replay.stats().size < replay.config.minimum:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        seen = 0
        for round_ in range(3):
            victim = int(rng.integers(2))
            seen += check(replay, 25, threads=1 + round_ % 2)
            writers[victim].kill()
            writers[victim].join()
            before = replay.stats()
            seen += check(replay, 10)
            writers[victim] = start([2 * victim, 2 * victim + 1])
        assert seen > 30 * 64
        deadline = time.monotonic() + 60  # the last replacement goes on where the dead one stopped
        while replay.stats().inserts < before.inserts + 1000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        for process in writers:
            process.kill()
            process.join()
    check(replay, 20)  # and without any writer


def test_a_reader_killed_inside_the_replay_leaves_it_usable() -> None:
    replay = make()
    write_forever(replay, list(range(HISTORIES)), limit=60)
    for _ in range(3):
        reader = fork.Process(target=read_forever, args=(replay,), daemon=True)
        samples = replay.stats().samples
        reader.start()
        while replay.stats().samples < samples + 5000:
            time.sleep(0.001)
        reader.kill()
        reader.join()
        stats = replay.stats()
        stamps, priorities = np.empty(replay.config.rows, np.uint64), np.empty(replay.config.rows, np.float32)
        alive, mass = 0, 0.0
        for history in range(HISTORIES):
            low, _, ready = replay.native.span(history)
            replay.native.read_priorities(history, low, stamps[: ready - low], priorities[: ready - low])
            here = priorities[: ready - low][priorities[: ready - low] >= 0]
            alive, mass = alive + len(here), mass + (np.maximum(here.astype(float), 1e-6) ** 0.6).sum()
        assert stats.size == alive
        assert replay.native.total() == pytest.approx(mass, rel=1e-9)
    check(replay, 10)


def test_what_a_killed_reader_had_begun_to_take_in_counts_once() -> None:
    n, half_way = 500_000, 0
    for delay in (0.002, 0.005, 0.01, 0.02, 0.04):
        replay = Replay(ReplayConfig(histories=1, capacity=n, minimum=1, n_step=1), {"x": ReplayField((1,), np.uint8, stack=1)})
        replay.native.open(0)
        zeros = np.zeros(n, np.float32)
        replay.native.append(0, [np.zeros((n, 1), np.uint8)], zeros, zeros, np.zeros(n, np.uint8))
        replay.native.ready(0, np.ones(n - 1, np.float32))
        reader = fork.Process(target=replay.stats)
        reader.start()
        time.sleep(delay)
        reader.kill()
        reader.join()
        half_way += reader.exitcode != 0
        stats = replay.stats()
        assert (stats.size, stats.inserts) == (n - 1, n - 1)
    assert half_way, "some reader was killed before its end"


def test_nothing_is_left_in_shared_memory_when_everyone_is_killed() -> None:
    before = set(os.listdir("/dev/shm"))
    code = ("import os, signal, test_replay_processes as t\nr = t.make()\n"
            "p = t.spawn.Process(target=t.write_forever, args=(r, [0, 1, 2, 3]))\n"
            "if __name__ == '__main__':\n    p.start()\n    print(p.pid, flush=True)\n"
            "    while r.stats().size < 200: t.time.sleep(0.001)\n"
            "    os.kill(p.pid, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n")
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, timeout=200)
    assert process.returncode == -9, process.stderr.decode()
    assert {n for n in set(os.listdir("/dev/shm")) - before if "headrace" in n} == set()


@pytest.mark.process
def test_concurrent_writers_and_readers_under_thread_sanitizer(tmp_path: Path) -> None:
    program = tmp_path / "stress"
    subprocess.run(["g++", "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-Wno-tsan", "-I", NATIVE,
                    NATIVE / "replay" / "stress.cpp", "-o", program, "-ldl", "-lpthread"], check=True)
    subprocess.run([program], check=True, timeout=240, env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"})


@pytest.mark.process
def test_frames_of_sequences_that_were_overwritten_take_no_room(tmp_path: Path) -> None:
    """In a program of its own, where it does not depend on who is faster. There are two whole sequences of eight frames,
    and the frame of zeros."""
    program = tmp_path / "frame_pool"
    source = Path(__file__).with_name("frame_pool.cpp")
    subprocess.run(["g++", "-std=c++20", "-O1", "-I", NATIVE, source, "-o", program, "-ldl", "-lpthread"], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "17 frames, right\n"


def test_division_by_a_number_that_does_not_change(tmp_path: Path) -> None:
    program = tmp_path / "divider"
    source = Path(__file__).with_name("divider.cpp")
    subprocess.run(["g++", "-std=c++20", "-O1", "-I", NATIVE, source, "-o", program, "-ldl", "-lpthread"], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "0 wrong\n"
