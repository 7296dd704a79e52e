"""Does it learn? Each task is trained to its goal and then evaluated; results and curves go to benchmarks/learning/results.

    python benchmarks/learning/run.py cartpole --seeds 3
    python benchmarks/learning/run.py --list
    python benchmarks/learning/run.py --defaults --seeds 3

Every task is what `headrace train --env ...` does with the environment's own defaults; what is set beyond them is in `TASKS`.
The goal is compared twice: with the mean of the last 100 training episodes, which ends the run, and with an evaluation of whole
games afterwards.

`--defaults` trains every built-in algorithm with its defaults on the tasks of `LEARNS` (or on those named), and adds to
results/defaults-TASK.json what is not there yet, so that it can be stopped and started again. A run ends at the task's goal or
at its number of steps. `table.py` shows the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace
from headrace.learning.algorithm import algorithm_names, declaration
from headrace.runs.metrics import read_jsonl
from headrace.runs.plots import learning_curve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402


@dataclass(frozen=True)
class Task:
    """One environment with the return that counts as learned."""

    env: str
    goal: float
    minutes: float
    """Wall time allowed for one seed."""
    settings: dict[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    eval_episodes: int = 30
    eval_deterministic: bool = False
    stop_at: float | None = None
    """Training stops at this mean return; None: at the goal."""
    note: str = ""


WORLDS = (str(HERE / "worlds.py"),)
TASKS = {
    "cartpole": Task(
        "gym/CartPole-v1", 475, 1.0, eval_episodes=100, eval_deterministic=True, note="at most 500 by the time limit"
    ),
    "pong": Task("atari/pong", 18, 60, stop_at=18.5, note="protocol dqn; raw returns of whole games"),
    "pong-ale": Task(
        "atari/pong",
        18,
        60,
        {"envs.atari_backend": "ale", "envs.kwargs": {"noop_max": 30}},
        stop_at=18.5,
        note="with ale-py's emulators and its no-ops at the start",
    ),
    "breakout": Task(
        "atari/breakout",
        30.5,
        60,
        {
            "run.goal": None,
            "sampling.placement": "device",
            "policy.encoder": "impala-shallow",
            "policy.hidden": 256,
            "sampling.envs_per_worker": 16,
            "sampling.rollout": 64,
            "learning.lr_schedule": "linear",
            "learning.total_steps": 5_000_000,
        },
        note="what 60 minutes reach; goal: a human's score (Mnih et al. 2015); protocol dqn; raw returns of whole games",
    ),
    "vizdoom-basic": Task("vizdoom/basic", 75, 15, stop_at=80, note="one shot at a monster; at most about 95"),
    "vizdoom-health-gathering": Task(
        "vizdoom/health_gathering", 1000, 30, note="+1 per tick alive, at most 2,100; random play about 350"
    ),
    "cartpole-swingup": Task("dm_control/cartpole-swingup", 800, 20, note="at most 1,000"),
    **{
        f"impala-{game}": Task(
            f"atari/{game}",
            goal,
            60,
            {
                "learning.algorithm": "impala",
                "learning.preset": "paper",
                "sampling.placement": "serial",
                "learning.num_threads": 1,
            },
            note=f"the numbers of Espeholt et al. 2018, over 50 M steps; there {published} (shallow network), MonoBeast {beast}",
        )
        for game, goal, published, beast in (("pong", 18, "20.4", "18.9"), ("breakout", 400, "640", "476"))
    },
    "apex-cartpole": Task(
        "gym/CartPole-v1",
        475,
        5,
        {"learning.algorithm": "apex-dqn"},
        eval_episodes=100,
        eval_deterministic=True,
        note="Ape-X DQN",
    ),
    "apex-pong": Task(
        "atari/pong",
        18,
        32,
        {"learning.algorithm": "apex-dqn", "learning.num_threads": 2},
        stop_at=18.5,
        note="Ape-X DQN; protocol dqn; raw returns of whole games",
    ),
    "apex-minatar-breakout": Task(
        "minatar/breakout",
        10,
        15,
        {"learning.algorithm": "apex-dqn", "policy.encoder": "minatar-conv"},
        WORLDS,
        note="Ape-X DQN; 10x10 board, sticky actions 0.1",
    ),
    "apex-cartpole-swingup": Task("dm_control/cartpole-swingup", 800, 13, {"learning.algorithm": "apex-dpg"}, note="Ape-X DPG"),
    "apex-walker-walk": Task("dm_control/walker-walk", 800, 13, {"learning.algorithm": "apex-dpg"}, note="Ape-X DPG"),
    "memory-gru": Task("memory/corridor", 0.95, 5, imports=WORLDS, eval_episodes=200, note="with a GRU"),
    "memory-none": Task(
        "memory/corridor", 0.95, 1.5, {"policy.core": "none"}, WORLDS, 200, note="the control: without memory at most -0.5"
    ),
}

LEARNS = {
    "cartpole": Task("gym/CartPole-v1", 475, 20, {"learning.total_steps": 500_000}),
    "pendulum": Task("gym/Pendulum-v1", -200, 20, {"learning.total_steps": 1_000_000}),
    "lunar-lander": Task("gym/LunarLander-v3", 200, 20, {"learning.total_steps": 1_000_000}),
    "minatar-breakout": Task("minatar/breakout", 10, 20, {"learning.total_steps": 2_000_000}, WORLDS),
    "grid": Task("plain/grid", 0.8, 10, {"learning.total_steps": 150_000}, WORLDS),
    "levers": Task("plain/levers", 0.9, 10, {"learning.total_steps": 150_000}, WORLDS),
    "pong": Task("atari/pong", 18, 60),
}
"""What every algorithm should learn with its defaults, in so many steps."""


def learn_with_defaults(task: Task, algorithm: str, seed: int, folder: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Train one algorithm with its defaults; `extra` settings may say where and how fast, but not how it learns. A policy whose
    training games did not reach the goal is evaluated: 100 games may reach far back, such as those that Ape-X reports."""
    quiet = {"run.video": False, "run.dashboard": False, "run.log_interval": 2.0, "run.max_minutes": task.minutes}
    settings = {"seed": seed, "run.folder": str(folder), "run.goal": task.goal, **quiet, **task.settings, **extra}
    started = time.perf_counter()
    try:
        result = headrace.train(headrace.make_config(task.env, algorithm, task.imports, **settings))
    except headrace.ConfigError as error:
        return {"seed": seed, "refused": str(error)}
    minutes = (time.perf_counter() - started) / 60
    reached = result.global_step if result.reason == "goal" else None
    played = {} if reached is not None else {"evaluation": round(headrace.evaluate(folder, 30).mean, 2)}
    return {"seed": seed, "score": round(float(result.mean_return), 3), "steps": result.global_step, "steps_to_goal": reached,
            **played, "minutes": round(minutes, 1), "ended": result.reason, "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def defaults_table(
    names: Sequence[str], algorithms: Sequence[str], seeds: int, runs: Path, out: Path, extra: dict[str, Any]
) -> None:
    """Train what the files of the tasks do not have yet, and write the task's file after each run."""
    for seed in range(seeds):
        for name in names:
            task, path = LEARNS[name], out / f"defaults-{name}.json"
            runs_of: dict[str, Any] = json.loads(path.read_text())["algorithms"] if path.exists() else {}
            for algorithm in algorithms:
                known = runs_of.setdefault(algorithm, [])
                if any(run["seed"] == seed or "refused" in run for run in known):
                    continue
                known.append(learn_with_defaults(task, algorithm, seed, runs / f"{name}-{algorithm}-{seed}", extra))
                goal = {"env": task.env, "goal": task.goal, **task.settings}
                summary.write(path, goal | {"settings": extra, "algorithms": runs_of, "machine": summary.machine()})
                print(f"{name} {algorithm} {known[-1]}", flush=True)


