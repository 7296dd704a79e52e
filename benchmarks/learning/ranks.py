"""Do several ranks learn like one? CartPole with 1, 2 and 4 ranks whose batches are together of the same size.

    python benchmarks/learning/ranks.py --seeds 1 2 3

Each run is a `headrace train` of its own in the serial placement: R ranks with 32 / R environments and a batch of 512 / R steps
each. Prints the step at which the mean return of the last 100 episodes passes 100, 200 and 300, and writes results/ranks.json
with the curves and .png of them. Other ranks have other episodes, so the curves are alike, not equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

MARKS = (100, 200, 300)
ENVS, BATCH = 32, 512


Curve = list[list[float]]
"""[step, mean return of the last 100 episodes]."""


def steps_to(points: Curve) -> dict[int, int | None]:
    """By mark, the step of the first point that is not below it."""
    return {mark: next((int(step) for step, value in points if value >= mark), None) for mark in MARKS}


def run(ranks: int, seed: int, steps: int) -> Curve:
    """One training run."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        settings = {
            "--env": "gym/CartPole-v1",
            "--seed": seed,
            "--learning.num-devices": ranks,
            "--sampling.placement": "serial",
            "--sampling.num-workers": 1,
            "--sampling.envs-per-worker": ENVS // ranks,
            "--sampling.rollout": 16,
            "--learning.batch-size": BATCH // ranks,
            "--learning.num-minibatches": 1,
            "--learning.num-threads": 1,
            "--learning.total-steps": steps,
            "--run.log-interval": 0.2,
            "--run.folder": folder,
        }
        command = [sys.executable, "-m", "headrace.cli", "train", "--run.no-video", "--run.no-dashboard"]
        command += [str(part) for pair in settings.items() for part in pair]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        name = "charts/episodic_return_100"
        return [[row["global_step"], round(row[name], 1)] for row in rows if name in row]


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """A line for each run, a colour for each number of ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    for i, (ranks, runs) in enumerate(curves.items()):
        for j, points in enumerate(runs):
            label = f"{ranks} rank{'s' if ranks != '1' else ''}" if j == 0 else None
            axes.plot(*zip(*points, strict=True), color=f"C{i}", alpha=0.8, label=label)
    axes.set(xlabel="steps of all ranks", ylabel="return of the last 100 episodes", title="CartPole, joined batch of 512 steps")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "ranks.json")
    args = parser.parse_args()
    curves: dict[str, list[Curve]] = {str(ranks): [] for ranks in args.ranks}
    for seed in args.seeds:
        for ranks in args.ranks:
            curves[str(ranks)].append(run(ranks, seed, args.steps))
            print(f"seed {seed}, {ranks} ranks: {steps_to(curves[str(ranks)][-1])}", flush=True)
    print("\n| ranks | " + " | ".join(f"steps to {mark}" for mark in MARKS) + " |\n|" + "---|" * (len(MARKS) + 1))
    reached = {ranks: [steps_to(points) for points in runs] for ranks, runs in curves.items()}
    for ranks, runs in reached.items():
        cells = []
        for mark in MARKS:
            steps = sorted(r[mark] or sys.maxsize for r in runs)
            all_did = f"{median(steps):,.0f} ({steps[0]:,} to {steps[-1]:,})"
            cells.append(all_did if all(r[mark] for r in runs) else f"by {sum(r[mark] is not None for r in runs)} of {len(runs)}")
        print(f"| {ranks} | " + " | ".join(cells) + " |")
    kept = {ranks: [summary.thin(points, 15) for points in runs] for ranks, runs in curves.items()}
    result = {"machine": summary.machine(), "seeds": args.seeds, "steps": args.steps, "steps_to": reached, "curves": kept}
    summary.write(args.out, result)
    draw(curves, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
