"""The replay in the real engine, with the counting world."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import config as configs
from headrace.config import Config
from headrace.runs.metrics import read_jsonl
from headrace.train import train

pytestmark = pytest.mark.process

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
    assert max(row.get("losses/begun_inside", 0) for row in rows) > 1, "core states that are not zero were compared"


@pytest.mark.slow
def test_samples_per_insert_is_kept_whoever_is_faster(tmp_path: Path) -> None:
    config = counting_config(tmp_path, **{"replay.samples_per_insert": 4.0, "learning.total_steps": 6000})
    train(config)
    last = read_jsonl(tmp_path / "metrics.jsonl")[-1]
    samples = last["charts/updates"] * 64
    band = 2 * max(64, 4 * 7 * 3) + 5 * 64  # the band, and what was sampled ahead
    assert abs(samples - 4 * (last["global_step"] - 300)) <= band + 4 * 7 * 12