def train_once(task: Task, seed: int, folder: Path, go_on: bool = False) -> dict[str, Any]:
    """Train one seed, from scratch or (`go_on`) from where the run in the folder stopped, and evaluate it."""
    config = headrace.make_config(
        task.env,
        imports=task.imports,
        **{
            "seed": seed,
            "run.folder": str(folder),
            "run.must_be_new": not go_on,
            "run.goal": task.stop_at or task.goal,
            "run.max_minutes": task.minutes,
            "run.video": False,
            "run.log_interval": 2.0,
            **task.settings,
        },
    )
    load = os.getloadavg()[0]
    started = time.perf_counter()
    result = headrace.train(config)
    seconds = time.perf_counter() - started
    rows = read_jsonl(folder / "metrics.jsonl")
    rates = [r["charts/SPS_interval"] for r in rows if "charts/SPS_interval" in r]
    reached = next((r for r in rows if r.get("charts/episodic_return_100", -np.inf) >= task.goal), None)
    evaluation = headrace.evaluate(folder, task.eval_episodes, deterministic=task.eval_deterministic)
    return {
        "seed": seed,
        "ended": result.reason,
        "steps": result.global_step,
        "seconds_with_start_up": round(seconds, 1),
        "seconds_to_goal": round(reached["time"] - rows[0]["time"], 1) if reached else None,
        "resumed": go_on,
        "messages": [line for line in (folder / "log.txt").read_text().splitlines() if "->" in line or "Going on" in line],
        "steps_to_goal": reached["global_step"] if reached else None,
        "steps_per_second_median": round(float(np.median(rates)), 1),
        "training_return_100": result.mean_return,
        "evaluation": {"mean": evaluation.mean, "ci95": evaluation.ci95, "interval": "BCa bootstrap",
                       "episodes": len(evaluation.returns), "distinct": evaluation.distinct,
                       "deterministic": task.eval_deterministic, "returns": evaluation.returns},
        "load_before": round(load, 1),
    }  # fmt: skip


