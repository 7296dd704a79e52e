"""How far off-policy does IMPALA learn in each placement, and does it cost steps? One environment, the same settings everywhere.

    python benchmarks/learning/off_policy.py --env gym/CartPole-v1 --steps 150000 --seeds 1 2 3

`remote` is `served` with all environments at a `headrace serve-envs` of its own over loopback. Every run is a `headrace train` of
its own, one after the other. Writes a table to results/off_policy.json and the curves to results/off_policy.png: lag (updates),
importance ratios and the share of samples that each of V-trace's clips truncates, medians over the intervals of all seeds; the
return of the last 100 episodes in the end, by seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

PLACEMENTS = ("serial", "inline", "served", "device", "remote")
COLUMNS = {
    "lag/mean": "lag, mean",
    "lag/max": "lag, largest",
    "losses/ratio_mean": "ratio, mean",
    "losses/ratio_max": "ratio, largest",
    "losses/rho_clipped": "rho clipped",
    "losses/c_clipped": "c clipped",
}
Rows = list[dict[str, float]]


def serve(env: str, num_envs: int, stack: ExitStack) -> str:
    """Start an environment server; its address."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="off-policy-"))
    log = Path(folder) / "log"
    command = [sys.executable, "-m", "headrace.cli", "serve-envs", "--env", env, "--num-envs", str(num_envs)]
    command += ["--listen", "127.0.0.1:0"]
    with log.open("wb") as out:
        server = stack.enter_context(subprocess.Popen(command, stdout=out, stderr=out))
    stack.callback(server.terminate)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        for word in log.read_text().replace(",", " ").split():
            if word.startswith("127.0.0.1:") and not word.endswith(":0"):
                return word.rstrip(".")
        time.sleep(0.1)
    raise SystemExit(f"the environment server did not start:\n{log.read_text()}")


def run(env: str, placement: str, seed: int, steps: int, settings: list[str]) -> Rows:
    """The metrics of one training run."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="off-policy-"))
        flags = ["--env", env, "--learning.algorithm", "impala", "--seed", str(seed), "--learning.total-steps", str(steps)]
        flags += ["--sampling.placement", "served" if placement == "remote" else placement, "--run.folder", folder]
        flags += ["--run.log-interval", "1", "--run.no-video", "--run.no-dashboard", *settings]
        if placement == "remote":
            flags += ["--envs.remote", serve(env, 1024, stack)]
        command = [sys.executable, "-m", "headrace.cli", "train", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def row(runs: list[Rows]) -> dict[str, Any]:
    """Medians over the intervals of all runs, and what each run ended with."""
    every = [point for points in runs for point in points]
    found = {key: [point[key] for point in every if key in point] for key in COLUMNS}
    rates = [point["charts/SPS_interval"] for point in every if "charts/SPS_interval" in point]
    ends = [[p["charts/episodic_return_100"] for p in points if "charts/episodic_return_100" in p][-1:] for points in runs]
    return {
        **{key: round(median(values), 4) if values else None for key, values in found.items()},
        "steps_per_second": round(median(rates)) if rates else None,
        "final_return": [round(end[0], 1) for end in ends if end],
    }


def draw(curves: dict[str, list[Rows]], env: str, path: Path) -> None:
    """Return against steps, and lag against steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(7, 7), sharex=True, height_ratios=(3, 1))
    for color, (placement, runs) in enumerate(curves.items()):
        for number, points in enumerate(runs):
            for axis, key in ((top, "charts/episodic_return_100"), (bottom, "lag/mean")):
                known = [(p["global_step"], p[key]) for p in points if key in p]
                label = placement if number == 0 and axis is top else None
                axis.plot(*zip(*known, strict=True), color=f"C{color}", alpha=0.8, label=label) if known else None
    top.set(ylabel="return of the last 100 episodes", title=f"IMPALA on {env}")
    bottom.set(xlabel="steps", ylabel="policy lag, mean")
    top.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gym/CartPole-v1")
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--placements", nargs="*", choices=PLACEMENTS, default=list(PLACEMENTS))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "off_policy.json")
    args, settings = parser.parse_known_args()
    curves: dict[str, list[Rows]] = {placement: [] for placement in args.placements}
    for seed in args.seeds:
        for placement in args.placements:
            curves[placement].append(run(args.env, placement, seed, args.steps, settings))
            print(f"seed {seed}, {placement}: {row(curves[placement][-1:])}", flush=True)
    table = {placement: row(runs) for placement, runs in curves.items()}
    print("\n| placement | " + " | ".join(COLUMNS.values()) + " | steps/s | final return |\n|" + "---|" * (len(COLUMNS) + 3))
    for placement, values in table.items():
        cells = [f"{values[key]:.3g}" if values[key] is not None else "" for key in COLUMNS]
        ends = ", ".join(f"{end:g}" for end in values["final_return"])
        rate = f"{values['steps_per_second']:,}" if values["steps_per_second"] else ""
        print(f"| {placement} | {' | '.join(cells)} | {rate} | {ends} |")
    about = {"machine": summary.machine(), "env": args.env, "steps": args.steps, "seeds": args.seeds, "settings": settings}
    summary.write(args.out, about | {"placements": table})
    draw(curves, args.env, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
