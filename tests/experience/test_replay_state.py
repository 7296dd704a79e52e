"""A restored replay goes on as if it had never stopped."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from history_writer import HistoryWriter
from naive_replay import Episodes, NaiveReplay, check_batch, fields, known, write

import headrace._native.replay as native
from headrace.experience.replay import state as replay_state
from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField


def run(replay: Replay, naive: NaiveReplay, episodes: list[Episodes], rounds: int) -> None:
    writers = [HistoryWriter(replay, history) for history in range(2)]
    for history, this in enumerate(naive.histories):  # what an earlier writer left unfinished
        naive.ready(history, [-1.0] * (len(this.rows) - this.ready))
    for _ in range(rounds):
        for history in range(2):
            rows = episodes[history].rows(7)
            write(writers[history], rows)
            naive.append(history, rows)
            this = naive.histories[history]
            priorities = np.arange(known(this.rows, this.ready, 3), dtype=np.float32) + 0.5
            writers[history].ready(priorities)
            naive.ready(history, priorities.tolist())


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_contents_counters_order_and_keys_survive(tmp_path: Path, codec: str) -> None:
    config = ReplayConfig(histories=2, capacity=90, slack=1.5, minimum=1, codec=codec)  # type: ignore[arg-type]
    columns = fields((6, 5), 3, codec != "none")
    replay, naive = Replay(config, columns), NaiveReplay(config, 3)
    episodes = [Episodes(np.random.default_rng(history), (6, 5)) for history in range(2)]
    run(replay, naive, episodes, 20)
    old = replay.sample_keys(50)[0]  # type: ignore[index]
    replay.evict()
    replay.update(old, np.linspace(0.1, 5.0, 50))
    replay_state.save(replay, tmp_path, contents=True)
    again = Replay(config, columns)
    assert replay_state.restore(again, tmp_path)
    assert again.stats() == replay.stats()
    assert again.native.total() == pytest.approx(replay.native.total(), rel=1e-12)
    for _ in range(3):
        assert again.sample_keys(40)[0].tolist() == replay.sample_keys(40)[0].tolist()  # type: ignore[index]
    assert again.update(old, np.ones(50)) == replay.update(old, np.ones(50))
    check_batch(again, naive, 50)
    run(again, naive, [Episodes(np.random.default_rng(history + 9), (6, 5)) for history in range(2)], 10)
    again.evict()
    check_batch(again, naive, 50)


def test_arrivals_while_the_state_was_saved_are_evicted_in_their_turn(tmp_path: Path) -> None:
    """Counters are written before the histories: with writers that go on, the histories hold later arrivals than the counters."""
    config = ReplayConfig(histories=2, capacity=90, slack=3.0, minimum=1, n_step=1)
    replay, naive = Replay(config, fields((6, 5), 1)), NaiveReplay(config, 1)
    episodes = [Episodes(np.random.default_rng(history), (6, 5)) for history in range(2)]
    run(replay, naive, episodes, 5)
    counters = dataclasses.asdict(replay.stats())
    run(replay, naive, episodes, 5)
    replay_state.save(replay, tmp_path, contents=True)
    state = json.loads((tmp_path / "replay.json").read_text())
    (tmp_path / "replay.json").write_text(json.dumps(state | {"stats": counters}))
    again = Replay(config, replay.fields)
    assert replay_state.restore(again, tmp_path)
    assert again.stats().inserts == replay.stats().inserts > counters["inserts"]
    run(again, NaiveReplay(config, 1), episodes, 5)
    excess = again.stats().size - config.capacity
    assert again.evict() == excess > 0
    assert again.stats().size == config.capacity


def test_transitions_with_the_same_arrival_number_are_evicted() -> None:
    replay = Replay(ReplayConfig(histories=2, capacity=5, slack=20.0, minimum=1, n_step=1), fields((6, 5), 1))
    run(replay, NaiveReplay(replay.config, 1), [Episodes(np.random.default_rng(history), (6, 5)) for history in range(2)], 2)
    replay.stats()
    for history in range(2):
        low, _, ready = replay.native.span(history)
        replay.native.restore_stamps(history, low, np.zeros(ready - low, np.uint64))
    replay.evict()
    assert replay.stats().size == 5


def test_damage_is_noticed_before_anything_is_restored(tmp_path: Path) -> None:
    config = ReplayConfig(histories=2, capacity=90, slack=1.5, minimum=1)
    replay, naive = Replay(config, fields((6, 5), 3)), NaiveReplay(config, 3)
    run(replay, naive, [Episodes(np.random.default_rng(history), (6, 5)) for history in range(2)], 5)
    replay_state.save(replay, tmp_path, contents=True)
    path = tmp_path / "history-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    again = Replay(config, replay.fields)
    with pytest.raises(ValueError, match=r"history-1.* is damaged"):
        replay_state.restore(again, tmp_path)
    assert again.stats().inserts == 0


@pytest.mark.parametrize("damage", [{}, {"samples_per_insert": "many"}])
def test_a_damaged_ratio_is_noticed_before_anything_is_restored(tmp_path: Path, damage: dict[str, str]) -> None:
    config = ReplayConfig(histories=2, capacity=90, minimum=1, samples_per_insert=4.0)
    replay_state.save(Replay(config, fields((6, 5), 3)), tmp_path, contents=True)
    state = json.loads((tmp_path / "replay.json").read_text())
    del state["config"]["samples_per_insert"]
    state["config"] |= damage
    (tmp_path / "replay.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"replay\.json is damaged"):
        replay_state.restore(Replay(config, fields((6, 5), 3)), tmp_path)


def test_counters_alone(tmp_path: Path) -> None:
    replay = Replay(ReplayConfig(histories=2, capacity=90, minimum=1), fields((6, 5), 3))
    replay_state.save(replay, tmp_path, contents=False)
    assert not replay_state.restore(Replay(replay.config, replay.fields), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["replay.json"]


@pytest.mark.parametrize(
    ("longer", "setting"), [({"n_step": 4}, "replay.n_step"), ({"window": 9}, "q.sequence"), ({"period": 2}, "sampling.rollout")]
)
def test_longer_returns_and_sequences_are_refused(tmp_path: Path, longer: dict[str, int], setting: str) -> None:
    """The newest rows of a history, which new episodes follow, would start some that reach over the seam."""
    config = ReplayConfig(histories=2, capacity=90, minimum=1, n_step=3, window=8)
    replay_state.save(Replay(config, fields((6, 5), 3)), tmp_path, contents=True)
    again = Replay(dataclasses.replace(config, **longer), fields((6, 5), 3))
    with pytest.raises(ValueError, match=re.escape(setting)):
        replay_state.restore(again, tmp_path)
    assert replay_state.restore(Replay(dataclasses.replace(config, n_step=2, window=7), fields((6, 5), 3)), tmp_path)
    replay_state.save(again, tmp_path / "counters", contents=False)
    assert not replay_state.restore(Replay(dataclasses.replace(again.config, n_step=9), again.fields), tmp_path / "counters")
    state = json.loads((tmp_path / "replay.json").read_text())
    del state["config"]["window"]  # as of an older version
    (tmp_path / "replay.json").write_text(json.dumps(state))
    assert replay_state.restore(Replay(config, fields((6, 5), 3)), tmp_path)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    replay_state.save(Replay(ReplayConfig(histories=2, capacity=90), fields((6, 5), 3)), tmp_path, contents=True)
    with pytest.raises(ValueError, match="other fields"):
        replay_state.restore(Replay(ReplayConfig(histories=2, capacity=90), fields((6, 6), 3)), tmp_path)
    with pytest.raises(FileNotFoundError):
        replay_state.restore(Replay(ReplayConfig(histories=2, capacity=90), fields((6, 5), 3)), tmp_path / "nowhere")


def test_a_smaller_replay_keeps_the_newest_rows(tmp_path: Path) -> None:
    """`replay.capacity` may be lowered when a run is resumed."""
    large = Replay(ReplayConfig(histories=2, capacity=90, slack=1.5, minimum=1), fields((6, 5), 3))
    small = Replay(dataclasses.replace(large.config, capacity=20), large.fields)
    naive = NaiveReplay(small.config, 3)
    for replay, follower in ((large, NaiveReplay(large.config, 3)), (small, naive)):
        run(replay, follower, [Episodes(np.random.default_rng(history), (6, 5)) for history in range(2)], 20)
    replay_state.save(large, tmp_path, contents=True)
    again = Replay(small.config, small.fields)
    assert replay_state.restore(again, tmp_path)
    assert again.stats().size == small.stats().size > 0
    assert again.native.total() == pytest.approx(small.native.total(), rel=1e-6)
    check_batch(again, naive, 50)
    run(again, naive, [Episodes(np.random.default_rng(history + 9), (6, 5)) for history in range(2)], 10)
    again.evict()
    check_batch(again, naive, 50)


def test_restored_rows_have_the_discount_of_now(tmp_path: Path) -> None:
    """`learning.gamma` may change when a run is resumed; where an episode terminated the discount stays 0."""
    config = ReplayConfig(histories=1, capacity=90, minimum=1, n_step=2)
    replay = Replay(config, {"observation": ReplayField((1,), np.float32, stack=1)})
    numbers, zeros = np.arange(12, dtype=np.float32), np.zeros(12, np.uint8)
    ended = np.where(numbers == 5, native.LAST, 0).astype(np.uint8) | np.where(numbers == 6, native.FIRST, 0).astype(np.uint8)
    discount = np.where(numbers == 5, 0, 0.9).astype(np.float32)
    replay.native.append(0, [numbers[:, None]], np.ones_like(numbers), discount, zeros | ended)
    replay.native.ready(0, np.ones(10, np.float32))
    replay_state.save(replay, tmp_path, contents=True)
    again = Replay(config, replay.fields)
    assert replay_state.restore(again, tmp_path, gamma=0.5)
    batch = again.sample(200)
    assert batch is not None
    at = batch.first["observation"][:, 0].numpy()
    assert {4.0, 5.0} < set(at.tolist())
    np.testing.assert_allclose(batch.discount, np.where((at == 4) | (at == 5), 0, 0.25))
    np.testing.assert_allclose(batch.reward, np.where(at == 5, 1, 1.5))


@pytest.mark.parametrize(("old", "new"), [(8.0, 2.0), (2.0, 8.0), (None, 4.0), (4.0, None)])
def test_another_ratio_counts_from_the_restored_state_on(tmp_path: Path, old: float | None, new: float | None) -> None:
    """It does not have to be made up for the transitions of before, for which everybody would wait."""
    config = ReplayConfig(histories=2, capacity=90, minimum=10, samples_per_insert=old, ratio_band=20)
    replay, naive = Replay(config, fields((6, 5), 3)), NaiveReplay(config, 3)
    run(replay, naive, [Episodes(np.random.default_rng(history), (6, 5)) for history in range(2)], 5)
    while old is not None and replay.may_sample(10):
        replay.sample_keys(10)
    replay_state.save(replay, tmp_path, contents=True)
    again = Replay(dataclasses.replace(config, samples_per_insert=new), replay.fields)
    assert replay_state.restore(again, tmp_path)
    assert again.may_insert()
    drawn = 0
    while new is not None and again.may_sample(1):
        again.sample_keys(1)
        drawn += 1
    assert drawn <= 40
    run(again, naive, [Episodes(np.random.default_rng(history + 9), (6, 5)) for history in range(2)], 3)
    assert again.may_sample(1)
