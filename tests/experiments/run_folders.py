"""Run folders as training writes them, made in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import to_json
from headrace.make_config import make_config

START = 1_790_000_000


def write_run(
    folder: Path,
    env: str = "gym/CartPole-v1",
    algorithm: str = "ppo",
    seed: int = 0,
    score: float = 100.0,
    points: int = 30,
    metrics: dict[str, float] | None = None,
    **settings: Any,
) -> Path:
    """A run of 100 steps per point, one second each, whose return grows to `score`."""
    folder.mkdir(parents=True)
    config = make_config(env, algorithm, **{"seed": seed, **settings})
    (folder / "config.json").write_text(to_json(config))
    facts = {"started": "2026-09-21T14:13:20+0000", "command": ["headrace", "train", "--env", env, "--seed", str(seed)],
             "cores": 2, "memory_bytes": 2**34, "processor": "a processor <with signs>", "python": "3.11", "git": None,
             "packages": {"torch": "2.13.0"}, "platform": "Linux"}  # fmt: skip
    (folder / "system.json").write_text(json.dumps([facts]))
    rng = np.random.default_rng(seed)
    lines, curve = [], []
    for n in range(1, points + 1):
        value = score * n / points + float(rng.normal()) * (n < points)
        lines.append({"global_step": 100 * n, "time": START + n, "charts/SPS_interval": 100.0, "charts/updates": n,
                      "charts/episodic_return_100": value, "time/learner/train": 0.75, "time/learner/wait": 0.25,
                      **(metrics or {})})  # fmt: skip
        curve.append({"global_step": 100 * n, "mean": value, "low": value - 5, "high": value + 5})
    for name, rows in (("metrics.jsonl", lines), ("curve.jsonl", curve)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
