"""Do several ranks learn like one? CartPole with 1, 2 and 4 ranks whose batches are together of the same size.

    python benchmarks/learning/ranks.py --seeds 1 2 3

Each run is a `headrace train` of its own in the serial placement: R ranks with 8 / R environments and a batch of 512 / R steps
each. Prints the step at which the mean return of the last 100 episodes passes 100, 200 and 300, and writes a summary. Other ranks
have other episodes, so the curves are alike, not equal.
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


def steps_to(folder: Path) -> dict[int, int | None]:
    """By mark, the global step of the first point of the learning curve that is not below it."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [(row["global_step"], row["charts/episodic_return_100"]) for row in rows if "charts/episodic_return_100" in row]
    return {mark: next((int(step) for step, value in points if value >= mark), None) for mark in MARKS}


def run(ranks: int, seed: int, steps: int) -> dict[int, int | None]:
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
            "--run.log-interval": 0.5,
            "--run.folder": folder,
        }
        command = [sys.executable, "-m", "headrace.cli", "train", "--run.no-video", "--run.no-dashboard"]
        command += [str(part) for pair in settings.items() for part in pair]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        return steps_to(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "ranks.json")
    args = parser.parse_args()
    results: dict[str, list[dict[int, int | None]]] = {str(ranks): [] for ranks in args.ranks}
    for seed in args.seeds:
        for ranks in args.ranks:
            results[str(ranks)].append(run(ranks, seed, args.steps))
            print(f"seed {seed}, {ranks} ranks: {results[str(ranks)][-1]}", flush=True)
    print("\n| ranks | " + " | ".join(f"steps to {mark}" for mark in MARKS) + " |\n|" + "---|" * (len(MARKS) + 1))
    for ranks, runs in results.items():
        cells = []
        for mark in MARKS:
            steps = sorted(r[mark] or args.steps for r in runs)
            cells.append(f"{median(steps):,.0f} ({steps[0]:,} to {steps[-1]:,})")
        print(f"| {ranks} | " + " | ".join(cells) + " |")
    summary.write(args.out, {"machine": summary.machine(), "seeds": args.seeds, "steps": args.steps, "steps_to": results})


if __name__ == "__main__":
    main()
