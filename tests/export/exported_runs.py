"""Run folders of policies that have learned for one update, and exports of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace
from headrace.make_config import make_config

WORLDS = str(Path(__file__).with_name("odd_worlds.py"))
REPLAY = {"replay.capacity": 512, "replay.minimum": 32, "q.burn_in": 2, "q.sequence": 4}


def trained(env: str, folder: Path, **settings: Any) -> str:
    """The run folder of a policy that has learned from a few steps, in float32."""
    tiny = {
        "run.folder": str(folder), "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 4,
        "sampling.rollout": 4, "learning.batch_size": 16, "learning.total_steps": 64, "learning.algorithm": "ppo",
        "learning.device": "cpu", "learning.precision": "float32", "policy.mlp": [8], "policy.core_size": 8, "policy.hidden": 16,
        "run.dashboard": False, "run.video": False, "run.log_interval": 1000.0,
    }  # fmt: skip
    return headrace.train(make_config(env, **(tiny | settings))).folder
