"""A population that plays Doom against itself: policies of `vizdoom/multi_duel` with population-based training.

    python benchmarks/learning/vizdoom_population.py --minutes 15 --matches 40

Opponents are drawn uniformly for every match, as in Petrenko et al. 2020; the objective is the win rate. Periods are shorter than
the paper's, whose population played 2.5 G frames. Afterwards every policy plays against the random player. Prints what it found,
writes results/vizdoom-population.json, and .png with the curves of every policy: shaped return, Elo rating, policy lag.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import headrace
from headrace.evaluation.matches import play
from headrace.evaluation.policy import load_policy
from headrace.population.matchmaking import make_script
from headrace.runs import lineage
from headrace.runs.metrics import read_jsonl
from headrace.runs.plots import curve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

ENV = "vizdoom/multi_duel"
CURVES = {"charts/episodic_return_100": "shaped return", "matches/elo": "Elo rating", "lag/mean": "policy lag (updates)"}


def settings(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Of the training run. Options of the environment replace its own as a whole, so its reward shaping is said again."""
    options = headrace.make_config(ENV).envs.kwargs | {"episode_timeout": asked.frames}
    return {
        "run.folder": str(folder), "run.max_minutes": asked.minutes, "run.video": False, "run.dashboard": False,
        "seed": asked.seed, "population.size": asked.size, "matches.matchmaker": "uniform", "pbt.rule": "paper",
        "pbt.objective": "win_rate", "pbt.period": asked.period, "envs.kwargs": options,
    }  # fmt: skip


def draw(folder: Path, size: int, path: Path) -> None:
    """One panel for each metric, one line for each policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (key, name) in zip(figure.subplots(1, len(CURVES)), CURVES.items(), strict=True):
        for p in range(size):
            axes.plot(*curve(folder / f"policy-{p}", key), label=f"policy {p}")
        axes.set(xlabel="steps of the policy", title=name)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Train, play, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--matches", type=int, default=40, help="of every policy against the random player")
    parser.add_argument("--frames", type=int, default=2_100, help="of a match: a minute")
    parser.add_argument("--period", type=int, default=20_000, help="steps of a policy between decisions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "vizdoom-population.json")
    asked = parser.parse_args()
    folder = asked.runs / f"vizdoom-population-{time.strftime('%Y%m%d-%H%M%S')}"
    given, load = settings(asked, folder), os.getloadavg()[0]
    headrace.train(headrace.make_config(ENV, **given))
    draw(folder, asked.size, asked.out.with_suffix(".png"))
    policies = []
    for p in range(asked.size):
        policy = load_policy(folder, policy=p, device="cpu")
        result = play(policy, make_script("random", policy.spec), ENV, policy.config.envs, asked.matches, deterministic=False)
        rows = read_jsonl(folder / f"policy-{p}" / "metrics.jsonl")
        last = {key: row[key] for row in rows for key in (*CURVES, "matches/games") if key in row}
        policies.append({"steps": policy.step, "against random": str(result), **last})
        print(f"policy {p}: {policies[-1]}", flush=True)
    decisions = lineage.read(folder)
    summary.write(asked.out, {
        "settings": {key: value for key, value in given.items() if key != "run.folder"}, "policies": policies,
        "decisions": len(decisions), "mutations": sum(one["before"] != one["values"] for one in decisions),
        "copies": sum(one["donor"] is not None for one in decisions), "load_before": round(load, 1), "machine": summary.machine(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
