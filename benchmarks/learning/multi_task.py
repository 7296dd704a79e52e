"""One policy that learns several tasks at once (Petrenko et al. 2020, appendix A.2), with equal samples or equal compute.

    python benchmarks/learning/multi_task.py --minutes 10
    python benchmarks/learning/multi_task.py --tasks vizdoom/basic vizdoom/health_gathering --name vizdoom --share compute

Trains with the defaults for `--minutes`, then plays `--games` games of every task. Printed and kept are each task's mean return
when it was first known and at the end of training, its share of the samples, and the games played afterwards, in
results/multi-task-NAME.json; .png has a curve for each task.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import headrace
from headrace.evaluation.play import evaluate
from headrace.runs.metrics import read_jsonl
from headrace.runs.plots import task_curves

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402


def progress(rows: list[dict[str, float]], task: str) -> dict[str, float]:
    """What a task's metrics were first and last."""
    returns = [row[f"tasks/{task}/episodic_return"] for row in rows if f"tasks/{task}/episodic_return" in row]
    shares = [row[f"tasks/{task}/share"] for row in rows if f"tasks/{task}/share" in row]
    return {"first": round(returns[0], 2), "last": round(returns[-1], 2), "share": round(sum(shares) / len(shares), 3)}


def main() -> None:
    """Train, play, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["atari/pong", "atari/boxing", "atari/breakout"])
    parser.add_argument("--name", default="atari", help="of the result files")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--share", choices=("compute", "samples"), default="samples")
    parser.add_argument("--games", type=int, default=10, help="of each task, afterwards")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    folder = asked.runs / f"multi-task-{asked.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    settings: dict[str, Any] = {"envs.task_share": asked.share, "run.max_minutes": asked.minutes, "seed": asked.seed}
    load = os.getloadavg()[0]
    fixed = {"run.folder": str(folder), "run.video": False, "run.dashboard": False}
    headrace.train(headrace.make_config(asked.tasks, **settings, **fixed))
    rows = read_jsonl(folder / "metrics.jsonl")
    found = {task: progress(rows, task) for task in asked.tasks}
    played = evaluate(folder, asked.games * len(asked.tasks))
    print(found, played, sep="\n")
    task_curves(folder, asked.out / f"multi-task-{asked.name}.png", asked.tasks)
    summary.write(asked.out / f"multi-task-{asked.name}.json", {
        "tasks": found, "settings": settings, "steps": played.step, "evaluation": str(played).splitlines(),
        "load_before": round(load, 1), "machine": summary.machine(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
