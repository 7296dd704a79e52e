"""`ReplayExperience` by itself: a trajectory store, whose slots the tests finish, and what is replayed of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace.config import Config
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.experience.batch import Batch, Filling
from headrace.experience.replay import state as replay_state
from headrace.experience.replay.buffer import Replay
from headrace.experience.replay.experience import ReplayExperience
from headrace.experience.replay.layout import make_replay
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.run_control import RunControl
from headrace.shm.trajectory_store import TrajectoryStore

NUMBER, INTEGER = ArraySpec((), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int32))
SPEC = EnvSpec({"obs": ArraySpec((2,), np.dtype(np.float32))}, ActionSpec((Categorical(3),)))
T, C, SLOTS = 5, 2, 4
STEPS = T * C
"""Steps, and transitions as returns are of one step, of a slot."""


class Rig:
    """A learner's experience and the other side of it: `finish` finishes slots of two environments whose episodes never end.

    The observation is (environment, step), the reward and the action's value are the step. One game is said to end in each slot
    for each environment, with its return the step.
    """

    def __init__(self, collect: bool = False, infos: bool = False, valued: bool = True, **settings: Any) -> None:
        defaults = {
            "sampling.num_workers": 1, "sampling.envs_per_worker": 2 * C, "sampling.rollout": T, "learning.batch_size": 8,
            "learning.algorithm": "apex-dqn", "learning.experience": "replay", "learning.gamma": 0.5, "learning.device": "cpu",
            "replay.minimum": 30, "replay.capacity": 400, "replay.n_step": 1, "replay.prefetch": 2, "replay.evict_period": 3,
        }  # fmt: skip
        self.config = configs.override(Config(env="none"), **{**defaults, **settings})
        spec = replace(SPEC, info_metrics=("a", "b") if infos else ())
        fields = trajectory_fields(spec, 4, {"env_index": INTEGER} | ({"q": NUMBER} if valued else {}))
        self.store = TrajectoryStore(fields, SLOTS, T, C)
        self.control = RunControl({"rollout": 1, "learner": 1})
        self.replay = make_replay(self.config, SPEC, 4)
        self.collected, self.step = 0, 0
        self.experience = self.make(self._collect if collect else None)

    def make(self, collect: Callable[[int], None] | None = None) -> ReplayExperience:
        """An experience on the same store and replay; environment 1's games are reported, environment 0's are not."""
        return ReplayExperience(self.config, self.store, self.control, self.replay, collect, range(1, 2))

    def _collect(self, n: int) -> None:
        self.collected += n
        for _ in range(n):
            assert self.finish()

    def finish(self, timeout: float = 5, **fields: float) -> bool:
        """Finish one slot; False if none became free. `fields`: other numbers than those above."""
        slot = self.store.acquire(0, timeout)
        if slot is None:
            return False
        arrays = {name: array[slot] for name, array in self.store.arrays.items()}
        steps = self.step + np.arange(T + 1)
        for array in arrays.values():
            array[:] = 0
        arrays["obs/obs"][:] = np.stack([np.broadcast_to(np.arange(C), (T + 1, C)), np.repeat(steps[:, None], C, 1)], -1)
        arrays["valid"][:] = True
        arrays["first"][0] = self.step == 0
        arrays["env_index"][:] = np.arange(C)
        arrays["version"][:] = arrays["reward"][:] = steps[:T, None]
        arrays["episode_return"][:] = np.nan
        arrays["episode_return"][2] = arrays["episode_length"][2] = steps[2]
        if "episode_info" in arrays:
            arrays["episode_info"][2] = 7, 8
        for name, number in fields.items():
            arrays[name][:] = number
        self.step += T
        self.store.finish(slot, self.step // T)
        return True

    def next_batch(self, timeout: float = 60) -> Batch:
        """The next batch, waiting through `Filling`."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            got = self.experience.next(timeout=0.2)
            assert got is not None
            if isinstance(got, Batch):
                return got
        raise AssertionError("no batch came")

    def written(self, inserts: int) -> None:
        """Wait until so many transitions are in the replay."""
        until(lambda: self.replay.stats().inserts >= inserts)

    def close(self) -> None:
        self.control.stop()
        self.store.close()
        for thread in self.experience._threads:
            thread.join(60)
            assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def rig() -> Any:
    """Makes rigs and closes them."""
    rigs = []

    def make(**settings: Any) -> Rig:
        rigs.append(Rig(**settings))
        return rigs[-1]

    yield make
    for made in rigs:
        made.close()


