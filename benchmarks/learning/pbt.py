"""Population-based training recovers from a learning rate with which nothing is learned.

    python benchmarks/learning/pbt.py --seeds 3

CartPole with a learning rate that is far too small, given to every policy of a population: once fixed, once with
population-based training, which may change it. Both train the same number of policies for the same number of steps. Serial
placement, so the same seed gives the same numbers. Prints a table, writes results/pbt-cartpole.json and .png, and
results/pbt-cartpole-lineage.png: who became a copy of whom with the first seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.make_config import make_config
from headrace.population import records
from headrace.runs.metrics import read_jsonl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

SETTINGS: dict[str, Any] = {
    "sampling.placement": "serial", "sampling.num_workers": 4, "sampling.num_groups": 2, "learning.device": "cpu",
    "learning.num_threads": 1, "learning.lr_schedule": "constant", "run.dashboard": False, "run.video": False,
    "run.log_interval": 0.5, "run.checkpoint_interval": 1e6,
}  # fmt: skip
PBT: dict[str, Any] = {
    "pbt.rule": "paper", "pbt.mutation_rate": 0.5, "pbt.factor": (2.0, 6.0), "pbt.mutable": {"learning.learning_rate": "scale"},
}  # fmt: skip
"""The paper's rule; its factor (1.2) and its rate (0.15) are for thousands of decisions, and here there are a few dozen."""
RETURN, RATE = "charts/episodic_return_100", "population/learning.learning_rate"


def train(folder: Path, seed: int, args: argparse.Namespace, more: dict[str, Any]) -> list[dict[str, Any]]:
    """One population; for each policy its curve, and that of its learning rate."""
    given = {
        "run.folder": str(folder), "population.size": args.size, "learning.total_steps": args.steps,
        "learning.learning_rate": args.rate, "seed": seed,
    }  # fmt: skip
    headrace.train(make_config("gym/CartPole-v1", **SETTINGS, **given, **more))
    found = []
    for p in range(args.size):
        rows = [row for row in read_jsonl(folder / f"policy-{p}" / "metrics.jsonl") if RETURN in row]
        curve = [[int(row["global_step"]), round(row[RETURN], 1)] for row in rows]
        found.append({"curve": curve, "rates": [row.get(RATE, args.rate) for row in rows], "last": rows[-1][RETURN]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300_000, help="of each policy")
    parser.add_argument("--period", type=int, default=6_000)
    parser.add_argument("--rate", type=float, default=3e-6)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pbt-cartpole.json")
    args = parser.parse_args()
    results: dict[str, list[list[dict[str, Any]]]] = {"fixed": [], "pbt": []}
    print(
        "| seed | | mean return of the last 100 episodes, each policy | learning rates at the end |\n|---|---|---|---|",
        flush=True,
    )
    for seed in range(args.seeds):
        for name, more in (("fixed", {}), ("pbt", {**PBT, "pbt.period": args.period})):
            with tempfile.TemporaryDirectory() as temporary:
                policies = train(Path(temporary) / "run", seed, args, more)
                if name == "pbt" and seed == 0:
                    picture = args.out.with_name(f"{args.out.stem}-lineage.png")
                    picture.parent.mkdir(parents=True, exist_ok=True)
                    records.draw_decisions(Path(temporary) / "run", args.size, picture)
            results[name].append(policies)
            returns = ", ".join(f"{policy['last']:.0f}" for policy in policies)
            rates = ", ".join(f"{policy['rates'][-1]:.1e}" for policy in policies)
            print(f"| {seed} | {name} | {returns} | {rates} |", flush=True)
        report(results, args)
    best = bests(results)
    print(
        "\nbest policy: " + ", ".join(f"{name} {np.mean(x):.0f} (from {min(x):.0f} to {max(x):.0f})" for name, x in best.items())
    )


def bests(results: dict[str, list[list[dict[str, Any]]]]) -> dict[str, list[float]]:
    """The best policy's return, for each seed."""
    return {name: [max(p["last"] for p in policies) for policies in runs] for name, runs in results.items()}


def report(results: dict[str, list[list[dict[str, Any]]]], args: argparse.Namespace) -> None:
    """Write and draw the seeds so far."""
    settings = {"env": "gym/CartPole-v1", "rate": args.rate, "steps": args.steps, "period": args.period, "size": args.size}
    summary.write(
        args.out,
        {"machine": summary.machine(), "settings": settings, "pbt": PBT, "best": bests(results), "runs": short(results)},
    )
    draw(results, args.out.with_suffix(".png"))


def short(results: dict[str, list[list[dict[str, Any]]]]) -> dict[str, list[list[dict[str, Any]]]]:
    """With a dozen points of each curve."""

    def one(policy: dict[str, Any]) -> dict[str, Any]:
        rates = [float(f"{rate:.3g}") for rate in summary.thin(policy["rates"], 12)]
        return {"curve": summary.thin(policy["curve"], 12), "rates": rates, "last": policy["last"]}

    return {name: [[one(policy) for policy in policies] for policies in runs] for name, runs in results.items()}


def draw(results: dict[str, list[list[dict[str, Any]]]], path: Path) -> None:
    """Returns above, learning rates below; every policy is a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for name, colour in (("fixed", "grey"), ("pbt", "C0")):
        for i, policy in enumerate(policy for policies in results[name] for policy in policies):
            steps = [step for step, _ in policy["curve"]]
            label = {"fixed": "fixed learning rate", "pbt": "population-based training"}[name] if i == 0 else None
            above.plot(steps, [value for _, value in policy["curve"]], color=colour, alpha=0.6, linewidth=1, label=label)
            below.plot(steps, policy["rates"], color=colour, alpha=0.6, linewidth=1)
    above.set(ylabel="mean return of 100 episodes", title="CartPole from a bad learning rate")
    above.legend()
    below.set(ylabel="learning rate", yscale="log", xlabel="steps of each policy")
    for axis in (above, below):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
