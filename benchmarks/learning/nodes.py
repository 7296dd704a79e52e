"""Does a run learn the same with 1, 2 and 4 sampling nodes? And which algorithm learns most with the same nodes and minutes?

    python benchmarks/learning/nodes.py curves                # 36 runs of 150,000 to 600,000 steps
    python benchmarks/learning/nodes.py algorithms            # 9 runs of 3 minutes, one after the other
    python benchmarks/learning/nodes.py curves algorithms --only-write

`curves`: each task with 4 rollout workers in all, on 1, 2 or 4 nodes of this machine, three seeds, two runs at a time. Curves are
by step, since all nodes share the machine's cores. `algorithms`: Ape-X, IMPALA and APPO on MinAtar Breakout with two nodes, the
same minutes and all cores: one run at a time, on a machine that nothing else uses.

Calls `headrace compare`, so the same command goes on where it was stopped, and writes results/nodes-NAME.json and .png.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.runs.metrics import read_jsonl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import experiments  # noqa: E402
import summary  # noqa: E402

CLUSTER = {
    "cluster.engine": "static", "sampling.placement": "inline", "sampling.envs_per_worker": 16, "learning.num_threads": 1,
    "learning.device": "cpu", "run.log_interval": 2,
}  # fmt: skip
WORKERS = 4
"""Of all nodes together."""
NODES = (1, 2, 4)
RETURN, STEP, TIME = "charts/episodic_return_100", "global_step", "time"
POINTS = 40


@dataclass(frozen=True)
class Task:
    """What is learned with each number of nodes."""

    env: str
    algorithm: str
    budget: str
    settings: dict[str, Any] = field(default_factory=dict)


SHARDS = {"replay.shards": "node"}
TASKS = {
    "impala-minatar": Task("minatar/breakout", "impala", "600k"),
    "impala-minatar-160": Task("minatar/breakout", "impala", "600k", {"learning.batch_size": 160}),
    "apex-cartpole": Task("gym/CartPole-v1", "apex-dqn", "150k", SHARDS),
    "apex-minatar": Task("minatar/breakout", "apex-dqn", "240k", SHARDS),
}
ALGORITHMS, CONTEST, CONTEST_NODES = ("apex-dqn", "impala", "appo"), Task("minatar/breakout", "", "3m"), 2


def compare(folder: Path, task: Task, nodes: int, seeds: int, *more: str) -> None:
    """Train with so many nodes."""
    settings = CLUSTER | task.settings | {"cluster.nodes": nodes, "sampling.num_workers": WORKERS // nodes}
    experiments.compare(folder, task.env, task.budget, seeds, settings, *experiments.WORLDS, *more)


def read(folder: Path) -> dict[str, Any]:
    """A run: its curve, the mean return of the last 100 episodes at its end, the lag of its samples, and steps per second."""
    lines = read_jsonl(folder / "metrics.jsonl")
    curve = [line for line in lines if RETURN in line]
    late = [line for line in lines if "lag/mean" in line and line[STEP] > lines[-1][STEP] / 10]
    lags = {name: [line[f"lag/{name}"] for line in late if f"lag/{name}" in line] for name in ("mean", "p95")}
    lag = {name: round(float(np.mean(values)), 2) for name, values in lags.items() if values}  # replay has no p95
    seconds = lines[-1][TIME] - lines[0][TIME]
    return {
        "steps": [line[STEP] for line in curve], "seconds": [line[TIME] - lines[0][TIME] for line in curve],
        "returns": [line[RETURN] for line in curve], "score": round(curve[-1][RETURN], 2), "lag": lag,
        "total": int(lines[-1][STEP]), "steps/s": round((lines[-1][STEP] - lines[0][STEP]) / seconds),
        "updates": int(lines[-1]["charts/updates"]),
    }  # fmt: skip


def on_grid(runs: list[dict[str, Any]], axis: str) -> dict[str, list[float]]:
    """The mean, the lowest and the highest return of runs at the same steps or seconds."""
    grid = np.linspace(0, min(run[axis][-1] for run in runs), POINTS + 1)[1:]
    rows = np.array([np.interp(grid, run[axis], run["returns"]) for run in runs])
    curves = {"mean": rows.mean(0), "low": rows.min(0), "high": rows.max(0)}
    return {axis: [round(x) for x in grid], **{name: [round(float(y), 2) for y in row] for name, row in curves.items()}}


def keep(name: str, facts: dict[str, Any], arms: dict[str, list[dict[str, Any]]], axes: list[str]) -> None:
    """Write the result, draw it, and print a row for each arm."""
    shown: dict[str, Any] = {}
    for arm, runs in arms.items():
        seeds = [{key: run[key] for key in ("score", "total", "updates", "steps/s", "lag")} for run in runs]
        shown[arm] = {"seeds": seeds, "curves": [on_grid(runs, axis) for axis in axes]}
        print(f"{name}, {arm}: " + "; ".join(f"{seed}" for seed in seeds), flush=True)
    path = HERE / "results" / f"nodes-{name}.json"
    summary.write(path, facts | {"machine": summary.machine(), "arms": shown})
    curves = {
        arm: [[of["curves"][i] | {"returns": of["curves"][i]["mean"]}] for i in range(len(axes))] for arm, of in shown.items()
    }
    experiments.draw(path.with_suffix(".png"), f"{name}: {facts['env']}", axes, curves)


def main() -> None:
    """Train what was asked for, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["curves", "algorithms"])
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("experiments/nodes"))
    parser.add_argument("--only-write", action="store_true", help="of the runs that there are")
    args = parser.parse_args()
    if "curves" in args.parts:
        for name in args.tasks:
            task, arms = TASKS[name], {}
            for nodes in NODES:
                folder = args.folder / name / f"nodes-{nodes}"
                if not args.only_write:
                    compare(folder, task, nodes, args.seeds, "--learning.algorithm", task.algorithm, "--parallel", "2")
                arm = "1 node" if nodes == 1 else f"{nodes} nodes"
                arms[arm] = [read(folder / "runs" / f"seed-{seed}") for seed in range(args.seeds)]
            facts = {"env": task.env, "algorithm": task.algorithm, "budget": task.budget, "workers": WORKERS}
            keep(name, facts | {"settings": CLUSTER | task.settings}, arms, ["steps"])
    if "algorithms" in args.parts:
        folder = args.folder / "algorithms"
        if not args.only_write:
            compare(folder, CONTEST, CONTEST_NODES, args.seeds, "--vary", f"learning.algorithm={','.join(ALGORITHMS)}")
        arms = {
            name: [read(folder / "runs" / f"algorithm-{name}__seed-{seed}") for seed in range(args.seeds)] for name in ALGORITHMS
        }
        facts = {"env": CONTEST.env, "budget": CONTEST.budget, "nodes": CONTEST_NODES, "workers": WORKERS, "settings": CLUSTER}
        keep("algorithms", facts, arms, ["steps", "seconds"])


if __name__ == "__main__":
    main()
