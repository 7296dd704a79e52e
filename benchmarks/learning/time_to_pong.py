"""Minutes to 18 in Pong, as `make train` runs it: trains some seeds and adds a row to a record that is kept.

    python benchmarks/learning/time_to_pong.py --seeds 3
    python benchmarks/learning/time_to_pong.py --seeds 3 --set learning.learning_rate=1e-3 sampling.num_groups=2
    python benchmarks/learning/time_to_pong.py --seeds 1 --record benchmarks/learning/results/device_pong.json --all \
        --set learning.algorithm=pqn sampling.placement=device
    python benchmarks/learning/time_to_pong.py --show

Settings are those of `headrace train --env atari/pong` but for `--set`. The time counts from the start of `headrace train` in a
process of its own, start-up included, to the first line of metrics with a mean return of 18 over the last 100 training episodes.
A seed that does not get there within `--minutes` has none. Afterwards the newest policy plays 30 whole games. Whether the machine
was quiet is written down with it: the load before each seed, and the share of the processor that all programs used meanwhile. The
record is results/time_to_pong.json, written after each seed; the table it prints has one row for each entry, newest last. The
curves of the newest entry are in results/time_to_pong.png; with --all those of every entry, one colour each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

RECORD = HERE / "results" / "time_to_pong.json"
GOAL = 18.0
POINTS = 12
"""Of each seed's curve in the record."""
GAMES = 30
"""Of the evaluation after training."""


def curve_of(rows: list[dict[str, float]], began: float) -> list[tuple[float, float, float]]:
    """Minutes since `began` (seconds since 1970), global step, mean return of the last 100 episodes: of every line of metrics
    that has one."""
    key = "charts/episodic_return_100"
    return [((row["time"] - began) / 60, row["global_step"], row[key]) for row in rows if key in row]


def reached(curve: list[tuple[float, float, float]], goal: float = GOAL) -> tuple[float, float] | None:
    """Minutes and steps at which the curve is first at the goal; None: never."""
    return next(((minutes, step) for minutes, step, mean in curve if mean >= goal), None)


def read(record: Path) -> list[dict[str, Any]]:
    """The entries of a record; none where there is no file."""
    return json.loads(record.read_text())["entries"] if record.exists() else []


def entry_of(seeds: list[dict[str, Any]], settings: dict[str, str], facts: dict[str, Any], date: str) -> dict[str, Any]:
    """One entry of the record."""
    commit = (facts.get("git") or {}).get("commit") or "unknown"
    return {"date": date, "commit": commit, "settings": settings, "seeds": seeds, "machine": facts}


