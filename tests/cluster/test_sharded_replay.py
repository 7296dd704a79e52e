"""Sampling from shards is exact: distribution, weights, bits, and what happens when a shard is lost or late."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from shards import Shards

from headrace.cluster import sharded_replay
from headrace.cluster.sample_codec import STATISTICS, SampleCodec
from headrace.cluster.shapes import of_node
from headrace.config import override
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField
from headrace.experience.replay.layout import make_replay
from headrace.make_config import make_config
from headrace.shm import segment

# Behind the folders of other tests, which have modules of the same names.
sys.path.append(str(Path(__file__).parents[1] / "experience"))
from history_writer import HistoryWriter

NUMBER = {"obs/x": ReplayField((1,), "float32", stack=1), "action": ReplayField((1,), "int32")}
IMAGES = {
    "obs/image": ReplayField((1, 12, 8), "uint8", stack=4, compressed=True),
    "obs/vector": ReplayField((3,), "float32", stack=1),
    "action": ReplayField((1,), "int32"),
    "core": ReplayField((2,), "float32"),
}


def numbered(priorities: np.ndarray, first: int = 0, **config: Any) -> Replay:
    """One-step transitions with these priorities in one history; their observations are their numbers, from `first` on."""
    count = len(priorities)
    replay = Replay(ReplayConfig(1, **{"capacity": count, "n_step": 1, "minimum": 1, **config}), NUMBER)
    writer, numbers = HistoryWriter(replay, 0), np.arange(first, first + count, dtype=np.float32)
    fields = {"obs/x": numbers[:, None], "action": numbers[:, None].astype(np.int32)}
    writer.append(fields, numbers, np.zeros(count), np.ones(count))
    writer.ready(priorities)
    return replay


def played(seed: int, rows: int = 300) -> Replay:
    """Two histories of episodes with images."""
    rng = np.random.default_rng(seed)
    config = ReplayConfig(2, capacity=2 * rows, n_step=3, minimum=1, codec="lz4", packed_share=1.0, slack=1.5, seed=7)
    replay = Replay(config, IMAGES)
    for history in range(2):
        writer, last = HistoryWriter(replay, history), rng.random(rows) < 0.1
        zeros = rng.random(rows) < 0.5
        fields = {name: (rng.random((rows, *f.shape)) * 99).astype(f.dtype) for name, f in IMAGES.items()}
        writer.append(fields, rng.normal(size=rows), np.where(last, 0, 0.9), last, zeros=zeros)
        writer.ready(rng.exponential(size=rows - 30).astype(np.float32))
    return replay


@pytest.fixture
def make() -> Iterator[Callable[..., Shards]]:
    made: list[Shards] = []

    def make(*args: Any, **config: Any) -> Shards:
        made.append(Shards(*args, **config))
        return made[-1]

    yield make
    for shards in made:
        shards.close()


def test_one_shard_draws_as_a_replay_bit_for_bit(make: Callable[..., Shards]) -> None:
    here, rng, waiting = played(1), np.random.default_rng(0), []
    shards = make([played(1)], 64)
    for _ in range(12):
        while len(waiting) < sharded_replay.DRAWS:  # as many draws are under way
            batch = here.sample(64)
            assert batch is not None
            waiting.append(batch)
        expected, got = waiting.pop(0), shards.replay.sample(64)
        assert got is not None
        np.testing.assert_array_equal(got.keys[:, 0], expected.keys)
        for one, other in ((got.first, expected.first), (got.next, expected.next)):
            assert all(torch.equal(one[name], other[name]) for name in one)
        for name in ("reward", "discount", "weights"):
            assert torch.equal(getattr(got, name), getattr(expected, name)), name
        priorities = rng.exponential(size=64).astype(np.float32)
        assert here.update(expected.keys, priorities) == 0
        assert shards.replay.update(got.keys, priorities) == 0


def test_one_shard_draws_sequences_as_a_replay_bit_for_bit(make: Callable[..., Shards]) -> None:
    here, shards = played(2), make([played(2)], 16, 20)
    for _ in range(4):
        expected, got = here.sample_sequences(16, 20), shards.replay.sample_sequences(16, 20)
        assert expected is not None
        assert got is not None
        np.testing.assert_array_equal(got.keys[:, 0], expected.keys)
        for name in IMAGES:
            np.testing.assert_array_equal(got.fields[name], expected.fields[name])
        for name in ("reward", "discount", "last", "final", "weights"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))


def uneven(rng: np.random.Generator) -> list[np.ndarray]:
    """Priorities of four shards of different sizes, one with a hundred times the priorities of the others."""
    return [(rng.exponential(size=n) + 0.05).astype(np.float32) * (100 if n == 80 else 1) for n in (200, 80, 300, 20)]


def counted(shards: Shards, batches: int, starts: np.ndarray, count: int) -> np.ndarray:
    seen = np.zeros(count, np.int64)
    for _ in range(batches):
        keys, _ = shards.draw()
        node = (keys[:, 1] % shards.table.nodes).astype(int)
        np.add.at(seen, starts[node] + (keys[:, 0] & (1 << 40) - 1).astype(int), 1)
    return seen


def test_many_shards_draw_as_one_tree(make: Callable[..., Shards]) -> None:
    parts = uneven(np.random.default_rng(3))
    starts, whole = np.cumsum([0, *map(len, parts)])[:-1], np.concatenate(parts)
    mass = whole.astype(float) ** 0.6
    shards = make([numbered(part, seed=k) for k, part in enumerate(parts)], 500)
    seen = counted(shards, 200, starts, len(whole))
    expected = mass / mass.sum() * seen.sum()
    one = numbered(whole, stratified=False)
    alone = np.bincount(np.concatenate([one.sample_keys(500)[0] for _ in range(200)]).astype(int), minlength=len(whole))  # type: ignore[index]
    # Stratified draws spread less than independent ones.
    assert chisquare(seen, expected).pvalue > 1e-3
    assert chisquare(alone, expected).pvalue > 1e-3
    assert chisquare(seen, expected).statistic < chisquare(alone, expected).statistic
    # As an ensemble of buffers draws: by their numbers of transitions.
    by_count = np.concatenate([part / part.sum() * len(part) for part in np.split(mass, starts[1:])])
    assert chisquare(seen, by_count / by_count.sum() * seen.sum()).pvalue < 1e-100


def estimates(shards: Shards, values: list[np.ndarray], batches: int) -> np.ndarray:
    """Of each batch the mean of f / (N q), which is the mean of f over all transitions; priorities change all the while."""
    rng, nodes, found = np.random.default_rng(4), shards.table.nodes, []
    for _ in range(batches):
        keys, q = shards.draw()
        node, time = (keys[:, 1] % nodes).astype(int), (keys[:, 0] & (1 << 40) - 1).astype(int)
        f = np.array([values[k][t] for k, t in zip(node, time, strict=True)])
        there = [k for k in range(nodes) if not shards.wires[k].lose(0)]
        found.append((f / q).mean() / sum(len(values[k]) for k in there))
        shards.replay.update(keys, rng.exponential(size=len(q)).astype(np.float32) * (1 + 9 * (node == 2)))
    return np.array(found)


def assert_mean(found: np.ndarray, expected: float) -> None:
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - expected) < 4 * error
    assert error < 0.02 * abs(expected), "the test could not tell"


def test_weighted_means_are_unbiased_however_old_the_sums_are(make: Callable[..., Shards]) -> None:
    rng = np.random.default_rng(5)
    parts = uneven(rng)
    values = [rng.normal(3 + k, 1, len(part)) for k, part in enumerate(parts)]
    shards = make([numbered(part, seed=k) for k, part in enumerate(parts)], 100)
    for wire, said in zip(shards.wires, (900.0, 10.0, 100.0, 50.0), strict=True):  # far from the truth, and never corrected
        wire.shard.said = said
        shards.table.statistics[wire.node, sharded_replay.TOTAL] = said
    assert_mean(estimates(shards, values, 1500), np.concatenate(values).mean())
    assert shards.replay.metrics()["replay/shard-0/staleness"] > 0.5


def test_the_share_of_a_lost_shard_is_drawn_from_the_others(make: Callable[..., Shards]) -> None:
    """A shard is lost in the middle of every draw, and another is back for the next one: means are those of the others."""
    rng = np.random.default_rng(6)
    parts = uneven(rng)
    values = [rng.normal(3 + k, 1, len(part)) for k, part in enumerate(parts)]
    shards = make([numbered(part, seed=k) for k, part in enumerate(parts)], 100)
    shards.wires[0].lose = lambda number: True
    assert_mean(estimates(shards, values, 800), np.concatenate(values[1:]).mean())
    assert shards.table.generation[0] > 100


def test_a_shard_that_is_lost_behind_its_answer_counts_for_what_it_has_answered(make: Callable[..., Shards]) -> None:
    """Shard 0 answers for its part of a batch. Then shard 1 is lost instead of answering, and shard 0 with it: what both lack is
    drawn from shard 2, and every part of the batch has its share of the probabilities."""
    shards = make([numbered(np.ones(50, np.float32), seed=k) for k in range(3)], 90)
    first, second, _ = shards.wires

    def lose(number: int) -> bool:
        first.answers_are(number)
        first.relay.end()
        return True

    second.lose = lose
    keys, probabilities = shards.draw()
    node, parts = keys[:, 1] % 3, np.array([1 / 3, 0, 2 / 3])
    assert np.bincount(node.astype(int)).tolist() == [30, 0, 60]
    np.testing.assert_allclose(probabilities, parts[node.astype(int)] / 50)


@pytest.mark.parametrize("lost", [False, True])
def test_rows_of_a_batch_are_what_their_keys_name(make: Callable[..., Shards], lost: bool) -> None:
    """Of three shards with images; in the middle of every second draw one or two of them are lost."""
    shards = make([played(seed) for seed in range(3)], 60)
    shards.wires[1].lose = shards.wires[2].lose = lambda number: lost and number % 2 == 1
    seen = set()
    for _ in range(12):
        batch = shards.replay.sample(60)
        assert batch is not None
        node = (batch.keys[:, 1] % 3).astype(int)
        seen |= set(node.tolist())
        for k in set(node.tolist()):
            keys = np.ascontiguousarray(batch.keys[node == k, 0])
            there = [np.empty((len(keys), *f.sample_shape), f.dtype) for f in IMAGES.values()]
            numbers, intact = (np.empty(len(keys), np.float32), np.empty(len(keys), np.float32)), np.empty(len(keys), np.uint8)
            shards.replays[k].native.windows(keys, 1, True, there, *numbers, None, intact)
            for name, expected in zip(IMAGES, there, strict=True):
                np.testing.assert_array_equal(batch.first[name].numpy()[node == k], expected)
    assert seen == {0, 1, 2}


def test_a_request_of_a_learner_that_was_killed_is_not_answered_by_the_one_before_it(make: Callable[..., Shards]) -> None:
    """It was killed while it replaced its newest request, which had been answered."""
    shards = make([numbered(np.ones(50, np.float32))], 20)
    assert shards.replay.sample(20) is not None
    table = shards.replay.table
    newest = np.unravel_index(table.asked.argmax(), table.asked.shape)
    shards.replay._await(int(newest[0]), shards.replay._plans[-1].parts[0])
    table.asked[newest] = 0
    assert table.last_number >= table.answered(*map(int, newest))


def test_no_shard_no_batch_and_one_that_comes_is_used(make: Callable[..., Shards]) -> None:
    shards = make([numbered(np.ones(50, np.float32)), numbered(np.ones(50, np.float32), 50)], 20)
    for wire in shards.wires:
        wire.relay.end()
    assert shards.replay.stats().size == 0
    assert shards.replay.sample(20) is None
    shards.wires[1].begin()
    batch = shards.replay.sample(20)
    assert batch is not None
    assert batch.first["obs/x"].min() >= 50
    assert shards.replay.stats().size == 50


def test_a_shard_that_does_not_answer_is_left_out_until_it_does(
    make: Callable[..., Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded_replay, "LATE", 0.3)
    shards = make([numbered(np.ones(50, np.float32)), numbered(np.ones(50, np.float32), 50)], 20)
    shards.wires[0].pause.set()
    for _ in range(3):
        batch = shards.replay.sample(20)
        assert batch is not None
        assert batch.first["obs/x"].min() >= 50
    shards.wires[0].pause.clear()
    for _ in range(1000):
        batch = shards.replay.sample(20)
        assert batch is not None
        if batch.first["obs/x"].min() < 50:
            break
    else:
        raise AssertionError("it was never used again")


def test_a_shard_that_is_lost_before_it_is_asked_is_not_waited_for(
    make: Callable[..., Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = make([numbered(np.ones(50, np.float32)), numbered(np.ones(50, np.float32), 50)], 20)
    ask = shards.replay._ask

    def lose_and_ask(*args: Any) -> None:
        shards.wires[0].relay.end()
        ask(*args)

    monkeypatch.setattr(shards.replay, "_ask", lose_and_ask)
    began = time.monotonic()
    batch = shards.replay.sample(20)
    assert time.monotonic() < began + sharded_replay.LATE
    assert batch is not None
    assert batch.first["obs/x"].min() >= 50


def test_priorities_that_come_late_are_dropped_and_counted(make: Callable[..., Shards]) -> None:
    shards = make([numbered(np.ones(50, np.float32)), numbered(np.ones(50, np.float32), 50)], 40)
    keys, _ = shards.draw()
    mine = keys[:, 1] % 2 == 0
    shards.wires[0].die()
    shards.wires[0].begin()
    assert shards.replay.update(keys, np.full(40, 7, np.float32)) == mine.sum()
    assert shards.replay.stats().late == mine.sum()
    shards.draw()
    shards.draw()
    shards.draw()
    assert shards.replays[0].native.total() == pytest.approx(50)
    assert shards.replays[1].native.total() == pytest.approx(50 + len(np.unique(keys[~mine, 0])) * (7**0.6 - 1))
    # What another has overwritten in the meantime is counted by the shard.
    late = np.stack([np.full(3, 1 << 30, np.uint64), keys[~mine, 1][:3]], 1)
    assert shards.replay.update(late, np.ones(3, np.float32)) == 0
    shards.draw()
    shards.draw()
    shards.draw()
    assert shards.replay.stats().late == mine.sum() + 3
    with pytest.raises(ValueError, match="not finite"):
        shards.replay.update(keys[:1], np.array([np.nan]))


def test_what_a_shard_sent_before_its_end_has_its_keys(make: Callable[..., Shards]) -> None:
    shards = make([numbered(np.ones(50, np.float32))], 20)
    shards.draw()
    shards.wires[0].answers_are(2)  # the next batch is there
    shards.wires[0].die()
    shards.wires[0].begin()
    keys, _ = shards.draw()
    assert shards.replay.update(keys, np.ones(20, np.float32)) == 20
    assert shards.replay.update(shards.draw()[0], np.ones(20, np.float32)) == 0


def test_counters_of_lost_shards_stay_and_eviction_is_to_each_share(make: Callable[..., Shards]) -> None:
    shards = make([numbered(np.ones(50, np.float32), capacity=30, slack=2.0) for _ in range(2)], 20)
    assert shards.replay.stats().inserts == 100
    shards.wires[1].die()
    assert shards.replay.stats().inserts == 100
    assert shards.replay.stats().size == 50
    shards.wires[1].begin()
    assert shards.replay.stats().inserts == 150
    shards.replay.evict()
    for _ in range(4):
        shards.draw()
    assert shards.replay.stats().size == 60
    assert shards.replay.stats().evicted == 40


def test_a_shard_that_is_not_there_does_not_pack_badly(make: Callable[..., Shards]) -> None:
    shards = make([numbered(np.ones(50, np.float32), capacity=34, slack=2.0) for _ in range(3)], 20, capacity=100)
    assert shards.replay.room() == 100
    shards.wires[1].die()
    assert shards.replay.room() == 100
    shards.wires[1].relay.begin(shards.wires[1], 2)  # type: ignore[arg-type]  # it has not yet said what it holds
    assert shards.replay.room() == 100
    for k in range(3):
        shards.table.statistics[k, STATISTICS.index("room")] = 20
    assert shards.replay.room() == 60


def test_four_shards_hold_what_one_machine_may_not(make: Callable[..., Shards], monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of 64 MiB, and 10,000 frames of 84 x 84."""
    limit, image = 64 << 20, ArraySpec((4, 84, 84), np.dtype(np.uint8), 0, 255)
    monkeypatch.setattr(segment, "available_memory", lambda: limit)
    spec = EnvSpec({"obs": image}, ActionSpec((Categorical(3),)), frame_stack=4)
    settings = {"cluster.nodes": 4, "cluster.engine": "static", "replay.capacity": 10_000, "replay.codec": "none"}
    settings |= {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", "apex-dqn", **settings)
    with pytest.raises(MemoryError, match="the replay needs 7"):
        make_replay(of_node(config), spec)
    shards = [make_replay(of_node(override(config, **{"replay.shards": "node"})), spec) for _ in range(4)]
    for k, shard in enumerate(shards):
        assert shard.config.histories == 2
        for history in range(2):
            writer, rows = HistoryWriter(shard, history), 1253
            frames = np.full((rows, 1, 84, 84), k, np.uint8)
            fields = {"obs/obs": frames, "action": np.zeros((rows, 1)), "version": np.zeros(rows)}
            writer.append(fields, np.zeros(rows), np.ones(rows), np.zeros(rows))
            writer.ready(np.ones(1250, np.float32))
        assert shard.held_bytes() < limit
    together = make(shards, 64)
    assert together.replay.stats().size == 10_000
    assert together.replay.held_bytes() > 10_000 * 84 * 84 > limit
    batch = together.replay.sample(64)
    assert batch is not None
    assert set(batch.first["obs/obs"].unique().tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_codecs_go_to_other_processes(compression: str) -> None:
    codec = SampleCodec(NUMBER, 20, 0, compression)
    again = pickle.loads(pickle.dumps(codec))
    drawn = codec.draw(numbered(np.ones(50, np.float32)).native, np.arange(20) + 0.5, 20.0)
    assert drawn is not None
    samples = again.read(again.unpack(codec.encode(3, drawn, np.zeros(10))))
    assert np.array_equal(samples.arrays["frames/obs/x"], drawn.arrays["frames/obs/x"])


def test_a_frame_crosses_once(make: Callable[..., Shards]) -> None:
    """Many samples of few rows: stacks of four frames, before and after, are numbers of a few frames."""
    replay = played(3, rows=60)
    codec = SampleCodec(replay.fields, 200, 0, "none")
    drawn = codec.draw(replay.native, np.arange(200) + 0.5, 200.0)
    assert drawn is not None
    frames = drawn.arrays["frames/obs/image"]
    assert len(np.unique(frames[1:].reshape(len(frames) - 1, -1), axis=0)) == len(frames) - 1 <= 2 * 60
    assert not frames[0].any()
    again = codec.read(codec.unpack(codec.encode(5, drawn, np.zeros(10))))
    assert again.number == 5
    assert all(np.array_equal(again.arrays[name], drawn.arrays[name]) for name in drawn.arrays)
