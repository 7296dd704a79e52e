"""Sampling probabilities, importance weights, eviction, late keys, limits and bad input."""

import copy
import threading
import time
from typing import Any

import numpy as np
import pytest
from history_writer import HistoryWriter
from naive_replay import Episodes, NaiveReplay, check_batch, fields, known, write
from scipy.stats import chisquare

from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField

VECTOR = {"observation": ReplayField((3,), "float32", stack=1), "action": ReplayField((2,), "float32")}


def filled(priorities: np.ndarray, **config: object) -> Replay:
    """A replay of len(priorities) / histories one-step transitions in each history, entered history by history."""
    histories = int(config.pop("histories", 4))  # type: ignore[call-overload]
    settings = {"histories": histories, "capacity": len(priorities), "n_step": 1, "minimum": 1, **config}
    replay = Replay(ReplayConfig(**settings), VECTOR)  # type: ignore[arg-type]
    for history, part in enumerate(np.split(priorities, histories)):
        add(replay, history, part)
    return replay


def add(replay: Replay, history: int, priorities: np.ndarray) -> None:
    writer, count = HistoryWriter(replay, history), len(priorities)
    observation = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    writer.append({"observation": observation, "action": observation[:, :2]}, observation[:, 0], np.zeros(count), np.ones(count))
    writer.ready(priorities)