def test_a_trajectory_that_comes_late_is_not_taken_for_the_next(rig: Callable[..., Rig]) -> None:
    """A learner was killed between a ticket and its slot; the ticket is found after the lane's next trajectories were written."""
    r = rig(**{"replay.minimum": 1, "replay.n_step": 3, "learning.batch_size": 64})
    r.finish()
    r.finish()
    lost = [r.store._ready.get(timeout=0) for _ in range(2)]
    r.store.offer_again(lost[0])
    for _ in range(2):
        r.finish()
    r.next_batch()
    r.written(C * (2 + 7))  # the newest three rows before a gap start no transition
    r.store.offer_again(lost[1])
    r.finish()
    r.written(C * (2 + 7 + 2 + 2))
    steps = set()
    for _ in range(30):
        r.experience.release()
        data = r.next_batch().data
        step = data["obs/obs"][:, 1].numpy()
        np.testing.assert_allclose(data["reward"].numpy(), 1.75 * step + 1, err_msg=str(step))
        np.testing.assert_array_equal(data["next/obs"][:, 1].numpy(), step + 3)
        steps |= set(step.tolist())
    assert steps == {0, 1, 5, 6, *range(10, 17), 20, 21}


def test_filling_says_what_arrived_until_the_minimum_is_there(rig: Callable[..., Rig]) -> None:
    r = rig()
    steps, returns = 0, list[float]()
    began = time.monotonic()
    empty = r.experience.next(timeout=0.1)
    assert isinstance(empty, Filling)
    assert empty.arrivals.steps == 0
    assert 0.1 <= time.monotonic() - began < 60

    def take() -> Batch | Filling:
        nonlocal steps
        got = r.experience.next(timeout=0.05)
        assert got is not None
        steps += got.arrivals.steps
        returns.extend(got.arrivals.returns.tolist())
        return got

    for slots in (1, 2):  # 8 and 18 transitions of 30, the newest row of each environment waits for its value
        r.finish()
        r.written(slots * STEPS - C)
        while steps < slots * STEPS:
            assert isinstance(take(), Filling)
        assert steps == slots * STEPS
    r.finish()
    r.finish()
    until(lambda: isinstance(take(), Batch))
    r.written(4 * STEPS - C)
    while steps < 4 * STEPS:
        r.experience.release()
        take()
    assert steps == 4 * STEPS  # nothing twice, nothing left out
    assert sorted(returns) == [2, 7, 12, 17]  # of the reported environment only


def test_numbers_of_infos_arrive(rig: Callable[..., Rig]) -> None:
    r = rig(collect=True, infos=True)
    arrivals = r.experience.next().arrivals
    assert arrivals.returns.tolist() == [2.0]
    assert arrivals.infos.tolist() == [[7.0, 8.0]]


def test_a_batch_holds_transitions_and_their_keys(rig: Callable[..., Rig]) -> None:
    r = rig()
    for _ in range(4):
        r.finish()
    batch = r.next_batch()
    assert set(batch.data) == {"obs/obs", "next/obs", "action", "version", "reward", "discount", "weights"}
    assert batch.valid is None
    assert batch.keys is not None
    env, step = batch.data["obs/obs"].T
    assert batch.data["next/obs"].tolist() == [[e, s + 1] for e, s in zip(env.tolist(), step.tolist(), strict=True)]
    assert batch.data["reward"].tolist() == step.tolist() == batch.version.tolist()
    assert batch.data["discount"].tolist() == [0.5] * 8
    assert batch.keys.tolist() == [int(e) << 40 | int(s) for e, s in zip(env.tolist(), step.tolist(), strict=True)]


