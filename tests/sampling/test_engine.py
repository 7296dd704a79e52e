"""The real engine, every placement, against a world in which every number is known (`counting.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.runs.metrics import read_jsonl
from headrace.sampling.lanes import Group
from headrace.sampling.rollout_worker import RolloutWorker
from headrace.train import train

pytestmark = pytest.mark.process

COUNTING = str(Path(__file__).with_name("counting.py"))


def counting_config(folder: Path, **settings: object) -> Config:
    defaults = {
        "run.folder": str(folder),
        "run.dashboard": False,
        "run.video": False,
        "run.log_interval": 0.2,
        "sampling.num_workers": 2,
        "sampling.envs_per_worker": 6,
        "sampling.num_groups": 2,
        "sampling.rollout": 7,
        "learning.batch_size": 7 * 3 * 4,
        "learning.total_steps": 3000,
        "learning.algorithm": "counting",
        "learning.device": "cpu",
        "policy.core": "gru",
        "policy.previous_action": True,
        "policy.previous_reward": True,
    }
    return configs.override(Config(env="counting", imports=(COUNTING,)), **{**defaults, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling.placement": "serial"},
        {"sampling.placement": "inline"},
        {"sampling.placement": "served"},
        {"sampling.placement": "served", "sampling.num_policy_workers": 2, "sampling.num_groups": 3},
        pytest.param(
            {"sampling.placement": "served", "sampling.num_groups": 1, "learning.batch_size": 7 * 6 * 2}, marks=pytest.mark.slow
        ),
        {"sampling.placement": "served", "learning.num_minibatches": 2, "learning.num_epochs": 2},
        {"sampling.placement": "device", "learning.batch_size": 8 * 12, "sampling.rollout": 8},
        {"sampling.placement": "device", "learning.batch_size": 8 * 12 // 4, "sampling.rollout": 8},
    ],
    ids=[
        "serial",
        "inline",
        "served",
        "served-2-policies-3-groups",
        "served-1-group",
        "served-minibatches",
        "device",
        "device-4-parts",
    ],
)
def test_every_row_is_where_it_belongs(tmp_path: Path, settings: dict[str, object]) -> None:
    if settings.get("sampling.num_groups") == 3:
        settings["learning.batch_size"] = 7 * 2 * 6
    result = train(counting_config(tmp_path, **settings))
    assert result.reason == "total_steps"
    assert result.global_step >= 3000
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["losses/rows_checked"] > 0
    assert rows[-1]["charts/episodes"] > 250
    if settings["sampling.placement"] == "device":
        parts = 8 * 12 // int(settings["learning.batch_size"])  # type: ignore[call-overload]
        assert rows[-1]["lag/max"] == parts - 1, "the first steps of a trajectory are older by one update for each other part"
    if settings["sampling.placement"] == "serial":
        # all of a batch was chosen by the weights it is learned with, but for the slots begun before the last update
        assert rows[-1]["lag/max"] <= 2
    assert "sampling/faults" not in rows[-1] or rows[-1]["sampling/faults"] == 0


def test_every_group_is_closed_also_when_one_fails_to() -> None:
    closed = []

    class Stubborn:
        def close(self) -> None:
            closed.append(self)
            raise OSError("will not close")

    worker = RolloutWorker.__new__(RolloutWorker)
    worker.groups = [Group(g, Stubborn(), [], False) for g in range(2)]  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="will not close"):
        worker.close()
    assert len(closed) == 2


def test_lag_is_bounded_by_the_slots(tmp_path: Path) -> None:
    # Of one worker: where there are several, the trajectories of one that is held up get older while the others go on.
    config = counting_config(tmp_path, **{"sampling.num_slots": 8, "sampling.num_workers": 1})
    train(config)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    # While everything else is full, slots / slots per batch updates can pass, and one more for the batch that is copied.
    bound = config.num_slots / config.slots_per_batch + 3
    rows = [row for row in rows if "lag/min" in row]  # an interval without an update has no lag
    assert rows
    assert all(0 <= row["lag/min"] <= row["lag/mean"] <= bound for row in rows)


def test_impossible_slots_are_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampling.num_slots \(5\) is too small: 4 groups .* 4 slots make a batch"):
        train(counting_config(tmp_path, **{"sampling.num_slots": 5}))


def test_slots_of_a_slow_start_are_not_taken_for_finished(tmp_path: Path) -> None:
    """Slots are acquired seconds before their first row is written; nobody may hand them to the learner meanwhile."""
    config = counting_config(tmp_path, **{"envs.kwargs": {"first_reset_seconds": 1.3}, "learning.total_steps": 500})
    assert train(config).global_step >= 500
