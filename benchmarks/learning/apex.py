"""The experiments of the Ape-X paper in small: figures 4, 5, 6, 7 and 12 of Horgan et al. 2018, on CartPole and a cliff walk.

    python benchmarks/learning/apex.py                    # all of them, about a quarter of an hour
    python benchmarks/learning/apex.py priorities --seeds 5

Where the environment is the bottleneck (`actors`, `recency`) every arm gets the same wall time, with the learner as fast as it
can; otherwise the same number of steps, in one process. Writes a plot and JSON per experiment to benchmarks/learning/results:
curves of the environments that explore least, the number of updates (scores per step depend on it), and at the end an evaluation
without exploration, which is what arms that explore differently are compared by.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.envs.core.imports import import_files
from headrace.runs.metrics import read_jsonl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

ENVS = (str(HERE / "worlds.py"),)
EVALUATION = 32
"""Episodes of the final evaluation."""


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in one thing."""

    figure: int
    env: str
    arms: dict[str, dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    """Wall time of one run; None: `steps` decide."""
    steps: int = 10**9
    seeds: int = 3


# One group of environments that takes 20 ms for a step, however many there are. All explore alike (the ladder over one would
# be its top), and the learner is not held back.
SLOW = {
    "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.rollout": 10, "replay.samples_per_insert": None,
    "replay.minimum": 500, "q.epsilon": 0.05, "q.epsilon_alpha": 0.0, "run.log_interval": 1.0,
}  # fmt: skip
SERIAL = {"sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "run.log_interval": 0.5}

EXPERIMENTS = {
    "actors": Experiment(
        4,
        "slow/cartpole",
        {f"{n} environments": {"sampling.envs_per_worker": n} for n in (1, 4, 16, 64)},
        SLOW,
        seconds=40,
        seeds=1,
    ),
    "recency": Experiment(
        6,
        "slow/cartpole",
        {
            "4 environments": {"sampling.envs_per_worker": 4},
            "4 environments, each transition 8 times": {"sampling.envs_per_worker": 4, "replay.copies": 8},
            "32 environments": {"sampling.envs_per_worker": 32},
        },
        SLOW | {"replay.capacity": 20_000},
        seconds=40,
        seeds=1,
    ),
    "priorities": Experiment(
        12,
        "cliff/walk",
        {"prioritized": {}, "uniform": {"replay.alpha": 0.0}},
        SERIAL | {"replay.samples_per_insert": 4.0},
        steps=40_000,
    ),
    "priorities-cartpole": Experiment(
        12, "gym/CartPole-v1", {"prioritized": {}, "uniform": {"replay.alpha": 0.0}}, SERIAL, steps=20_000
    ),
    "capacity": Experiment(
        5,
        "gym/CartPole-v1",
        {f"{c:,} transitions": {"replay.capacity": c} for c in (1_000, 5_000, 50_000)},
        SERIAL,
        steps=20_000,
    ),
    "exploration": Experiment(
        7,
        "gym/CartPole-v1",
        {
            "16 epsilons, 0.4 to 0.0007": {},
            "6 epsilons, 0.4 to 0.0007": {"q.epsilon_levels": 6},
            "0.4 for all": {"q.epsilon_alpha": 0.0},
            "0.02 for all": {"q.epsilon": 0.02, "q.epsilon_alpha": 0.0},
        },
        SERIAL,
        steps=20_000,
    ),
}


def run(experiment: Experiment, arm: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """One run: its curve and its evaluation."""
    config = headrace.make_config("gym/CartPole-v1", "apex-dqn", imports=ENVS)
    budget = {"learning.total_steps": experiment.steps, "run.max_minutes": experiment.seconds and experiment.seconds / 60}
    quiet = {"run.folder": str(folder), "run.must_be_new": True, "run.video": False, "run.dashboard": False}
    settings = {"env": experiment.env, "seed": seed, **quiet, **budget, **experiment.settings, **arm}
    load = os.getloadavg()[0]
    headrace.train(headrace.config.override(config, **settings))
    rows = read_jsonl(folder / "metrics.jsonl")
    curve = [r for r in rows if "charts/episodic_return_100" in r]
    return {
        "seed": seed, "load_before": round(load, 1),
        "evaluation": headrace.evaluate(folder, EVALUATION, deterministic=True).mean,
        "last": {"steps": rows[-1]["global_step"], "updates": rows[-1]["charts/updates"]},
        "seconds": [round(r["time"] - rows[0]["time"], 1) for r in curve], "steps": [r["global_step"] for r in curve],
        "returns": [round(r["charts/episodic_return_100"], 3) for r in curve],
    }  # fmt: skip


def axis(experiment: Experiment) -> str:
    """What a curve goes over: that of which every arm gets the same amount."""
    return "steps" if experiment.seconds is None else "seconds"


def shortened(experiment: Experiment, r: dict[str, Any]) -> dict[str, Any]:
    """A run as it is kept: of its curve the axis of the plot and the returns, few points of each."""
    facts = {key: r[key] for key in ("seed", "load_before", "evaluation", "last")}
    return facts | {key: summary.thin(r[key]) for key in (axis(experiment), "returns")}


def plot(name: str, experiment: Experiment, arms: dict[str, list[Any]], path: Path) -> None:
    """All runs of an experiment, one colour per arm."""
    from matplotlib.figure import Figure

    key = axis(experiment)
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for i, (arm, runs) in enumerate(arms.items()):
        for j, r in enumerate(runs):
            axes.plot(r[key], r["returns"], color=f"C{i}", label=arm if j == 0 else None)
    axes.set(xlabel=key, ylabel="return of the last 100 episodes", title=f"{name} on {experiment.env}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run the experiments named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", help=f"{', '.join(EXPERIMENTS)}; none: all")
    parser.add_argument("--seeds", type=int, help="instead of each experiment's own number")
    parser.add_argument("--runs", type=Path, default=Path("runs/apex"))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    import_files(ENVS)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.experiments or EXPERIMENTS:
        experiment, stamp = EXPERIMENTS[name], time.strftime("%Y%m%d-%H%M%S")
        arms: dict[str, list[dict[str, Any]]] = {arm: [] for arm in experiment.arms}
        for seed in range(args.seeds or experiment.seeds):  # arms alternate, so that a noisy machine disturbs all alike
            for i, (arm, settings) in enumerate(experiment.arms.items()):
                arms[arm].append(run(experiment, settings, seed, args.runs / f"{name}-{i}-{seed}-{stamp}"))
        plot(name, experiment, arms, args.out / f"apex-{name}.png")
        system = {fact: value for fact, value in summary.machine().items() if fact != "command"}
        report = {"experiment": name, "figure": experiment.figure, "env": experiment.env, "settings": experiment.settings,
                  "arms": {arm: {"settings": experiment.arms[arm], "runs": [shortened(experiment, r) for r in runs]}
                           for arm, runs in arms.items()},
                  "system": system, "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        summary.write(args.out / f"apex-{name}.json", report)
        for arm, runs in arms.items():
            evaluations = ", ".join(f"{r['evaluation']:.4g}" for r in runs)
            steps, updates = (np.mean([r["last"][key] for r in runs]) for key in ("steps", "updates"))
            print(f"{name}, {arm}: evaluation {evaluations}; {steps:,.0f} steps, {updates:,.0f} updates", flush=True)


if __name__ == "__main__":
    main()