def test_new_priorities_are_sampled_by_and_the_excess_is_evicted_now_and_then(rig: Callable[..., Rig]) -> None:
    r = rig(**{"replay.capacity": 30, "replay.slack": 3.0, "replay.alpha": 1.0})
    for _ in range(4):
        r.finish()
    batch = r.next_batch()
    r.written(4 * STEPS - C)
    assert batch.keys is not None
    sizes = []
    for _ in range(3):
        r.experience.update_priorities(batch.keys, torch.full((8,), 1e9))
        sizes.append(r.replay.stats().size)
    assert sizes == [38, 38, 30]  # replay.evict_period is 3
    held = np.empty((C, r.step - 1), np.float32)
    for env in range(C):
        r.replay.native.read_priorities(env, 0, np.empty(r.step - 1, np.uint64), held[env])
    raised = {int(env) << 40 | int(t) for env, t in np.argwhere(held == np.float32(1e9))}
    assert raised <= set(batch.keys.tolist())
    assert (held >= 0).sum() == 30
    for _ in range(2 + r.config.replay.prefetch):  # what was sampled in advance comes first
        r.experience.release()
        last = r.next_batch()
    assert last.keys is not None
    assert set(last.keys.tolist()) <= raised
    with pytest.raises(ValueError, match="finite and not negative"):
        r.experience.update_priorities(batch.keys, torch.full((8,), torch.nan))


def test_new_transitions_whose_error_is_not_known_have_the_largest_priority_so_far(rig: Callable[..., Rig]) -> None:
    r = rig(valued=False, **{"replay.minimum": 10})
    for _ in range(2):
        r.finish()
    batch = r.next_batch()
    r.written(2 * STEPS - C)
    r.experience.update_priorities(batch.keys, torch.linspace(0.1, 8.0, 8))
    r.finish()
    r.written(3 * STEPS - C)
    held = np.empty((C, r.step - 1), np.float32)
    for env in range(C):
        r.replay.native.read_priorities(env, 0, np.empty(r.step - 1, np.uint64), held[env])
    assert (held[:, 2 * T - 1 :] == 8).all()
    assert (held[:, : 2 * T - 1] == 1).any(), "of those before, as long as they were not drawn"


def test_the_replay_has_room_for_the_rows_that_a_sequence_needs_behind_its_start(rig: Callable[..., Rig]) -> None:
    """Sequences of 61 rows, and a capacity of 50 rows in two histories: the minimum is reached, and kept."""
    sequences = {"policy.core": "lstm", "q.burn_in": 20, "q.sequence": 40}
    r = rig(collect=True, **sequences, **{"replay.capacity": 50, "replay.minimum": 50})
    for _ in range(20):
        r.experience.next()
        r.experience.release()
    for _ in range(20):
        assert isinstance(r.experience.next(), Batch)
        r.experience.release()
    assert r.replay.room() == r.replay.config.minimum == 50 // T


def test_a_batch_is_not_overwritten_before_it_is_released(rig: Callable[..., Rig]) -> None:
    r = rig(**{"replay.prefetch": 1})
    for _ in range(4):
        r.finish()
    batch = r.next_batch()
    before = {name: x.clone() for name, x in batch.data.items()}
    until(lambda: r.replay.stats().samples >= 2 * 8)
    time.sleep(0.3)
    assert r.replay.stats().samples == 2 * 8  # the one in use and one in advance
    assert all(batch.data[name].equal(x) for name, x in before.items())
    for batches in range(3, 8):
        r.experience.release()
        batch = r.next_batch()
        until(lambda batches=batches: r.replay.stats().samples >= batches * 8)  # type: ignore[misc]


