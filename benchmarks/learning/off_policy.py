"""How far off-policy does IMPALA learn in each placement, and does it cost steps? One environment, the same settings everywhere.

    python benchmarks/learning/off_policy.py --env gym/CartPole-v1 --steps 150000 --seeds 1 2 3
    python benchmarks/learning/off_policy.py --env minatar/breakout --import benchmarks/learning/worlds.py \
        --placements inline served remote --steps 1000000 --seeds 1 --out benchmarks/learning/results/off_policy_minatar.json

`remote` is `served` with all environments at a `headrace serve-envs` of its own over loopback. Every run is a `headrace train` of
its own, one after the other. Writes a table and the curves (--out, and the same name with .png): lag (updates) and importance
ratios with their distributions over all samples, and the share of samples that each of V-trace's clips truncates, medians over
the intervals of all seeds; the return of the last 100 episodes in the end, by seed.

A run has no metrics of distributions, so every run imports this file too (--import). It then patches the learner and the
algorithm where the numbers are at hand. The new metrics are shares of the samples of a batch:

    measured/lag_0 ... lag_20, lag_21    policy lag in updates; the last one: 21 and more
    measured/ratio_0 ... ratio_6         importance ratio pi / mu between the edges `RATIOS`
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

PLACEMENTS = ("serial", "inline", "served", "device", "remote")
COLUMNS = {
    "lag/mean": "lag, mean",
    "lag/max": "largest",
    "losses/ratio_mean": "ratio, mean",
    "losses/ratio_max": "largest",
    "losses/rho_clipped": "rho clipped",
    "losses/c_clipped": "c clipped",
}
PERCENTILES = (5, 50, 95, 99)
Rows = list[dict[str, float]]


# -- in a run --------------------------------------------------------------------------------------------------------

RATIOS = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)
"""Edges between the bins of importance ratios."""
MOST_LAG = 21


def lag_names() -> list[str]:
    """Metrics of the lag's distribution, in order."""
    return [f"measured/lag_{n}" for n in range(MOST_LAG + 1)]


def ratio_names() -> list[str]:
    """Metrics of the ratios' distribution, in order."""
    return [f"measured/ratio_{n}" for n in range(len(RATIOS) + 1)]


def install() -> None:
    """Patch the learner and the algorithm of this process."""
    import torch

    from headrace.learning import losses
    from headrace.learning.learner import Learner
    from headrace.learning.policy_gradient import PolicyGradient

    clipped, learn = PolicyGradient._clipped, Learner.learn
    edges = torch.tensor([math.log(edge) for edge in RATIOS])

    @functools.wraps(clipped)
    def with_ratios(self: Any, log_prob: Any, batch: Any, c: Any) -> dict[str, Any]:
        bins = torch.bucketize(log_prob.detach() - batch["log_prob"], edges)
        shares = {name: losses.masked_mean((bins == n).float(), batch["mask"]) for n, name in enumerate(ratio_names())}
        return clipped(self, log_prob, batch, c) | shares

    @functools.wraps(learn)
    def with_lag(self: Any, batch: Any) -> Any:
        lag = (self.progress.version - batch.version)[batch.valid[: len(batch.version)]].clamp(0, MOST_LAG).long()
        update = learn(self, batch)
        if lag.numel():
            shares = torch.bincount(lag.flatten(), minlength=MOST_LAG + 1).float() / lag.numel()
            update.statistics.update(zip(lag_names(), shares.unbind(), strict=True))
        return update

    PolicyGradient._clipped, Learner.learn = with_ratios, with_lag  # type: ignore[method-assign]


# -- all runs ----------------------------------------------------------------------------------------------------------


def serve(env: str, num_envs: int, imports: list[str], stack: ExitStack) -> str:
    """Start an environment server; its address. `imports`: flags."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="off-policy-"))
    log = Path(folder) / "log"
    command = [sys.executable, "-m", "headrace.cli", "serve-envs", "--env", env, "--num-envs", str(num_envs)]
    command += ["--listen", "127.0.0.1:0", *imports]
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


def import_flags(files: list[Any]) -> list[str]:
    """The flags of `headrace` that import these files."""
    return ["--import", *map(str, files)] if files else []


def run(env: str, placement: str, seed: int, steps: int, imports: list[str], settings: list[str]) -> Rows:
    """The metrics of one training run. `imports`: files."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="off-policy-"))
        flags = ["--env", env, "--learning.algorithm", "impala", "--seed", str(seed), "--learning.total-steps", str(steps)]
        flags += ["--sampling.placement", "served" if placement == "remote" else placement, "--run.folder", folder]
        flags += ["--run.log-interval", "1", "--run.no-video", "--run.no-dashboard", *settings]
        flags += import_flags([*imports, Path(__file__).resolve()])
        if placement == "remote":
            flags += ["--envs.remote", serve(env, 1024, import_flags(imports), stack)]
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
    lags, ratios = (mean_shares(every, names) for names in (lag_names(), ratio_names()))
    return {
        **{key: round(median(values), 4) if values else None for key, values in found.items()},
        "lag_percentiles": {share: percentile(lags, share / 100) for share in PERCENTILES},
        "lag_shares": lags,
        "ratio_shares": ratios,
        "steps_per_second": round(median(rates)) if rates else None,
        "final_return": [round(end[0], 1) for end in ends if end],
    }


