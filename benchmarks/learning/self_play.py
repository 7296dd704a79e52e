"""Does self-play learn? Connect four against itself, a league in a game with cycles, and a cooperative game.

    python benchmarks/learning/self_play.py connect-four rps meeting

Each prints what it measured, draws a plot and keeps a summary in results/. Everything is trained on the CPU; rps with several
seeds, the others with one.

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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import summary  # noqa: E402

from headrace.envs.core.imports import import_files  # noqa: E402
from headrace.evaluation.evaluate import evaluate  # noqa: E402
from headrace.evaluation.matches import play  # noqa: E402
from headrace.evaluation.policy import load_policy  # noqa: E402
from headrace.make_config import make_config  # noqa: E402
from headrace.population.matchmaking import make_script  # noqa: E402
from headrace.runs import checkpoint as checkpoints  # noqa: E402
from headrace.runs.metrics import read_jsonl  # noqa: E402
from headrace.runs.training_state import load_weights  # noqa: E402
from headrace.train import train  # noqa: E402

RESULTS = HERE / "results"
GAMES = str(HERE / "games.py")
import_files((GAMES,))  # as the runs do: imported twice, it would register its network twice
games = next(module for module in sys.modules.values() if getattr(module, "__file__", None) == GAMES)


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


CONNECT_FOUR: dict[str, Any] = {
    "envs.kwargs": {"opening": 12}, "matches.matchmaker": "self-play", "matches.save_steps": 200_000,
    "matches.team_change": 100_000, "matches.window": 4, "matches.swap_steps": 20_000,
    "matches.play_against_latest_model_ratio": 0.8, "sampling.placement": "inline", "sampling.num_workers": 1,
    "sampling.num_groups": 1, "sampling.envs_per_worker": 192, "sampling.rollout": 16, "policy.encoder": "lines",
    "policy.mlp": [128, 128], "learning.algorithm": "ppo", "learning.batch_size": 6144, "learning.num_minibatches": 8,
    "learning.num_epochs": 3, "learning.learning_rate": 1e-3, "learning.lr_schedule": "linear", "learning.entropy_coef": 0.02,
    "learning.ppo_clip": 0.2, "learning.gae_lambda": 0.9, "learning.returns": "gae",
}  # fmt: skip


def connect_four(folder: Path, asked: argparse.Namespace) -> None:
    """See the module."""
    env = "games/connect_four"  # PettingZoo's game, without its wrappers
    took = run(env, folder, **CONNECT_FOUR, **{
        "learning.total_steps": asked.steps, "run.milestone_steps": asked.steps // 10, "run.max_minutes": asked.minutes,
    })  # fmt: skip
    policy = load_policy(folder, device="cpu")
    options = replace(policy.config.envs, kwargs={})  # matches from the empty board
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if "matches/elo" in line]
    rivals = {rival: make_script(rival, policy.spec) for rival in ("random", "one-move")}
    results = {}
    for rival, script in rivals.items():
        for how in (False, True):
            found = play(policy, script, env, options, 500, deterministic=how)
            results[f"{rival}, {'most probable' if how else 'sampled'} moves"] = str(found)
    scripts = play(rivals["one-move"], rivals["random"], env, options, 500)
    points = sorted((folder / "checkpoints").iterdir(), key=lambda path: path.name)
    curve: dict[str, tuple[list[float], list[float]]] = {rival: ([], []) for rival in rivals}
    for checkpoint in points:
        past = load_policy(folder, which=checkpoint, device="cpu")
        for rival, script in rivals.items():
            curve[rival][0].append(past.step)
            curve[rival][1].append(play(past, script, env, options, 100).win_rate)
    elo = [x["global_step"] for x in lines], [x["matches/elo"] for x in lines]
    draw_connect_four(RESULTS / "self-play-connect-four.png", elo, curve)
    keep("connect-four", {
        "settings": CONNECT_FOUR, "minutes": round(took, 1), "steps": policy.step, "results": results,
        "one-move against random": str(scripts), "win rate over training, sampled moves": curve,
        "elo": summary.thin([[x, round(y, 1)] for x, y in zip(*elo, strict=True)], 20), "machine": summary.machine(),
    })  # fmt: skip


def draw_connect_four(path: Path, elo: tuple[list[float], list[float]], curves: dict[str, Any]) -> None:
    """The rating, and the win rates against scripted players, over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*elo)
    left.set(xlabel="steps", ylabel="Elo rating", title="connect four by self-play")
    for rival, (x, y) in curves.items():
        right.plot(x, y, ".-", label=f"against {rival}")
    right.set(xlabel="steps", ylabel="win rate, sampled moves, 100 matches", ylim=(0, 1.02), title="against scripted players")
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def strategy(policy: Any) -> np.ndarray:
    """The mixed strategy [3] of a policy in the matrix game."""
    import torch

    obs = {"obs": torch.ones(1, 1)}
    with torch.inference_mode():
        out = policy.model.act(obs, policy.initial_core(1), torch.ones(1, dtype=torch.bool))
        log = [float(out.distribution.log_prob(torch.tensor([[a]], dtype=torch.int32))) for a in range(3)]
    return np.exp(log)