def test_the_ratio_holds_rollout_workers_back_until_enough_is_sampled(rig: Callable[..., Rig]) -> None:
    """4 samples per insert, minimum 30, band 2 x max(8, 4 x 10): at most 50 transitions before the first sample."""
    r = rig(**{"replay.samples_per_insert": 4.0, "replay.prefetch": 1})
    assert r.replay.config.ratio_band == 80
    assert isinstance(r.experience.next(timeout=0), Batch | Filling)
    finished = 0
    # Until the writer is held back, and not just slow; two batches are sampled whatever the learner does.
    while r.store.qsize() < SLOTS or r.replay.may_insert() or r.replay.stats().samples < 2 * 8:
        finished += r.finish(timeout=0.1)
        assert finished < 50
    stuck = r.replay.stats()
    assert stuck.inserts < 30 + 80 / 4 + (stuck.samples + STEPS) / 4 + STEPS
    assert r.store.qsize() == SLOTS
    batches = 0
    while not r.finish(timeout=0):
        r.next_batch()
        r.experience.release()
        batches += 1
        assert batches < 50
        time.sleep(0.01)
    assert batches >= 1


def test_the_ratio_holds_the_learner_back_until_enough_arrives(rig: Callable[..., Rig]) -> None:
    r = rig(**{"replay.samples_per_insert": 1.0})
    for _ in range(4):
        r.finish()
    # 38 transitions are there, 30 of them the minimum, and samples may be 2 x max(8, 10) ahead.
    for _ in range((38 - 30 + 20) // 8):
        r.next_batch()
        r.experience.release()
    assert isinstance(r.experience.next(timeout=0.5), Filling)
    r.finish()
    assert isinstance(r.next_batch(), Batch)


def test_the_end_of_the_run_wakes_who_waits_and_stays_the_end(rig: Callable[..., Rig]) -> None:
    r = rig()

    def end() -> None:
        r.control.stop()
        r.store.close()

    threading.Timer(0.3, end).start()
    began = time.monotonic()
    assert r.experience.next() is None
    assert time.monotonic() - began < 60
    assert [r.experience.next() for _ in range(4)] == [None] * 4
    for thread in r.experience._threads:
        thread.join(60)
        assert not thread.is_alive()


def test_what_fails_while_writing_is_raised_for_the_learner(rig: Callable[..., Rig]) -> None:
    r = rig()
    r.finish(reward=np.inf)
    for _ in range(2):  # it does not go away
        with pytest.raises(ValueError, match="environment 0: the reward of row 0 is not finite"):
            r.experience.next(timeout=60)


def test_what_fails_while_sampling_is_raised_for_the_learner(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig()

    def sample(*arguments: object, **settings: object) -> None:
        raise RuntimeError("no library for the codec")

    monkeypatch.setattr(r.replay, "sample", sample)
    for _ in range(4):
        r.finish()
    with pytest.raises(RuntimeError, match="no library for the codec"):
        r.next_batch()


def test_serial_makes_one_update_per_trajectory(rig: Callable[..., Rig]) -> None:
    r = rig(collect=True)
    kinds = []
    for _ in range(6):
        got = r.experience.next()
        kinds.append(type(got))
        assert got is not None
        assert got.arrivals.steps == STEPS
        r.experience.release()
    assert r.collected == 6
    assert kinds == [Filling] * 3 + [Batch] * 3  # 8, 18, 28 transitions are below the minimum
    assert not r.experience._threads
    r.control.stop()
    assert r.experience.next() is None
    assert r.collected == 6


def test_what_entered_the_replay_counts_at_the_end_of_the_run(rig: Callable[..., Rig]) -> None:
    r = rig()
    r.experience.next(timeout=0)  # from now on the threads work
    r.finish()
    r.written(8)
    r.control.stop()
    until(lambda: bool(r.experience._arrived))
    got = r.experience.next()
    assert isinstance(got, Filling)
    assert got.arrivals.steps == STEPS
    assert r.experience.next() is None


def test_serial_makes_as_many_updates_as_the_ratio_allows(rig: Callable[..., Rig]) -> None:
    r = rig(collect=True, **{"replay.samples_per_insert": 4.0})
    batches = collected = 0
    for _ in range(60):
        got = r.experience.next()
        batches += isinstance(got, Batch)
        r.experience.release()
        collected = r.collected
    samples, due = 8 * batches, 4 * (STEPS * collected - C - 30)
    assert abs(samples - due) <= r.replay.config.ratio_band + 8
    assert batches > 45


def test_sequences_are_time_first_with_the_core_state_before_them(rig: Callable[..., Rig]) -> None:
    r = rig(collect=True, **{"policy.core": "gru", "q.burn_in": 2, "q.sequence": 4, "replay.minimum": 10, "replay.slack": 2.0})
    while not isinstance(batch := r.experience.next(), Batch):
        r.experience.release()
    rows = 2 + 4 + 1
    step = batch.data["obs/obs"][..., 1]
    assert step.shape == (rows, 8)
    assert (step[0] % T == 0).all()  # a sequence starts where a trajectory does
    assert (step - step[0] == step.new_tensor(range(rows))[:, None]).all()
    assert batch.data["core"].shape[0] == 8
    assert batch.version.equal(step.int())
    assert batch.data["weights"].shape == (8,)


def test_metrics_are_rates_since_the_last_call(rig: Callable[..., Rig]) -> None:
    r = rig(collect=True)
    for _ in range(6):
        r.experience.next()
        r.experience.release()
    first, second = r.experience.metrics(), r.experience.metrics()
    inserts = 6 * STEPS - C
    assert first["replay/size"] == second["replay/size"] == inserts
    assert first["replay/ratio"] == pytest.approx(3 * 8 / inserts)
    assert first["replay/inserts_per_second"] > 0
    assert second["replay/inserts_per_second"] == second["replay/samples_per_second"] == 0
    assert np.isnan(second["replay/ratio"])


def test_a_replay_whose_learner_was_killed_while_it_was_restored_says_so(
    rig: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = (rig(collect=True, **{"replay.checkpoint_contents": True}) for _ in range(2))
    for _ in range(5):
        whole.experience.next()
        whole.experience.release()
    whole.experience.save(tmp_path)
    state, restore = whole.experience.get_state(), replay_state._restore_history

    def killed(replay: Replay, history: int, *where: Any) -> int:
        if history == 1:
            raise KeyboardInterrupt
        return restore(replay, history, *where)

    monkeypatch.setattr(replay_state, "_restore_history", killed)
    with pytest.raises(KeyboardInterrupt):
        part.experience.restore(tmp_path, state)
    held = part.replay.stats().size
    assert 0 < held < whole.replay.stats().size
    (said,) = part.make(part._collect).restore(tmp_path, state)
    assert said.startswith(f"The replay holds {held} transitions, a part of the checkpoint's: its learner ended while it")
    for damaged in (b"{}", b""):
        (tmp_path / "replay" / "replay.json").write_bytes(damaged)
        assert part.make(part._collect).restore(tmp_path, state) == []


def test_a_replay_that_outlived_its_learner_stays_as_it_is(rig: Callable[..., Rig], tmp_path: Path) -> None:
    r = rig(collect=True, **{"replay.checkpoint_contents": True})
    for _ in range(5):
        r.experience.next()
        r.experience.release()
    r.experience.save(tmp_path)
    state, stats = r.experience.get_state(), r.replay.stats()
    assert state is not None
    assert r.make(r._collect).restore(tmp_path, state) == []
    assert r.replay.stats() == stats
    other = rig(collect=True, **{"replay.checkpoint_contents": True})
    assert other.experience.restore(tmp_path, state) == [f"The replay goes on with {stats.size:,} transitions"]
    assert other.replay.stats() == stats
    other.step = r.step
    for this in (r, other):
        this.experience.next()
    assert other.replay.stats() == r.replay.stats()
    (tmp_path / "replay" / "history-1.safetensors").write_bytes(b"nothing")
    third = rig(collect=True)
    assert "is damaged" in third.experience.restore(tmp_path, state)[0]
    assert third.replay.stats().inserts == 0