def mean_shares(points: Rows, names: list[str]) -> list[float]:
    """The share of each bin over all intervals, weighted by their updates."""
    known = [p for p in points if names[0] in p]
    before = {id(p): q.get("charts/updates", 0.0) for q, p in zip([{}, *points], points, strict=False)}
    weights = [max(0.0, p["charts/updates"] - before[id(p)]) for p in known]
    total = sum(weights) or 1.0
    return [round(sum(w * p[name] for w, p in zip(weights, known, strict=True)) / total, 5) for name in names]


def percentile(shares: list[float], share: float) -> int:
    """The smallest lag that at least this share of the samples does not exceed; the last bin holds all larger ones."""
    return next((lag for lag, total in enumerate(accumulate(shares)) if total >= share - 1e-6), len(shares) - 1)


def curve(points: Rows) -> list[list[float]]:
    """Step, return of the last 100 episodes, mean lag; some of a run."""
    keys = ("global_step", "charts/episodic_return_100", "lag/mean")
    known = [[round(p[key], 2) for key in keys] for p in points if all(key in p for key in keys)]
    return summary.thin(known, 15)


def draw(curves: dict[str, list[Rows]], table: dict[str, dict[str, Any]], env: str, path: Path) -> None:
    """Return and lag against steps, and the distributions of lag and of importance ratios."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((top, lags), (bottom, ratios)) = pyplot.subplots(2, 2, figsize=(12, 7), height_ratios=(3, 2))
    edges = [f"{edge:g}" for edge in RATIOS]
    bins = [f"<{edges[0]}", *(f"{a}-{b}" for a, b in pairwise(edges)), f">{edges[-1]}"]
    for color, (placement, runs) in enumerate(curves.items()):
        for number, points in enumerate(runs):
            for axis, key in ((top, "charts/episodic_return_100"), (bottom, "lag/mean")):
                known = [(p["global_step"], p[key]) for p in points if key in p]
                label = placement if number == 0 and axis is top else None
                axis.plot(*zip(*known, strict=True), color=f"C{color}", alpha=0.8, label=label) if known else None
        lags.plot(table[placement]["lag_shares"], color=f"C{color}", marker=".")
        at = [n + (color - (len(curves) - 1) / 2) * 0.8 / len(curves) for n in range(len(bins))]
        ratios.bar(at, table[placement]["ratio_shares"], width=0.8 / len(curves), color=f"C{color}")
    top.set(ylabel="return of the last 100 episodes", title=f"IMPALA on {env}")
    bottom.set(xlabel="steps", ylabel="policy lag, mean")
    lags.set(xlabel=f"policy lag of a sample, updates (the last point: {MOST_LAG} and more)", ylabel="share")
    ratios.set(xlabel="importance ratio", ylabel="share", xticks=range(len(bins)), xticklabels=bins)
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
    parser.add_argument("--keep", type=Path, help="folder for the runs' metrics; a run whose metrics are there is not made again")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="file that registers the environment")
    args, settings = parser.parse_known_args()
    curves: dict[str, list[Rows]] = {placement: [] for placement in args.placements}
    for seed in args.seeds:
        for placement in args.placements:
            kept = args.keep and args.keep / f"{args.env.replace('/', '-')}-{placement}-{seed}.json"
            if not (kept and kept.exists()):
                made = run(args.env, placement, seed, args.steps, args.imports, settings)
                if kept:
                    summary.write(kept, made)
            curves[placement].append(json.loads(kept.read_text()) if kept else made)
            print(f"{time.strftime('%X')} seed {seed}, {placement}: {row(curves[placement][-1:])}", flush=True)
    table = {placement: row(runs) for placement, runs in curves.items()}
    heads = [*COLUMNS.values(), "lag of " + ", ".join(f"{p} %" for p in PERCENTILES), "steps/s", "final return"]
    print("\n| placement | " + " | ".join(heads) + " |\n|" + " --- |" * (len(heads) + 1))
    for placement, values in table.items():
        cells = [f"{values[key]:.3g}" if values[key] is not None else "" for key in COLUMNS]
        cells += [", ".join(map(str, values["lag_percentiles"].values()))]
        cells += [f"{values['steps_per_second']:,}" if values["steps_per_second"] else ""]
        print(f"| {placement} | {' | '.join(cells)} | {', '.join(f'{end:g}' for end in values['final_return'])} |")
    about = {"machine": summary.machine(), "env": args.env, "steps": args.steps, "seeds": args.seeds, "settings": settings}
    about |= {"ratio_edges": list(RATIOS), "placements": table}
    summary.write(args.out, about | {"curves": {name: [curve(points) for points in runs] for name, runs in curves.items()}})
    draw(curves, table, args.env, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
elif __name__.startswith("headrace_import"):
    process = multiprocessing.current_process().name
    if "learner" in process or process == "MainProcess":  # only where something is learned
        install()
