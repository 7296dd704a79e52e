"""The replay in the real engine, with the counting world; and what the feeder makes of stacks and resets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace import config as configs
from headrace.config import Config
from headrace.experience.replay.buffer import Field, Replay, ReplayConfig
from headrace.experience.replay.writer import HistoryFeed
from headrace.runs.metrics import read_jsonl
from headrace.train import train

HERE = Path(__file__).parent
IMPORTS = (str(HERE.parent / "sampling" / "counting.py"), str(HERE / "counting_replay.py"))


def counting_config(folder: Path, **settings: object) -> Config:
    defaults = {
        "run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 0.2,
        "sampling.num_workers": 2, "sampling.envs_per_worker": 6, "sampling.rollout": 7,
        "learning.algorithm": "counting-replay", "learning.experience": "replay", "learning.batch_size": 64,
        "learning.gamma": 0.5, "learning.total_steps": 4000, "learning.device": "cpu", "learning.num_threads": 1,
        "replay.capacity": 1000, "replay.slack": 2.0, "replay.minimum": 300, "replay.evict_period": 5, "replay.prefetch": 4,
    }  # fmt: skip
    return configs.override(Config(env="counting", imports=IMPORTS), **{**defaults, **settings})


@pytest.mark.parametrize("placement", ["serial", *(pytest.param(p, marks=pytest.mark.slow) for p in ("inline", "served"))])
def test_every_replayed_transition_is_right(tmp_path: Path, placement: str) -> None:
    result = train(counting_config(tmp_path, **{"sampling.placement": placement}))
    assert result.reason == "total_steps"
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["losses/rows_checked"] == 64
    assert rows[-1]["replay/evicted"] > 0
    assert 300 <= rows[-1]["replay/size"] < 2000


def test_copies_of_every_transition(tmp_path: Path) -> None:
    train(counting_config(tmp_path, **{"sampling.placement": "serial", "replay.copies": 3, "replay.capacity": 10**5}))
    row = read_jsonl(tmp_path / "metrics.jsonl")[-1]
    assert row["losses/rows_checked"] == 64
    waiting = 12 * 3 * 3  # histories' newest rows that have no n-step return yet
    assert 3 * row["global_step"] - waiting <= row["replay/size"] <= 3 * row["global_step"]


@pytest.mark.parametrize(("placement", "minutes"), [("serial", 0.02), pytest.param("inline", 0.3, marks=pytest.mark.slow)])
def test_a_run_that_waits_for_the_minimum_counts_its_steps_and_ends_in_time(
    tmp_path: Path, placement: str, minutes: float
) -> None:
    endless = {"replay.minimum": 10**6, "replay.capacity": 10**6, "learning.total_steps": 10**9, "run.max_minutes": minutes}
    result = train(counting_config(tmp_path, **endless, **{"sampling.placement": placement}))
    assert result.reason == "max_minutes"
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["global_step"] == result.global_step > 0
    assert rows[-1]["charts/updates"] == 0
    assert rows[-1]["replay/size"] > 0
    more = train(counting_config(tmp_path, **endless, **{"sampling.placement": placement}))
    assert more.global_step > result.global_step


def test_every_row_and_core_state_of_replayed_sequences_is_right(tmp_path: Path) -> None:
    sequences = {"learning.algorithm": "counting-sequences", "policy.core": "gru", "q.burn_in": 4, "q.sequence": 9}
    result = train(counting_config(tmp_path, **sequences, **{"sampling.placement": "serial", "learning.batch_size": 16}))
    assert result.reason == "total_steps"
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["losses/rows_checked"] == 16 * 16  # 4 + 9 rows and 3 for the last targets
    assert rows[-1]["replay/evicted"] > 0


@pytest.mark.slow
def test_samples_per_insert_is_kept_whoever_is_faster(tmp_path: Path) -> None:
    config = counting_config(tmp_path, **{"replay.samples_per_insert": 4.0, "learning.total_steps": 6000})
    train(config)
    last = read_jsonl(tmp_path / "metrics.jsonl")[-1]
    samples = last["charts/updates"] * 64
    band = 2 * max(64, 4 * 7 * 3) + 5 * 64  # the band, and what was sampled ahead
    assert abs(samples - 4 * (last["global_step"] - 300)) <= band + 4 * 7 * 12


@pytest.mark.parametrize("style", ["repeat", "zeros", "continue", "noise", "mixed"])
def test_stacks_come_back_as_acting_saw_them_however_episodes_begin(style: str) -> None:
    """One history, slots of 8 rows, episodes of 1 to 12 steps; frames are numbered, two channels each."""
    rng = np.random.default_rng(0)
    fields = [Field("obs/obs", (2, 3, 3), "uint8", stack=3), Field("action", (1,), "int32"), Field("version", (), "int32")]
    replay = Replay(ReplayConfig(histories=1, capacity=600, slack=2.0, n_step=2, minimum=1), fields)
    history, stacks, rows = HistoryFeed(replay, 0), {}, []
    stack, age, length, ended = np.zeros((6, 3, 3), np.uint8), 0, 5, True
    for number in range(1, 401):
        final = not ended and age == length
        frame = np.full((2, 3, 3), 1 + number % 250, np.uint8)
        frame[1] = number // 250
        if ended:
            how = rng.choice(["repeat", "zeros", "continue", "noise"]) if style == "mixed" else style
            if how == "zeros" or (how == "continue" and number == 1):
                stack = np.zeros((6, 3, 3), np.uint8)
            elif how == "noise":  # what no rule can guess
                stack = rng.integers(0, 256, (6, 3, 3)).astype(np.uint8)
            elif how == "repeat":
                stack = np.tile(frame, (3, 1, 1))
            age, length = 0, int(rng.integers(1, 13))
        stack = np.concatenate([stack[2:], frame])
        stacks[number] = stack
        over = not final and age + 1 == length
        rows.append({"obs/obs": stack, "action": np.array([number], np.int32), "version": np.int32(number), "first": ended,
                     "valid": not final, "reward": 0.0 if final else 1.0, "terminated": over and length % 2 == 0,
                     "truncated": over and length % 2 == 1, "q": 0.0, "value": 0.0})  # fmt: skip
        age, ended = age + 1, final
    for start in range(0, 400, 8):
        history.add({name: np.stack([row[name] for row in rows[start : start + 8]]) for name in rows[0]}, 0.9)
    batch = replay.sample(500)
    assert batch is not None
    starts = batch.first["version"].tolist()
    assert len(set(starts)) > 200
    for i, t in enumerate(starts):
        np.testing.assert_array_equal(batch.first["obs/obs"][i], stacks[t])
        ends = [k for k in (0, 1) if rows[t - 1 + k]["terminated"] or rows[t - 1 + k]["truncated"]]
        n = ends[0] + 1 if ends else 2
        assert batch.reward[i] == pytest.approx(sum(0.9**k for k in range(n)))
        if batch.discount[i]:
            np.testing.assert_array_equal(batch.next["obs/obs"][i], stacks[t + n])
        assert (batch.discount[i] == 0) == bool(rows[t + n - 2]["terminated"])


def same_step_slab(T: int, ends: Callable[[int], bool]) -> dict[str, np.ndarray]:
    """Rows of an environment that resets in the same step; observation t is t, the last one of an episode 100 + t."""
    t = np.arange(T)
    over = np.array([ends(int(i)) for i in t])
    return {
        "obs/obs": t[:, None].astype(np.float32), "final_obs/obs": 100 + t[:, None].astype(np.float32),
        "version": t.astype(np.int32),
        "action": t[:, None].astype(np.int32), "first": np.concatenate(([True], over[:-1])), "valid": np.ones(T, bool),
        "reward": np.ones(T, np.float32), "terminated": np.zeros(T, bool), "truncated": over, "q": np.zeros(T, np.float32),
        "value": np.full(T, 2.0, np.float32),
    }  # fmt: skip


def test_same_step_environments_bootstrap_from_the_true_last_observation() -> None:
    fields = [Field("obs/obs", (1,), "float32", stack=1), Field("action", (1,), "int32"), Field("version", (), "int32")]
    replay = Replay(ReplayConfig(histories=1, capacity=100, n_step=2, minimum=1), fields)
    feed = HistoryFeed(replay, 0)
    feed.add(same_step_slab(10, lambda t: t % 4 == 3), 0.5)
    batch = replay.sample(200)
    assert batch is not None
    for t, after, discount in zip(batch.first["obs/obs"][:, 0].tolist(), batch.next["obs/obs"][:, 0].tolist(),
                                  batch.discount.tolist(), strict=True):  # fmt: skip
        last = t // 4 * 4 + 3
        assert (after, discount) == ((t + 2, 0.25) if t + 2 <= last else (100 + last, 0.5 ** (last - t + 1)))