def main() -> None:
    """Train the tasks named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="where the run folders go")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--go-on", type=Path, help="go on with the run in this folder (one task, one seed)")
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=JSON", help="settings beyond the task's")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--defaults", action="store_true", help="every algorithm with its defaults; tasks: " + ", ".join(LEARNS))
    parser.add_argument("--algorithms", nargs="*", help="with --defaults: only these")
    arguments = parser.parse_args()
    extra = {key: json.loads(value) for key, value in (item.split("=", 1) for item in arguments.set)}
    if arguments.defaults:
        algorithms = arguments.algorithms or [name for name in algorithm_names() if declaration(name).built_in]
        defaults_table(arguments.tasks or list(LEARNS), algorithms, arguments.seeds, arguments.runs, arguments.out, extra)
        return
    if arguments.list:
        for name, task in TASKS.items():
            print(f"{name:26} {task.env:28} goal {task.goal:g}  {task.note}")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        task = TASKS[name]
        task = dataclasses.replace(task, settings={**task.settings, **extra})
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folders = [arguments.runs / f"{name}-{seed}-{stamp}" for seed in range(arguments.seeds)]
        if arguments.go_on:
            folders = [arguments.go_on]
        seeds = [train_once(task, seed, folder, arguments.go_on is not None) for seed, folder in enumerate(folders)]
        learning_curve(folders, arguments.out / f"{name}.png", title=f"{name}: {task.env}", goal=task.goal)
        report = {
            "task": name, "env": task.env, "goal": task.goal, "settings": task.settings, "note": task.note, "seeds": seeds,
            "machine": {"cpu_count": os.cpu_count(), "processor": platform.processor() or platform.machine(),
                        "torch": torch.__version__, "cuda": torch.cuda.is_available()},
            "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        summary.write(arguments.out / f"{name}.json", report)
        for s in seeds:
            print(f"{name} seed {s['seed']}: {s['ended']} after {s['steps']:,} steps, {s['seconds_with_start_up']:.0f} s; "
                  f"evaluation {s['evaluation']['mean']:.2f} {s['evaluation']['ci95']}")  # fmt: skip


if __name__ == "__main__":
    main()