WAYS: dict[str, dict[str, Any]] = {
    "plain self-play": {"matches.matchmaker": "fixed"},
    "league": {"matches.matchmaker": "league", "matches.save_steps": 3_000, "matches.window": 256,
               "matches.play_against_latest_model_ratio": 0.2, "matches.hardness": 1.0},
}  # fmt: skip
RPS: dict[str, Any] = {
    "learning.batch_size": 64, "sampling.rollout": 1, "sampling.envs_per_worker": 64, "learning.exploration": "symmetric-kl",
    "learning.entropy_coef": 0.2, "learning.normalize_advantages": False,
}  # fmt: skip
"""Of both ways. A match is one step, and so is a trajectory: a longer one would end where the policy of its lane changes, and a
batch of the league would then have fewer valid steps than one of plain self-play. The exploration term is one that does not
vanish where a policy nearly always plays the same hand."""


Curves = dict[float, dict[str, list[tuple[list[float], np.ndarray]]]]
"""By learning rate and way, of each seed: steps, and strategies [n, 3]."""


def strategies(folder: Path) -> tuple[list[float], np.ndarray]:
    """Steps of a run's checkpoints, and the strategies [n, 3] of their policies."""
    points = []
    policy = load_policy(folder, device="cpu")
    for path in (folder / "checkpoints").iterdir():
        if path.is_dir():
            found = checkpoints.load(path)
            load_weights(policy.model, found.unpack()["model"], found.path)
            points.append((float(found.step), strategy(policy)))
    points.sort(key=lambda point: point[0])
    return [step for step, _ in points], np.array([played for _, played in points])


def one_rps(folder: Path, way: str, rate: float, seed: int, total: int) -> tuple[list[float], np.ndarray]:
    """Train; see `strategies`."""
    at = folder / f"{way.replace(' ', '-')}-{rate:g}-{seed}"
    run("games/rps", at, **RPS, **WAYS[way], **{
        "sampling.placement": "serial", "run.milestone_steps": total // 40, "run.checkpoint_interval": 1e6, "seed": seed,
        "learning.total_steps": total, "learning.learning_rate": rate,
    })  # fmt: skip
    return strategies(at)


def rps(folder: Path, asked: argparse.Namespace) -> None:
    """See the module. Every way with every learning rate, since the best one need not be the same."""
    runs = [(way, rate, seed) for rate in asked.rps_rates for seed in range(asked.seeds) for way in WAYS]
    curves: Curves = {}
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        started = [pool.submit(one_rps, folder, *one, asked.rps_steps) for one in runs]
        for (way, rate, seed), result in zip(runs, started, strict=True):
            seeds = curves.setdefault(rate, {name: [] for name in WAYS})[way]
            seeds.append(result.result())
            print(f"{way}, learning rate {rate:g}, seed {seed}:", of_rps(seeds[-1:]), flush=True)
            if all(len(seeds) == asked.seeds for seeds in curves[rate].values()):
                keep_rps(curves, asked)


def keep_rps(curves: Curves, asked: argparse.Namespace) -> None:
    """Draw and save."""
    draw_rps(RESULTS / "self-play-rps.png", curves)
    keep("rps", {
        "optimum": games.OPTIMUM.tolist(), "exploitability of always rock": games.exploitability(np.array([1.0, 0, 0])),
        "settings": RPS | {"learning.total_steps": asked.rps_steps}, "ways": WAYS,
        **{
            f"learning rate {rate:g}, {way}": of_rps(seeds)
            for rate, by_way in curves.items() for way, seeds in by_way.items()
        },
        "machine": summary.machine(),
    })  # fmt: skip


