"""The device placement against the others, and its batching strategies (CuLE, Dalton et al. 2020, figure 7).

    python benchmarks/device_strategies.py
    python benchmarks/device_strategies.py --env torch/CartPole-v1 --parts 1 2 4 8 --rounds 5

All contenders train with the same environment, network, number of environments and trajectory length. `device, G parts` learns
from batches of T / G steps of experience per environment, so that it makes G times as many updates of a G-th of the size; the
other placements have the batches of one part. In every round each contender trains for `--seconds`, one after the other, in an
order that is turned by one each round, so that what else the machine does meets all of them. It should do nothing else: programs
beside the benchmark take more from one process with threads than from several processes. Printed are medians over the rounds of
steps and updates per second, and the ratio to the first contender; results/device_strategies-ENV.json keeps them with the load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import summary

from headrace.runs.metrics import read_jsonl

WARM_UP = 4.0
"""Seconds at the start of a run that do not count: processes start, memory is touched, kernels are chosen."""


def contenders(parts: list[int], placements: list[str]) -> dict[str, dict[str, Any]]:
    """Flags by name."""
    device = {f"device, {g} part{'s' if g > 1 else ''}": {"placement": "device", "parts": g} for g in parts}
    return device | {name: {"placement": name, "parts": 1} for name in placements}


def flags(asked: argparse.Namespace, placement: str, parts: int, folder: str) -> list[str]:
    """The command line of one run."""
    groups = 1 if placement == "device" else 2
    workers = asked.workers if placement in ("served", "inline") else 1
    return [
        "--env", asked.env, "--learning.algorithm", asked.algorithm, "--run.folder", folder, "--no-dashboard", "--no-video",
        "--sampling.placement", placement, "--sampling.num-workers", str(workers), "--sampling.num-groups", str(groups),
        "--sampling.envs-per-worker", str(asked.envs // workers), "--sampling.rollout", str(asked.rollout),
        "--learning.batch-size", str(asked.envs * asked.rollout // parts),
        "--learning.num-minibatches", str(max(1, asked.minibatches // parts)), "--learning.num-epochs", str(asked.epochs),
        "--learning.total-steps", "1000000000", "--run.goal", "None", "--run.log-interval", "1",
        "--run.max-minutes", str((WARM_UP + asked.seconds) / 60),
        "--learning.device", asked.device, *asked.flags,
    ]  # fmt: skip


def measure(asked: argparse.Namespace, placement: str, parts: int) -> dict[str, float]:
    """Steps and updates per second of one run, without its first seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headrace.cli", "train", *flags(asked, placement, parts, folder)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"{placement}: {run.stderr[-2000:]}")
        rows = read_jsonl(Path(folder) / "metrics.jsonl")
    first = next(row for row in rows if row["time"] - rows[0]["time"] >= WARM_UP - 1)
    last, counted = rows[-1], rows[-1]["time"] - first["time"]
    return {
        "steps_per_second": (last["global_step"] - first["global_step"]) / counted,
        "updates_per_second": (last["charts/updates"] - first["charts/updates"]) / counted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="atari/breakout")
    parser.add_argument("--algorithm", default="a2c")
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--placements", nargs="*", default=["served", "inline"])
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--rollout", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="that count, for each contender in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of headrace train, last")
    asked = parser.parse_args()
    named = contenders(asked.parts, asked.placements)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in named}
    for turn in range(asked.rounds):
        names = [*named]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(measure(asked, **named[name]))
            print(f"round {turn + 1}: {name}: {found[name][-1]['steps_per_second']:,.0f} steps/s", flush=True)
    rows = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} | {"rounds": len(runs)}
        for name, runs in found.items()
    }
    base = next(iter(rows.values()))["steps_per_second"]
    print(f"\n{asked.env}, {asked.algorithm}, {asked.envs} environments, trajectories of {asked.rollout} steps, {asked.device}")
    print("| contender | steps/s | ratio | updates/s |\n| --- | ---: | ---: | ---: |")
    for name, row in rows.items():
        row["ratio"] = row["steps_per_second"] / base
        print(f"| {name} | {row['steps_per_second']:,.0f} | {row['ratio']:.2f} | {row['updates_per_second']:.1f} |")
    settings = {key: value for key, value in vars(asked).items() if key != "flags"} | {"flags": list(asked.flags)}
    path = Path(__file__).parent / "results" / f"device_strategies-{asked.env.replace('/', '-').lower()}.json"
    load = {"load_average": os.getloadavg()[0]}
    summary.write(path, {"machine": summary.machine() | load, "settings": settings, "contenders": rows})


if __name__ == "__main__":
    main()