def counts(replay: Replay, draws: int, batch: int, histories: int, per_history: int) -> np.ndarray:
    total = np.zeros((histories, per_history), np.int64)
    for _ in range(draws // batch):
        keys = replay.sample_keys(batch)[0]  # type: ignore[index]
        np.add.at(total, (keys >> 40, keys & (1 << 40) - 1), 1)
    return total.reshape(-1)


@pytest.mark.parametrize("draws", [200_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_probability_is_proportional_to_priority_to_the_alpha_over_all_histories(alpha: float, draws: int) -> None:
    priorities = np.random.default_rng(1).exponential(1.0, 1000).astype(np.float32) + 0.05
    mass = priorities.astype(float) ** alpha
    expected = mass / mass.sum()
    observed = counts(filled(priorities, alpha=alpha, stratified=False, seed=5), draws, 10_000, 4, 250)
    assert chisquare(observed, expected * observed.sum()).pvalue > 1e-4
    # Stratified draws spread less than independent ones; every expectation must still be the same.
    stratified = counts(filled(priorities, alpha=alpha, stratified=True, seed=5), draws, 10_000, 4, 250)
    np.testing.assert_allclose(stratified / stratified.sum(), expected, atol=6 * np.sqrt(expected.max() / draws))
    assert chisquare(stratified, expected * stratified.sum()).statistic < chisquare(observed, expected * observed.sum()).statistic


def test_updated_priorities_are_what_is_sampled() -> None:
    replay = filled(np.full(80, 1.0, np.float32), alpha=0.5, stratified=False)
    keys, _, _ = replay.sample_keys(400)  # type: ignore[misc]
    keys = np.unique(keys)
    new = np.random.default_rng(0).exponential(3.0, len(keys)).astype(np.float32)
    assert replay.update(keys, new) == 0
    mass = np.ones(80)
    mass[(keys >> 40) * 20 + (keys & 0xFFFF)] = new.astype(float) ** 0.5
    np.testing.assert_allclose(replay.native.total(), mass.sum(), rtol=1e-13)
    drawn, _, probabilities = replay.sample_keys(2000)  # type: ignore[misc]
    np.testing.assert_allclose(probabilities, (mass / mass.sum())[(drawn >> 40) * 20 + (drawn & 0xFFFF)], rtol=1e-12)


def test_a_copy_of_a_batch_is_memory_of_its_own() -> None:
    replay = filled(np.arange(1.0, 17.0))
    batch = replay.sample(16)
    assert batch is not None
    before, other = batch.keys.copy(), copy.deepcopy(batch)
    for tensor in other.first.values():
        tensor.fill_(-1)
    assert replay.sample(16, other) is other
    assert all((tensor >= 0).all() for tensor in other.first.values())
    np.testing.assert_array_equal(batch.keys, before)
    assert (other.keys != before).any()


def test_importance_weights() -> None:
    priorities = np.random.default_rng(2).exponential(1.0, 400).astype(np.float32)
    for beta in (0.0, 0.4, 1.0):
        _, weights, probabilities = filled(priorities, beta=beta).sample_keys(64)  # type: ignore[misc]
        expected = (400 * probabilities) ** -beta
        np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-6)


def test_zero_priority_is_raised_to_the_floor_and_zero_mass_is_never_drawn() -> None:
    priorities = np.zeros(64, np.float32)
    priorities[7] = 1.0
    drawn = counts(filled(priorities, alpha=1.0, floor=1e-30, seed=3), 10_000, 100, 4, 16)
    assert drawn[7] == 10_000
    assert len(np.unique(filled(priorities, alpha=0.0).sample_keys(1000)[0])) == 64  # type: ignore[index]


def test_sums_do_not_drift() -> None:
    rng = np.random.default_rng(3)
    replay = filled(np.full(512, 1e6, np.float32), alpha=1.0)
    keys = np.array([history << 40 | t for history in range(4) for t in range(128)], np.uint64)
    for scale in np.geomspace(1e6, 1e-6, 200):
        last = (rng.random(512) * scale).astype(np.float32)
        replay.update(keys, last)
    np.testing.assert_allclose(replay.native.total(), np.maximum(last.astype(float), 1e-6).sum(), rtol=1e-13)


def test_the_oldest_arrivals_are_evicted_at_once_and_their_late_priorities_dropped() -> None:
    replay = filled(np.ones(100, np.float32), capacity=60, slack=4.0, histories=2)
    old = replay.sample_keys(200)[0]  # type: ignore[index]
    assert replay.stats().size == 100  # soft: adding did not evict
    assert replay.evict() == 40
    assert replay.evict() == 0
    left = np.unique(replay.sample_keys(5000)[0])  # type: ignore[index]
    assert left.tolist() == [0 << 40 | t for t in range(40, 50)] + [1 << 40 | t for t in range(50)]
    gone = int(np.sum((old >> 40 == 0) & (old < 40)))
    assert gone > 0
    assert replay.update(old, np.full(200, 2.0)) == gone == replay.stats().late
    assert replay.stats().updates == 200 - gone


def test_keys_of_overwritten_rows_are_recognised_although_their_place_is_used_again() -> None:
    replay = filled(np.ones(32, np.float32), histories=1, capacity=32, slack=1.0)
    old = np.arange(32, dtype=np.uint64)
    for _ in range(5):  # each time half of what the history holds
        add(replay, 0, np.full(replay.config.rows // 2, 3.0, np.float32))
    assert replay.update(old, np.full(32, 100.0)) == 32
    stats = replay.stats()
    assert replay.native.total() == pytest.approx(stats.size * 3.0**0.6)
    assert (stats.inserts, stats.overwritten) == (32 + 5 * 24, 32 + 5 * 24 - 48)


def test_proportional_eviction_removes_with_probability_p_to_the_evict_alpha() -> None:
    """Without replacement: the first one removed must follow p^-0.4, over many small replays."""
    priorities = np.array([0.1, 0.5, 1.0, 2.0, 8.0, 32.0, 0.0, 4.0], np.float32)
    removed = np.zeros(8, np.int64)
    for seed in range(2000):
        replay = filled(priorities, histories=1, capacity=7, slack=8.0, evict_alpha=-0.4, floor=0.01, seed=seed)
        assert replay.evict() == 1
        here = np.empty(8, np.float32)
        replay.native.read_priorities(0, 0, np.empty(8, np.uint64), here)
        removed[np.flatnonzero(here < 0)] += 1
    mass = np.maximum(priorities, 0.01).astype(float) ** -0.4
    assert chisquare(removed, mass / mass.sum() * 2000).pvalue > 1e-4


def test_nothing_is_sampled_before_the_minimum() -> None:
    replay = filled(np.ones(40, np.float32), minimum=41)
    assert replay.sample(8) is None
    assert replay.sample_keys(8) is None
    add(replay, 0, np.ones(1, np.float32))
    assert replay.sample(8) is not None


def test_samples_per_insert_limit() -> None:
    replay = filled(np.ones(100, np.float32), minimum=50, samples_per_insert=2.0, ratio_band=20)
    assert not replay.may_insert()  # 2 x (100 - 50) samples are due, the band is 20
    while replay.may_sample(10):
        replay.sample_keys(10)
    assert replay.stats().samples == 2 * (100 - 50) + 20
    assert replay.may_insert()
    assert not replay.wait(10, timeout=0.01)


def test_the_same_seed_draws_the_same_keys() -> None:
    priorities = np.random.default_rng(0).random(100).astype(np.float32)
    a, b, c = (filled(priorities, seed=seed).sample_keys(50)[0] for seed in (1, 1, 2))  # type: ignore[index]
    assert a.tolist() == b.tolist() != c.tolist()


@pytest.mark.parametrize(("codec", "block"), [("none", 8), ("lz4", 8), ("lz4", 24), ("zstd", 8)])
@pytest.mark.parametrize("n_step", [1, 3, 9])
def test_stacks_returns_and_next_observations(codec: str, block: int, n_step: int) -> None:
    rng = np.random.default_rng(n_step)
    config = ReplayConfig(histories=2, capacity=150, slack=1.0, n_step=n_step, minimum=1, block=block, packed_share=1.0,
                          codec=codec)  # type: ignore[arg-type]
    shape = (36, 36)  # more than the size from which copies are streamed, and not compressible
    replay, naive = Replay(config, fields(shape, 4, codec != "none")), NaiveReplay(config, 4)
    writers, episodes = [HistoryWriter(replay, history) for history in range(2)], [Episodes(rng, shape) for _ in range(2)]
    for round_ in range(30):  # the histories wrap several times
        for history in range(2):
            rows = episodes[history].rows(int(rng.integers(1, 25)))
            write(writers[history], rows)
            naive.append(history, rows)
            this = naive.histories[history]
            priorities = rng.exponential(1.0, known(this.rows, this.ready, n_step)).astype(np.float32)
            writers[history].ready(priorities)
            naive.ready(history, priorities.tolist())
        if round_ % 3 == 2:
            check_batch(replay, naive, 64, threads=1 + round_ % 2)


def test_a_history_whose_frames_do_not_compress_keeps_fewer_of_them() -> None:
    rng = np.random.default_rng(0)
    config = ReplayConfig(histories=1, capacity=400, slack=1.0, minimum=1, n_step=1, codec="lz4", packed_share=0.3)
    replay = Replay(config, fields((40, 40), 1, compressed=True))
    writer = HistoryWriter(replay, 0)
    for _ in range(40):
        writer.append({"observation": rng.integers(0, 256, (20, 40, 40)).astype(np.uint8), "action": np.arange(20)},
                      np.zeros(20), np.zeros(20), np.ones(20))
        writer.ready(np.ones(20))
    size = replay.stats().size
    assert 100 < size <= 400 * 0.3 + 16  # nothing shrinks
    assert abs(replay.room() - size) <= 16
    assert replay.sample(64) is not None


def test_sequences_hold_the_rows_in_order() -> None:
    rng = np.random.default_rng(0)
    replay = Replay(ReplayConfig(histories=1, capacity=100, minimum=1), fields((4, 4), 3))
    naive = NaiveReplay(replay.config, 3)
    rows = Episodes(rng, (4, 4)).rows(50)
    writer = HistoryWriter(replay, 0)
    write(writer, rows)
    naive.append(0, rows)
    writer.ready(np.ones(41))
    batch = replay.sample_sequences(64, 10)
    assert batch is not None
    for i, start in enumerate(batch.keys.tolist()):
        for j in range(10):
            np.testing.assert_array_equal(batch.fields["observation"][i, j], naive.frames(0, start + j))
            row = rows[start + j]
            assert (batch.last[i, j], batch.final[i, j]) == (row.last, row.final)
            assert batch.reward[i, j] == np.float32(row.reward)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_sequences_are_whole_though_a_writer_laps_the_reader(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a writer overwrites while it is copied is drawn again. The memory that samples are copied into is poisoned."""
    length, shape = 24, (84, 84)
    config = ReplayConfig(histories=2, capacity=80, slack=1.0, minimum=1, codec=codec)  # type: ignore[arg-type]
    replay = Replay(config, fields(shape, 1, compressed=codec != "none"))
    stop = threading.Event()

    def write_on() -> None:
        writers, head = [HistoryWriter(replay, history) for history in range(2)], 0
        while not stop.is_set():
            steps = np.arange(head, head + 8)
            frames = np.broadcast_to((steps % 251)[:, None, None], (8, *shape)).astype(np.uint8)
            for writer in writers:
                writer.append({"observation": frames, "action": steps}, steps, np.ones(8), np.zeros(8, bool))
                if head >= length:
                    writer.ready(np.ones(8))
            head += 8

    def poisoned(shape: Any, dtype: Any = float) -> np.ndarray:
        return np.frombuffer(b"\xa5" * (int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()

    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        until = time.monotonic() + 120
        while replay.stats().overwritten < 1000:
            assert time.monotonic() < until
            time.sleep(0.01)
        monkeypatch.setattr(np, "empty", poisoned)
        whole = 0
        while whole < 100:
            assert time.monotonic() < until
            batch = replay.sample_sequences(32, length, threads=2)
            if batch is None:  # a writer that has just lapped a reader without a core: nothing has a priority yet
                continue
            whole += 1
            steps = (batch.keys & np.uint64((1 << 40) - 1)).astype(np.int64)[:, None] + np.arange(length)
            np.testing.assert_array_equal(batch.fields["action"], steps)
            np.testing.assert_array_equal(batch.reward, steps)
            assert (batch.fields["observation"] == (steps % 251)[..., None, None]).all()
            assert (batch.weights > 0).all()
    finally:
        stop.set()
        thread.join()


def test_bad_input_is_refused_with_a_reason() -> None:
    replay = filled(np.ones(40, np.float32))
    keys = replay.sample_keys(4)[0]  # type: ignore[index]
    with pytest.raises(ValueError, match="finite and not negative"):
        replay.update(keys, [1.0, float("nan"), 1.0, 1.0])
    with pytest.raises(ValueError, match="finite and not negative"):
        replay.update(keys, [1.0, -1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="differ in length"):
        replay.update(keys, [1.0])
    writer = HistoryWriter(replay, 0)
    with pytest.raises(IndexError, match="does not have yet"):
        writer.ready([1.0])
    with pytest.raises(IndexError, match="history 4"):
        HistoryWriter(replay, 4)
    row = {"observation": np.zeros((1, 3)), "action": np.zeros((1, 2))}
    with pytest.raises(ValueError, match="not finite"):
        writer.append(row, [np.inf], [1.0], [False])
    with pytest.raises(ValueError, match="field 'action'"):
        writer.append({**row, "action": np.zeros((1, 3))}, [0.0], [1.0], [False])
    writer.append(row, [0.0], [0.0], [True])
    with pytest.raises(ValueError, match="not finite"):
        writer.ready([float("inf")])
    with pytest.raises(MemoryError):
        Replay(ReplayConfig(histories=1, capacity=2**31), fields((210, 160, 3), 4))
