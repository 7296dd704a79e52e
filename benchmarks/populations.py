"""Throughput with 1, 2, 4 and 8 policies at equal total work, and what a learner's process takes.

    python benchmarks/populations.py --env atari/breakout --rounds 3

The same environments and the same number of steps in all, divided among the policies; the sizes take turns, in an order that is
turned by one each round, so that whatever else the machine does concerns all of them. Steps per second are those of all policies
between the moment when the last of them has begun to report and the moment when the first has finished. The ratio to one policy
is the geometric mean of the rounds' ratios, with its 95 % interval (Student's t of their logarithms). Prints a table, writes
results/populations.json.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import summary

from headrace.runs.metrics import read_jsonl


def measure(args: argparse.Namespace, size: int) -> dict[str, float]:
    """Train one population; its steps per second over all policies and the memory of its processes (proportional set size)."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        flags = {
            "--env": args.env, "--run.folder": folder, "--population.size": size, "--learning.total-steps": args.steps // size,
            "--sampling.num-workers": args.workers, "--sampling.num-groups": args.groups,
            "--sampling.envs-per-worker": args.envs // args.workers, "--run.log-interval": 0.25,
            "--sampling.placement": args.placement, "--learning.batch-size": args.batch, "--sampling.rollout": args.rollout,
        }  # fmt: skip
        command = [sys.executable, "-m", "headrace.cli", "train", *(str(part) for pair in flags.items() for part in pair)]
        process = subprocess.Popen(
            [*command, "--run.no-dashboard", "--run.no-video"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        memory = [0.0]
        watcher = threading.Thread(target=_watch, args=(process.pid, memory), daemon=True)
        watcher.start()
        output, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"{size} policies: exit code {process.returncode}\n{output[-3000:]}")
        names = [folder] if size == 1 else [folder / f"policy-{p}" for p in range(size)]
        curves = [[(row["time"], row["global_step"]) for row in read_jsonl(name / "metrics.jsonl")] for name in names]
    begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    steps = 0.0
    for curve in curves:
        inside = [point for point in curve if begin <= point[0] <= end]
        (first, least), (last, most) = inside[0], inside[-1]
        steps += (most - least) / (last - first) if last > first else 0.0
    return {"sps": steps, "seconds": end - begin, "mib": memory[0]}


def _watch(pid: int, memory: list[float]) -> None:
    while True:
        try:
            run = psutil.Process(pid)
            sizes = [p.memory_full_info().pss for p in [run, *run.children(recursive=True)]]
        except psutil.Error:
            if not psutil.pid_exists(pid):
                return
            continue
        memory[0] = max(memory[0], sum(sizes) / 2**20)
        time.sleep(1)


T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of a two-sided 95 % interval for 1, 2, ... degrees of freedom."""


def ratio(rates: list[float], base: list[float]) -> tuple[float, list[float] | None]:
    """Geometric mean of the rounds' ratios and its 95 % interval; None after a single round."""
    logs = [math.log(rate / one) for rate, one in zip(rates, base, strict=True)]
    mean, n = statistics.mean(logs), len(logs)
    if n == 1:
        return math.exp(mean), None
    half = (T95[n - 2] if n - 2 < len(T95) else 1.96) * statistics.stdev(logs) / math.sqrt(n)
    return math.exp(mean), [math.exp(mean - half), math.exp(mean + half)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="atari/breakout")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--placement", default="served")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--groups", type=int, default=4, help="of each worker; workers x groups is at least the largest size")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--rollout", type=int, default=32)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100_000, help="of all policies together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "populations.json")
    args = parser.parse_args()
    found: dict[int, list[dict[str, float]]] = {size: [] for size in args.sizes}
    loads = []
    for number in range(args.rounds):
        turn = number % len(args.sizes)
        for size in args.sizes[turn:] + args.sizes[:turn]:
            loads.append(round(os.getloadavg()[0], 1))
            found[size].append(measure(args, size))
            print(f"{size} policies: {found[size][-1]['sps']:,.0f} steps/s", file=sys.stderr, flush=True)
    print(
        f"{args.env}, {args.placement}, {args.envs} environments, {args.workers} x {args.groups} groups, {args.steps:,} steps\n"
    )
    print("| policies | steps/s (median) | of one policy (95 % interval) | memory at most |\n|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    base = [run["sps"] for run in found[args.sizes[0]]]
    for size, runs in found.items():
        sps = statistics.median(run["sps"] for run in runs)
        mean, interval = ratio([run["sps"] for run in runs], base)
        mib = max(run["mib"] for run in runs)
        rows.append({"policies": size, "sps": sps, "ratio": mean, "ratio_ci95": interval, "mib": mib, "runs": runs})
        shown = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
        print(f"| {size} | {sps:,.0f} | {mean:.2f}{shown} | {mib:,.0f} MiB |")
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items() if name != "out"}
    summary.write(args.out, {"machine": summary.machine(), "settings": settings, "load_before_each": loads, "rows": rows})


if __name__ == "__main__":
    main()