def of_rps(seeds: list[tuple[list[float], np.ndarray]]) -> dict[str, Any]:
    """Exploitability of each seed in the second half of training: the mean of that of every version, and that of the mean
    strategy, which is to play a version that is drawn anew for every match."""
    halves = [played[len(played) // 2 :] for _, played in seeds]
    return {
        "newest version": [round(float(np.mean([games.exploitability(p) for p in half])), 3) for half in halves],
        "mean of the versions": [round(games.exploitability(half.mean(0)), 3) for half in halves],
        "mean strategy": [np.round(half.mean(0), 3).tolist() for half in halves],
    }


def draw_rps(path: Path, curves: Curves) -> None:
    """A row for each learning rate: exploitability of the newest version, and of the mean of all so far."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3 * len(curves)), layout="constrained")
    rows = figure.subplots(len(curves), 2, squeeze=False, sharex=True, sharey=True)
    for row, (rate, by_way) in zip(rows, curves.items(), strict=True):
        for number, (name, seeds) in enumerate(by_way.items()):
            for axes, mean in zip(row, (False, True), strict=True):
                lines = [(steps, running_mean(played) if mean else played) for steps, played in seeds]
                draw_seeds(axes, name, f"C{number}", [(x, [games.exploitability(p) for p in played]) for x, played in lines])
        for axes, what in zip(row, ("newest version", "mean of the versions so far"), strict=True):
            axes.set(xlabel="steps", ylabel="exploitability", title=f"{what}, learning rate {rate:g}")
            axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def running_mean(played: np.ndarray) -> np.ndarray:
    """[n, 3]: the mean of the first k rows, for every k."""
    return played.cumsum(0) / np.arange(1, len(played) + 1)[:, None]  # type: ignore[no-any-return]


def draw_seeds(axes: Any, name: str, color: str, seeds: list[tuple[list[float], list[float]]]) -> None:
    """Curves over steps: every seed thin, their mean thick."""
    for x, y in seeds:
        axes.plot(x, y, color=color, alpha=0.3, linewidth=0.8)
    n = min(len(x) for x, _ in seeds)
    axes.plot(seeds[0][0][:n], np.mean([y[:n] for _, y in seeds], axis=0), color=color, linewidth=2, label=name)


def meeting(folder: Path, asked: argparse.Namespace) -> None:
    """See the module."""
    took = run(
        "games/meeting",
        folder,
        **{"sampling.placement": "inline", "run.max_minutes": asked.minutes, "learning.total_steps": asked.meeting_steps},
    )
    key = "charts/episodic_return_100"
    lines = [line for line in read_jsonl(folder / "metrics.jsonl") if key in line]
    curve = [x["global_step"] for x in lines], [x[key] for x in lines]
    draw(RESULTS / "self-play-meeting.png", {"share of matches in which they meet": curve}, key, "three agents that must meet")
    result = evaluate(folder, 600, deterministic=False)
    keep("meeting", {
        "minutes": round(took, 1), "steps": result.step, "share of matches in which they meet": result.mean,
        "ci95": result.ci95, "random team": round(random_team(2000), 3), "machine": summary.machine(),
    })  # fmt: skip


def random_team(matches: int) -> float:
    """Share of the matches in which agents that move at random meet."""
    env, generator, met = games.Meeting(), np.random.default_rng(0), 0.0
    for number in range(matches):
        env.reset(seed=number)
        while env.agents:
            _, rewards, *_ = env.step({agent: int(generator.integers(3)) for agent in env.agents})
        met += rewards["a"]
    return met / matches


TASKS = {"connect-four": connect_four, "rps": rps, "meeting": meeting}


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--minutes", type=float, default=30.0, help="longest training time of one task")
    parser.add_argument("--steps", type=int, default=2_000_000, help="of connect-four")
    parser.add_argument("--meeting-steps", type=int, default=600_000)
    parser.add_argument("--rps-steps", type=int, default=60_000)
    parser.add_argument("--rps-rates", type=float, nargs="+", default=[1e-2, 3e-3, 1e-3, 3e-4], help="learning rates")
    parser.add_argument("--seeds", type=int, default=3, help="of rps")
    parser.add_argument("--jobs", type=int, default=2, help="runs of rps at the same time")
    asked = parser.parse_args()
    for task in asked.tasks:
        with tempfile.TemporaryDirectory() as folder:
            TASKS[task](Path(folder) / "run", asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
