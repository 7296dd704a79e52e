"""The experiments of the Ape-X paper in small: figures 4, 5, 6, 7 and 12 of Horgan et al. 2018, on CartPole and a cliff walk.

    python benchmarks/learning/apex.py                    # all of them, about a quarter of an hour
    python benchmarks/learning/apex.py priorities --seeds 5

Where the environment is the bottleneck (`actors`, `recency`) every arm gets the same wall time, with the learner as fast as it
can; otherwise the same number of steps, in one process. Writes a plot and JSON per experiment to benchmarks/learning/results:
curves of the environments that explore least, the number of updates (scores per step depend on it), and at the end an evaluation
without exploration, which is what arms that explore differently are compared by. Calls `headrace compare`, so the same command
goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.experiments.records import Run

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import experiments  # noqa: E402
import summary  # noqa: E402

EVALUATION = 32
"""Episodes of the final evaluation."""


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in one thing."""

    figure: int
    env: str
    arms: dict[str, dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    budget: str = "20000"
    """Of one run: steps, or seconds of wall time."""
    seeds: int = 3


# One group of environments that takes 20 ms for a step, however many there are. All explore alike (the ladder over one would
# be its top), and the learner is not held back.
SLOW = {
    "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.rollout": 10, "replay.samples_per_insert": None,
    "replay.minimum": 500, "q.epsilon": 0.05, "q.epsilon_alpha": 0.0, "run.log_interval": 1.0,
}  # fmt: skip
SERIAL = {"sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "run.log_interval": 0.5}
OF_ALL = {"learning.algorithm": "apex-dqn", "learning.gamma": 0.98, "learning.num_threads": 1}  # CartPole's

EXPERIMENTS = {
    "actors": Experiment(
        4,
        "slow/cartpole",
        {f"{n} environments": {"sampling.envs_per_worker": n} for n in (1, 4, 16, 64)},
        SLOW,
        "40s",
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
        "40s",
        seeds=1,
    ),
    "priorities": Experiment(
        12,
        "cliff/walk",
        {"prioritized": {}, "uniform": {"replay.alpha": 0.0}},
        SERIAL | {"replay.samples_per_insert": 4.0},
        "40000",
    ),
    "priorities-cartpole": Experiment(12, "gym/CartPole-v1", {"prioritized": {}, "uniform": {"replay.alpha": 0.0}}, SERIAL),
    "capacity": Experiment(
        5, "gym/CartPole-v1", {f"{c:,} transitions": {"replay.capacity": c} for c in (1_000, 5_000, 50_000)}, SERIAL
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
    ),
}


def kept(experiment: Experiment, run: Run) -> dict[str, Any]:
    """A run as it is kept: its evaluation, and of its curve the axis of the plot and the returns, few points of each."""
    played = headrace.evaluate(run.path, EVALUATION, deterministic=True, imports=experiments.WORLDS[1:]).mean
    over = run.curve[:, 0] if axis(experiment) == "steps" else 60 * run.minutes_at(run.curve[:, 0])
    curve = {axis(experiment): over.round(1).tolist(), "returns": run.curve[:, 1].round(3).tolist()}
    last = {"steps": run.steps, "updates": run.last("charts/updates")}
    return {"seed": run.seed, "evaluation": played, "last": last} | {key: summary.thin(values) for key, values in curve.items()}


def axis(experiment: Experiment) -> str:
    """What a curve goes over: that of which every arm gets the same amount."""
    return "seconds" if experiment.budget.endswith("s") else "steps"


def main() -> None:
    """Run the experiments named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"{', '.join(EXPERIMENTS)}; none: all")
    parser.add_argument("--seeds", type=int, help="instead of each experiment's own number")
    parser.add_argument("--folder", type=Path, default=Path("experiments/apex"))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    for name in args.names or EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        arms: dict[str, list[dict[str, Any]]] = {}
        for i, (arm, settings) in enumerate(experiment.arms.items()):
            folder, seeds = args.folder / f"{name}-{i}", args.seeds or experiment.seeds
            given = OF_ALL | experiment.settings | settings
            runs = experiments.compare(folder, experiment.env, experiment.budget, seeds, given, *experiments.WORLDS)
            arms[arm] = [kept(experiment, run) for run in runs]
        title = f"{name} on {experiment.env}"
        curves = {arm: [runs] for arm, runs in arms.items()}
        experiments.draw(args.out / f"apex-{name}.png", title, [axis(experiment)], curves)
        report = {"experiment": name, "figure": experiment.figure, "env": experiment.env, "settings": experiment.settings,
                  "arms": {arm: {"settings": experiment.arms[arm], "runs": runs} for arm, runs in arms.items()},
                  "machine": summary.machine(), "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        summary.write(args.out / f"apex-{name}.json", report)
        for arm, runs in arms.items():
            evaluations = ", ".join(f"{r['evaluation']:.4g}" for r in runs)
            steps, updates = (np.mean([r["last"][key] for r in runs]) for key in ("steps", "updates"))
            print(f"{name}, {arm}: evaluation {evaluations}; {steps:,.0f} steps, {updates:,.0f} updates", flush=True)


if __name__ == "__main__":
    main()
