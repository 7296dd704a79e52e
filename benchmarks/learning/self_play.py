"""Does self-play learn? Connect four against itself, a league in a game with cycles, and a cooperative game.

    python benchmarks/learning/self_play.py connect-four rps meeting

Each prints what it measured, draws a plot and keeps a summary in results/. Everything is trained on the CPU, with one seed.

connect-four   self-play; matches against a random player and against one that wins or blocks in one move; the rating over time
rps            rock, paper, scissors where rock against scissors counts twice: exploitability of the policy over training, by
               plain self-play (the newest version only) and by the league; the optimum is known, its exploitability is 0
meeting        three agents with one policy that are paid when they meet
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import games  # noqa: E402
import summary  # noqa: E402

from headrace.evaluation.matches import play  # noqa: E402
from headrace.evaluation.play import evaluate  # noqa: E402
from headrace.evaluation.policy import load_policy  # noqa: E402
from headrace.make_config import make_config  # noqa: E402
from headrace.population.matchmaking import make_script  # noqa: E402
from headrace.runs.metrics import read_jsonl  # noqa: E402
from headrace.train import train  # noqa: E402

RESULTS = HERE / "results"
GAMES = str(HERE / "games.py")


def run(env: str, folder: Path, **settings: Any) -> float:
    """Train; returns the minutes it took."""
    fixed = {"run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 5.0}
    started = time.perf_counter()
    train(make_config(env, None, (GAMES,), **fixed, **settings))
    return (time.perf_counter() - started) / 60


def draw(path: Path, curves: dict[str, tuple[list[float], list[float]]], ylabel: str, title: str) -> None:
    """Curves over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, (x, y) in curves.items():
        axes.plot(x, y, label=name)
    axes.set(xlabel="steps", ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def keep(name: str, found: dict[str, Any]) -> None:
    """Print and save."""
    summary.write(RESULTS / f"self-play-{name}.json", found)
    print(json.dumps(found, indent=1), flush=True)


def connect_four(folder: Path, minutes: float) -> None:
    """See the module."""
    took = run("pettingzoo/connect_four_v3", folder, **{
        "matches.matchmaker": "self-play", "matches.save_steps": 20_000, "matches.team_change": 50_000, "matches.window": 10,
        "matches.swap_steps": 1_000, "matches.play_against_latest_model_ratio": 0.6, "sampling.placement": "inline",
        "learning.total_steps": 10**9, "run.max_minutes": minutes, "policy.mlp": [256, 256],
        "sampling.envs_per_worker": 64, "sampling.rollout": 16, "learning.batch_size": 4096, "learning.gamma": 0.98,
    })  # fmt: skip
    policy = load_policy(folder, device="cpu")
    options, spec = policy.config.envs, policy.spec
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if "matches/elo" in line]
    results = {}
    for rival in ("random", "one-move"):
        for how in (False, True):
            found = play(policy, make_script(rival, spec), policy.config.env, options, 500, deterministic=how)
            results[f"{rival}, {'most probable' if how else 'sampled'} moves"] = str(found)
    draw(RESULTS / "self-play-connect-four.png", {"Elo": ([x["global_step"] for x in lines], [x["matches/elo"] for x in lines])},
         "Elo rating", "connect four by self-play")  # fmt: skip
    keep("connect-four", {
        "minutes": round(took, 1), "steps": policy.step, "results": results,
        "elo": summary.thin([round(line["matches/elo"], 1) for line in lines], 20), "machine": summary.machine(),
    })  # fmt: skip


def strategy(policy: Any) -> np.ndarray:
    """The mixed strategy [3] of a policy in the matrix game."""
    import torch

    obs = {"obs": torch.ones(1, 1)}
    with torch.inference_mode():
        out = policy.model.act(obs, policy.initial_core(1), torch.ones(1, dtype=torch.bool))
        log = [float(out.distribution.log_prob(torch.tensor([[a]], dtype=torch.int32))) for a in range(3)]
    return np.exp(log)


def rps(folder: Path, minutes: float) -> None:
    """See the module."""
    curves, found = {}, {}
    ways = {
        "plain self-play": {"matches.matchmaker": "fixed"},
        "league": {"matches.matchmaker": "league", "matches.save_steps": 2_000, "matches.window": 40,
                   "matches.play_against_latest_model_ratio": 0.2, "matches.hardness": 1.0},
    }  # fmt: skip
    for name, settings in ways.items():
        at = folder / name.replace(" ", "-")
        run("games/rps", at, **{
            "sampling.placement": "serial", "run.milestone_steps": 5_000, "run.checkpoint_interval": 1e6,
            "learning.total_steps": 300_000, "run.max_minutes": minutes / 2, **settings,
        })  # fmt: skip
        points = []
        for checkpoint in sorted((at / "checkpoints").iterdir()):
            if (checkpoint / "manifest.json").exists() or checkpoint.is_dir():
                policy = load_policy(at, which=checkpoint, device="cpu")
                points.append((policy.step, strategy(policy)))
        points.sort(key=lambda point: point[0])
        steps, played = [float(s) for s, _ in points], np.array([p for _, p in points])
        each = [games.exploitability(p) for p in played]
        curves[name] = (steps, each)
        half = len(played) // 2
        found[name] = {
            "mean exploitability of the newest policy, second half": round(float(np.mean(each[half:])), 3),
            "exploitability of the mean strategy, second half": round(games.exploitability(played[half:].mean(0)), 3),
            "mean strategy, second half": np.round(played[half:].mean(0), 3).tolist(),
            "checkpoints": len(played),
        }
    draw(RESULTS / "self-play-rps.png", curves, "exploitability", "weighted rock, paper, scissors (optimum: 0)")
    keep("rps", {"optimum": games.OPTIMUM.tolist(), "always rock": games.exploitability(np.array([1.0, 0, 0])), **found})


def meeting(folder: Path, minutes: float) -> None:
    """See the module."""
    took = run(
        "games/meeting", folder, **{"sampling.placement": "inline", "run.max_minutes": minutes, "learning.total_steps": 10**9}
    )
    key = "charts/episodic_return_100"
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if key in line]
    curve = [x["global_step"] for x in lines], [x[key] for x in lines]
    draw(RESULTS / "self-play-meeting.png", {"share of matches in which they meet": curve}, key, "three agents that must meet")
    result = evaluate(folder, 600, deterministic=False)
    keep("meeting", {"minutes": round(took, 1), "steps": result.step, "mean return": result.mean, "ci95": result.ci95})


TASKS = {"connect-four": connect_four, "rps": rps, "meeting": meeting}


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--minutes", type=float, default=10.0, help="training time of one task")
    asked = parser.parse_args()
    for task in asked.tasks:
        with tempfile.TemporaryDirectory() as folder:
            TASKS[task](Path(folder) / "run", asked.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
