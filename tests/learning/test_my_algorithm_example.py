"""The example of an algorithm of one's own: every placement of its rows in minibatches, and that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.make_config import make_config
from headrace.runs.callbacks import TrainResult
from headrace.runs.metrics import read_jsonl
from headrace.train import train

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_algorithm.py"


def run(folder: Path, env: str, **settings: Any) -> tuple[TrainResult, dict[str, Any]]:
    config = make_config(
        env, "reinforce", [str(EXAMPLE)],
        **{
            "run.folder": str(folder), "run.dashboard": False, "run.video": False,
            "learning.device": "cpu", "learning.num_threads": 1, "sampling.placement": "serial", **settings,
        },
    )  # fmt: skip
    return train(config), read_jsonl(folder / "metrics.jsonl")[-1]


WORLDS = [("gym/CartPole-v1", "none"), ("gym/CartPole-v1", "gru"), ("torch/CartPole-v1", "gru"), ("gym/Pendulum-v1", "none")]


@pytest.mark.parametrize("returns", ["gae", "vtrace"])
@pytest.mark.parametrize(("env", "core"), WORLDS)
def test_it_has_whole_trajectories_whatever_the_settings(tmp_path: Path, env: str, core: str, returns: str) -> None:
    small: dict[str, Any] = {
        "policy.core": core,
        "policy.core_size": 8,
        "learning.total_steps": 2048,
        "learning.returns": returns,
    }
    small |= {"sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 16}
    result, last = run(tmp_path, env, **small)
    assert result.reason == "total_steps"
    assert np.isfinite([last["losses/policy"], last["losses/baseline"], last["losses/entropy"]]).all()


@pytest.mark.process
def test_it_learns(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "gym/CartPole-v1", **{"learning.total_steps": 150_000, "run.goal": 150.0})
    assert result.reason == "goal", result.mean_return
