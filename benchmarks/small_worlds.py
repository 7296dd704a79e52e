"""Training on worlds that cost less than their learner, in steps/s, by several checkouts and placements in turn.

    python benchmarks/small_worlds.py BEFORE AFTER --rounds 3 --seconds 15

BEFORE and AFTER are folders of checkouts, each with an interpreter at `.venv/bin/python` in which its own package is installed;
one is enough. Each round trains every checkout in every way of `WAYS` for some seconds, with the environment's own settings and
a new run folder. A run counts with the median of its intervals of 1 s after the first three, and a way with the median of its
rounds. A checkout that has no such environment yet has no number. The load average before each run tells whether the machine was
quiet. Prints a table, writes results/small_worlds.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import summary

ONE_PASS = ["--learning.num-epochs", "1"]
"""Over every batch, where the default is 8 passes: then little is left of the learner's arithmetic."""
MANY = ["--sampling.envs-per-worker", "512", "--learning.batch-size", "8192", "--learning.learning-rate", "2e-3"]
WIDE = ["--sampling.envs-per-worker", "128", "--learning.batch-size", "8192", "--learning.learning-rate", "2e-3"]
WAYS = {
    "gym/CartPole-v1, served": ["--env", "gym/CartPole-v1"],
    "gym/CartPole-v1, inline": ["--env", "gym/CartPole-v1", "--sampling.placement", "inline"],
    "torch/CartPole-v1, device": ["--env", "torch/CartPole-v1", "--sampling.placement", "device"],
    "gym/CartPole-v1, served, one pass": ["--env", "gym/CartPole-v1", *ONE_PASS],
    "gym/CartPole-v1, served, one pass, 256 environments": ["--env", "gym/CartPole-v1", *ONE_PASS, *WIDE],
    "torch/CartPole-v1, device, one pass, 512 environments": ["--env", "torch/CartPole-v1", *ONE_PASS, *MANY],
    "atari/breakout, served, two threads": [
        "--env", "atari/breakout", "--learning.algorithm", "ppo", "--policy.encoder", "nature-cnn",
        "--sampling.placement", "served", "--learning.num-threads", "2",
    ],
}  # fmt: skip
SKIPPED = 3
"""First intervals of a run, in which processes are still starting."""


def steps_per_second(rows: list[dict[str, float]]) -> float:
    """Of a run, by its lines of metrics. Raises `SystemExit` if there are too few."""
    rates = [row["charts/SPS_interval"] for row in rows if "charts/SPS_interval" in row][SKIPPED:]
    if not rates:
        raise SystemExit("a run was too short: use more --seconds")
    return median(rates)


def train(checkout: Path, way: str, seconds: float) -> float | None:
    """Train once; steps/s, or None if the checkout does not have this environment. Raises `SystemExit` with the run's output if
    it fails otherwise."""
    with tempfile.TemporaryDirectory(prefix="small-worlds-") as temporary:
        folder = Path(temporary) / "run"
        command = [str(checkout / ".venv/bin/python"), "-m", "headrace.cli", "train", *WAYS[way], "--run.folder", str(folder)]
        command += ["--run.max-minutes", str(seconds / 60), "--run.goal", "None", "--learning.total-steps", "100000000"]
        command += ["--run.log-interval", "1", "--run.no-video", "--run.no-dashboard"]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"XDG_CONFIG_HOME": temporary}
        done = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True, check=False)
        if "there is no environment" in done.stderr:
            return None
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return steps_per_second([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])


def main() -> None:
    """Train, print the table, write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "small_worlds.json")
    arguments = parser.parse_args()
    checkouts = [path.resolve() for path in arguments.checkouts]
    found: dict[str, list[list[float]]] = {way: [[] for _ in checkouts] for way in arguments.ways}
    loads: list[float] = []
    for _ in range(arguments.rounds):
        for way in arguments.ways:
            for i, checkout in enumerate(checkouts):
                loads.append(round(os.getloadavg()[0], 1))
                if (rate := train(checkout, way, arguments.seconds)) is not None:
                    found[way][i].append(round(rate))
    print(f"| steps/s | {' | '.join(path.name for path in checkouts)} | last against first |\n|---|{'---|' * len(checkouts)}---|")
    for way, columns in found.items():
        middles = [median(column) if column else None for column in columns]
        first, last = middles[0], middles[-1]
        cells = [f"{value:,.0f}" if value else "-" for value in middles] + [f"{last / first:.2f}x" if first and last else "-"]
        print(f"| {way} | {' | '.join(cells)} |")
    print(f"\nload average before each run: {loads}")
    commits = [
        subprocess.run(["git", "-C", str(path), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        for path in checkouts
    ]
    facts = {"commits": commits, "load_before": loads, "machine": summary.machine()}
    summary.write(arguments.out, {"steps_per_second": found, **facts})


if __name__ == "__main__":
    main()
