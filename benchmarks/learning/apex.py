"""The experiments of the Ape-X paper in small (Horgan et al. 2018, figures 4, 5, 7 and 12), on CartPole.

    python benchmarks/learning/apex.py actors priorities --minutes 2 --seeds 3

Each arm is one run per seed with a fixed wall time. Writes a plot and JSON per experiment to benchmarks/learning/results. Curves
are of the environments that explore least, over wall time for `actors` and over steps otherwise; the number of updates is in the
JSON, for scores per step depend on it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.envs.registry import import_files
from headrace.runs.folder import system_facts
from headrace.runs.metrics import read_jsonl

HERE = Path(__file__).parent
SLOW = str(HERE / "slow_env.py")

EXPERIMENTS: dict[str, dict[str, dict[str, Any]]] = {
    # one environment per group and worker: the world's slowness is paid by each worker on its own
    "actors": {
        f"{n} environments": {"env": "slow/cartpole", "sampling.num_workers": n, "sampling.envs_per_worker": 1,
                              "sampling.num_groups": 1, "replay.samples_per_insert": None}
        for n in (1, 2, 4, 8)
    },
    "priorities": {"prioritized": {}, "uniform": {"replay.alpha": 0.0}},
    "capacity": {f"{c:,}": {"replay.capacity": c} for c in (2_000, 10_000, 100_000)},
    "exploration": {
        "ladder 0.4 to 0.0007": {},
        "0.4 for all": {"q.epsilon_alpha": 0.0},
        "0.05 for all": {"q.epsilon": 0.05, "q.epsilon_alpha": 0.0},
    },
}  # fmt: skip


def run(settings: dict[str, Any], seed: int, minutes: float, folder: Path) -> dict[str, Any]:
    """One run; its curve."""
    settings = dict(settings)
    env = settings.pop("env", "gym/CartPole-v1")
    common = {"run.folder": str(folder), "run.fresh": True, "run.video": False, "run.dashboard": False, "run.log_interval": 2.0,
              "run.max_minutes": minutes, "sampling.placement": "inline", "sampling.num_workers": 1, "seed": seed}  # fmt: skip
    base = headrace.make_config("gym/CartPole-v1", "apex-dqn")
    config = headrace.config.override(base, **{**common, "env": env, "imports": [SLOW], **settings})
    load = os.getloadavg()[0]
    headrace.train(config)
    rows = [r for r in read_jsonl(folder / "metrics.jsonl") if "charts/episodic_return_100" in r]
    return {
        "seed": seed, "load_before": round(load, 1), "seconds": [round(r["time"] - rows[0]["time"], 1) for r in rows],
        "steps": [r["global_step"] for r in rows], "updates": [r["charts/updates"] for r in rows],
        "returns": [round(r["charts/episodic_return_100"], 2) for r in rows],
    }  # fmt: skip


def plot(name: str, arms: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """All runs of an experiment, one colour per arm."""
    from matplotlib.figure import Figure

    key = "seconds" if name == "actors" else "steps"
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, (arm, runs) in enumerate(arms.items()):
        for j, r in enumerate(runs):
            axes.plot(r[key], r["returns"], color=f"C{i}", label=arm if j == 0 else None)
    axes.set(xlabel=key, ylabel="return of the last 100 episodes", title=name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the experiments named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--minutes", type=float, default=2.0, help="wall time of one run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/apex"))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    import_files((SLOW,))
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.experiments:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        arms: dict[str, list[dict[str, Any]]] = {arm: [] for arm in EXPERIMENTS[name]}
        for seed in range(args.seeds):  # arms alternate, so that a noisy machine disturbs all alike
            for i, (arm, settings) in enumerate(EXPERIMENTS[name].items()):
                arms[arm].append(run(settings, seed, args.minutes, args.runs / f"{name}-{i}-{seed}-{stamp}"))
        plot(name, arms, args.out / f"apex-{name}.png")
        report = {"experiment": name, "minutes": args.minutes, "arms": arms, "system": system_facts()}
        (args.out / f"apex-{name}.json").write_text(json.dumps(report, indent=1) + "\n")
        for arm, runs in arms.items():
            last = [r["returns"][-1] for r in runs if r["returns"]]
            print(f"{name}, {arm}: last return {np.mean(last):.1f}, steps {np.mean([r['steps'][-1] for r in runs]):,.0f}, "
                  f"updates {np.mean([r['updates'][-1] for r in runs]):,.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
