"""Runs of a few steps, for tests of what is done with a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace
from headrace.make_config import make_config

TINY = {
    "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 4,
    "sampling.rollout": 4, "learning.batch_size": 16, "learning.total_steps": 16, "learning.algorithm": "ppo",
    "learning.num_minibatches": 1, "learning.device": "cpu", "policy.mlp": [4], "run.dashboard": False, "run.video": False,
    "run.log_interval": 1000.0,
}  # fmt: skip


def trained(env: str, folder: Path, **settings: Any) -> str:
    """The run folder of a policy that has learned from 16 steps."""
    return headrace.train(make_config(env, **TINY | {"run.folder": str(folder)} | settings)).folder