def table(entries: list[dict[str, Any]]) -> str:
    """The record as Markdown."""
    lines = [
        "| date | commit | settings | seed: minutes, million steps to 18 | evaluation | steps/s | load before, CPU in use |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        settings = ", ".join(f"{name} {value}" for name, value in entry["settings"].items()) or "none"
        times = [
            f"{s['seed']}: {s['minutes']:.1f}, {s['steps'] / 1e6:.2f}" if s["minutes"] is not None
            else f"{s['seed']}: not in {s['curve'][-1][0]:.1f}, {s['curve'][-1][1] / 1e6:.2f}; {s['best']:.1f} at best"
            for s in entry["seeds"]
        ]  # fmt: skip
        rates = ", ".join(f"{s['steps_per_second']:,.0f}" for s in entry["seeds"])
        loads = "; ".join(f"{s['load_before']:.1f}, {s['processor']:.0%}" for s in entry["seeds"])
        scores = "; ".join("{mean:.1f} ({ci95[0]:.1f} to {ci95[1]:.1f})".format(**s["evaluation"]) for s in entry["seeds"])
        commit = str(entry["commit"])[:7]
        lines.append(f"| {entry['date']} | {commit} | {settings} | {'; '.join(times)} | {scores} | {rates} | {loads} |")
    return "\n".join(lines)


def draw(path: Path, entries: list[dict[str, Any]]) -> None:
    """The curves of all entries over steps and over minutes, one colour for each entry."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for number, entry in enumerate(entries):
        rollout = entry["settings"].get("sampling.rollout")
        label = entry["settings"].get("learning.algorithm", "default") + (f", {rollout} steps" if rollout else "")
        for axes, column, unit in zip(panels, (1, 0), (1e6, 1.0), strict=True):
            for seed in entry["seeds"]:
                points = [(point[column] / unit, point[2]) for point in seed["curve"]]
                axes.plot(*zip(*points, strict=True), color=f"C{number}", label=label if seed is entry["seeds"][0] else None)
    for axes, name in zip(panels, ("million steps", "minutes"), strict=True):
        axes.axhline(GOAL, color="grey", linewidth=0.8, linestyle="--")
        axes.set(xlabel=name, ylabel="mean return of 100 games")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def train(seed: int, settings: dict[str, str], minutes: float, folder: Path) -> dict[str, Any]:
    """Train one seed in a process of its own and evaluate it. Raises `SystemExit` with its output if it fails."""
    import headrace
    from headrace.runs.metrics import read_jsonl

    command = [sys.executable, "-m", "headrace.cli", "train", "--env", "atari/pong", "--seed", str(seed)]
    command += ["--run.folder", str(folder), "--run.must-be-new", "--run.no-video", "--run.no-dashboard"]
    command += ["--run.log-interval", "2", "--run.goal", str(GOAL), "--run.max-minutes", str(minutes)]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", *value.split()]
    load, began = os.getloadavg()[0], time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"seed {seed} failed, exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    rows = read_jsonl(folder / "metrics.jsonl")
    curve = curve_of(rows, began)
    at = reached(curve)
    used = [row["system/cpu"] for row in rows if "system/cpu" in row]
    played = headrace.evaluate(folder, GAMES, deterministic=False)
    rate = rows[-1]["global_step"] / max(1e-9, rows[-1]["time"] - rows[0]["time"])
    return {
        "seed": seed,
        "minutes": round(at[0], 2) if at else None,
        "steps": int(at[1]) if at else None,
        "limit_minutes": minutes,
        "evaluation": {"mean": played.mean, "ci95": played.ci95, "episodes": GAMES, "distinct": played.distinct},
        "best": max((mean for _, _, mean in curve), default=float("-inf")),
        "steps_per_second": round(rate, 1),
        "load_before": round(load, 1),
        "processor": round(sum(used) / max(1, len(used)), 2),
        "curve": [[round(number, 2) for number in point] for point in summary.thin(curve, POINTS)],
    }


def main() -> int:
    """Train, add an entry to the record, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=40.0, help="limit for one seed")
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=VALUE", help="settings beyond the defaults")
    parser.add_argument("--runs", type=Path, default=Path("runs/time-to-pong"), help="where the run folders go")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--all", action="store_true", help="draw all entries of the record, not the newest alone")
    parser.add_argument("--show", action="store_true", help="print the record and train nothing")
    arguments = parser.parse_args()
    entries = read(arguments.record)
    if not arguments.show:
        from headrace.runs.plots import learning_curve

        settings = dict(item.split("=", 1) for item in arguments.set)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        seeds, folders, facts = [], [], summary.machine()
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            folders.append(arguments.runs / f"{stamp}-{seed}")
            seeds.append(train(seed, settings, arguments.minutes, folders[-1]))
            new = entry_of(seeds, settings, facts, time.strftime("%Y-%m-%d"))
            others = [entry for entry in read(arguments.record) if entry["machine"] != facts]  # others may have come meanwhile
            entries = [*others, new]
            summary.write(arguments.record, {"goal": GOAL, "entries": entries})
            print(table(entries).splitlines()[-1], flush=True)
        picture = arguments.record.with_suffix(".png")
        if arguments.all:
            draw(picture, entries)
        else:
            learning_curve(folders, picture, title="Pong, as make train runs it", goal=GOAL)
    print(table(entries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
