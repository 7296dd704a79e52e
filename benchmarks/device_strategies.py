"""The device placement's batching strategies (CuLE, Dalton et al. 2020, table 3 and figure 7), and other placements beside them.

    python benchmarks/device_strategies.py
    python benchmarks/device_strategies.py --env torch/CartPole-v1 --strategies 1x16 4x16 --placements served inline --rounds 5

A strategy is `BATCHESxSTEPS`: the environments are divided into that many batches, whose trajectories have that many steps
and end one after the other, STEPS / BATCHES steps apart (the paper's steps per update). So each batch holds STEPS x
environments / BATCHES steps of experience. All have the same environment, network and number of environments, and learn by
A2C with V-trace, as in the paper. Placements that are named have batches of one strategy, the first. In every round each
contender trains for `--seconds`, one after the other, in an order that is turned by one each round, so that what else the
machine does meets all of them. It should do nothing else: programs beside the benchmark take more from one process with
threads than from several processes. Printed are medians over the rounds; results/device_strategies-ENV.json keeps them with
the load, and .png shows updates against frames.
`--docs` writes the table into docs/device.md.
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


def contenders(strategies: list[str], placements: list[str]) -> dict[str, dict[str, Any]]:
    """What is measured, by name."""
    sizes = {strategy: tuple(map(int, strategy.split("x"))) for strategy in strategies}
    device = {f"device {name}": {"placement": "device", "parts": g, "steps": t} for name, (g, t) in sizes.items()}
    first = sizes[strategies[0]]
    return device | {name: {"placement": name, "parts": first[0], "steps": first[1]} for name in placements}


def flags(asked: argparse.Namespace, placement: str, parts: int, steps: int, folder: str) -> list[str]:
    """The command line of one run."""
    groups = 1 if placement == "device" else 2
    workers = asked.workers if placement in ("served", "inline") else 1
    return [
        "--env", asked.env, "--learning.algorithm", asked.algorithm, "--run.folder", folder, "--no-dashboard", "--no-video",
        "--sampling.placement", placement, "--sampling.num-workers", str(workers), "--sampling.num-groups", str(groups),
        "--sampling.envs-per-worker", str(asked.envs // workers), "--sampling.rollout", str(steps),
        "--learning.batch-size", str(asked.envs * steps // parts), "--learning.returns", "vtrace",
        "--learning.total-steps", "1000000000", "--run.goal", "None", "--run.log-interval", "1",
        "--run.max-minutes", str((WARM_UP + asked.seconds) / 60),
        "--learning.device", asked.device, *asked.flags,
    ]  # fmt: skip


def measure(asked: argparse.Namespace, placement: str, parts: int, steps: int) -> dict[str, float]:
    """Frames, steps and updates per second of one run, without its first seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headrace.cli", "train", *flags(asked, placement, parts, steps, folder)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"{placement}: {run.stderr[-2000:]}")
        rows = read_jsonl(Path(folder) / "metrics.jsonl")
    if len(rows) < 2:
        raise SystemExit(f"{placement}, {parts} batches: there was no update within the time; use more --seconds")
    first = next((row for row in rows[:-1] if row["time"] - rows[0]["time"] >= WARM_UP - 1), rows[-2])
    last, counted = rows[-1], rows[-1]["time"] - first["time"]
    frames = last["charts/FPS"] / last["charts/SPS_interval"]
    rate = (last["global_step"] - first["global_step"]) / counted
    return {
        "frames_per_second": rate * frames,
        "steps_per_second": rate,
        "updates_per_second": (last["charts/updates"] - first["charts/updates"]) / counted,
    }


def table(rows: dict[str, dict[str, float]]) -> str:
    lines = ["| strategy | frames/s | ratio | updates/s | steps of a batch |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, row in rows.items():
        numbers = f"{row['frames_per_second']:,.0f} | {row['ratio']:.2f} | {row['updates_per_second']:.1f} | {row['batch']:,}"
        lines.append(f"| {name} | {numbers} |")
    return "\n".join(lines)


def plot(rows: dict[str, dict[str, float]], title: str, path: Path) -> None:
    """Updates per second over training frames per second, a point for each strategy."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure, axis = plt.subplots(figsize=(6, 4))
    for name, row in rows.items():
        axis.plot(row["frames_per_second"], row["updates_per_second"], "o" if name.startswith("device") else "s")
        axis.annotate(name, (row["frames_per_second"], row["updates_per_second"]), (5, 5), textcoords="offset points", fontsize=8)
    axis.set(xlabel="training frames/s", ylabel="updates/s", yscale="log", title=title)
    axis.margins(y=0.15)
    axis.set_xlim(0, 1.25 * max(row["frames_per_second"] for row in rows.values()))
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def write_into_docs(text: str) -> None:
    """Replaces what stands between the markers in docs/device.md."""
    page, begin, end = Path(__file__).parents[1] / "docs" / "device.md", "<!-- strategies: begin -->", "<!-- strategies: end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="atari/breakout")
    parser.add_argument("--algorithm", default="a2c")
    parser.add_argument("--strategies", nargs="+", default=["1x5", "1x20", "5x5", "5x20", "20x20"])
    parser.add_argument("--placements", nargs="*", default=[])
    parser.add_argument("--envs", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="that count, for each contender in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/device.md")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of headrace train, last")
    asked = parser.parse_args()
    named = contenders(asked.strategies, asked.placements)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in named}
    for turn in range(asked.rounds):
        names = [*named]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(measure(asked, **named[name]))
            print(f"round {turn + 1}: {name}: {found[name][-1]['frames_per_second']:,.0f} frames/s", flush=True)
    rows: dict[str, dict[str, float]] = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} | {"rounds": len(runs)}
        for name, runs in found.items()
    }
    base = next(iter(rows.values()))["frames_per_second"]
    for name, row in rows.items():
        row["ratio"] = row["frames_per_second"] / base
        row["batch"] = named[name]["steps"] * asked.envs // named[name]["parts"]
    title = f"{asked.env}, {asked.algorithm} with V-trace, {asked.envs} environments, {asked.device}"
    print(f"\n{title}\n{table(rows)}")
    settings = {key: value for key, value in vars(asked).items() if key not in ("flags", "docs")} | {"flags": list(asked.flags)}
    path = Path(__file__).parent / "results" / f"device_strategies-{asked.env.replace('/', '-').lower()}.json"
    load = {"load_average": os.getloadavg()[0]}
    summary.write(path, {"machine": summary.machine() | load, "settings": settings, "contenders": rows})
    plot(rows, title, path.with_suffix(".png"))
    if asked.docs:
        write_into_docs(table(rows))


if __name__ == "__main__":
    main()
