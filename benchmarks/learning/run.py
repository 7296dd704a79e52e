"""Does it learn? Each task is trained to its goal and then evaluated; results and curves go to benchmarks/learning/results.

    python benchmarks/learning/run.py cartpole --seeds 3
    python benchmarks/learning/run.py --list
    python benchmarks/learning/run.py --defaults --seeds 3

Every task is what `headrace train --env ...` does with the environment's own defaults; what is set beyond them is in `TASKS`.
The goal is compared twice: with the mean of the last 100 training episodes, which ends the run, and with an evaluation of whole
games afterwards. Calls `headrace compare`, so the same command goes on where it was stopped.

`--defaults` trains every built-in algorithm with its defaults on the tasks of `LEARNS` (or on those named), and adds to
results/defaults-TASK.json what is not there yet. A run ends at the task's goal or at its number of steps. `table.py` shows the
files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import headrace
from headrace.envs.make import describe
from headrace.experiments.records import Run
from headrace.learning.algorithm import algorithm_names, declaration, make_agent
from headrace.make_config import check_config
from headrace.runs.plots import learning_curve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import experiments  # noqa: E402
import summary  # noqa: E402


@dataclass(frozen=True)
class Task:
    """One environment with the return that counts as learned."""

    env: str
    goal: float
    budget: str
    """What a seed may take, as `headrace compare` understands it: minutes or steps."""
    settings: dict[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    eval_episodes: int = 30
    eval_deterministic: bool = False
    stop_at: float | None = None
    """Training stops at this mean return; None: at the goal."""
    note: str = ""


WORLDS = experiments.WORLDS[1:]
IMPALA = {
    "learning.algorithm": "impala", "learning.preset": "paper", "sampling.placement": "serial", "learning.num_threads": 1,
}  # fmt: skip
SMALL = {
    "sampling.placement": "device", "policy.encoder": "impala-shallow", "policy.hidden": 256, "sampling.envs_per_worker": 16,
    "sampling.rollout": 64, "learning.lr_schedule": "linear",
}  # fmt: skip
ALE = {"envs.atari_backend": "ale", "envs.kwargs": {"noop_max": 30}}
DQN, DPG = {"learning.algorithm": "apex-dqn"}, {"learning.algorithm": "apex-dpg"}
RAW = "protocol dqn; raw returns of whole games"
BEST = {"eval_episodes": 100, "eval_deterministic": True}
TASKS = {
    "cartpole": Task("gym/CartPole-v1", 475, "1m", **BEST, note="at most 500 by the time limit"),
    "pong": Task("atari/pong", 18, "60m", stop_at=18.5, note=RAW),
    "pong-ale": Task("atari/pong", 18, "60m", ALE, stop_at=18.5, note="with ale-py's emulators and its no-ops at the start"),
    "breakout": Task("atari/breakout", 30.5, "5M", SMALL, note=f"goal: a human's score (Mnih et al. 2015); {RAW}"),
    "vizdoom-basic": Task("vizdoom/basic", 75, "15m", stop_at=80, note="one shot at a monster; at most about 95"),
    "vizdoom-health-gathering": Task(
        "vizdoom/health_gathering", 1000, "30m", note="+1 per tick alive, at most 2,100; random play about 350"
    ),
    "cartpole-swingup": Task("dm_control/cartpole-swingup", 800, "20m", note="at most 1,000"),
    **{
        f"impala-{game}": Task(
            f"atari/{game}", goal, "60m", IMPALA,
            note=f"the numbers of Espeholt et al. 2018, over 50 M steps; there {published} (shallow network), MonoBeast {beast}",
        )
        for game, goal, published, beast in (("pong", 18, "20.4", "18.9"), ("breakout", 400, "640", "476"))
    },
    "apex-cartpole": Task("gym/CartPole-v1", 475, "5m", DQN, **BEST, note="Ape-X DQN"),
    "apex-pong": Task("atari/pong", 18, "32m", DQN | {"learning.num_threads": 2}, stop_at=18.5, note=f"Ape-X DQN; {RAW}"),
    "apex-minatar-breakout": Task(
        "minatar/breakout", 10, "15m", DQN | {"policy.encoder": "minatar-conv"}, WORLDS,
        note="Ape-X DQN; 10x10 board, sticky actions 0.1",
    ),
    "apex-cartpole-swingup": Task("dm_control/cartpole-swingup", 800, "13m", DPG, note="Ape-X DPG"),
    "apex-walker-walk": Task("dm_control/walker-walk", 800, "13m", DPG, note="Ape-X DPG"),
    "memory-gru": Task("memory/corridor", 0.95, "5m", imports=WORLDS, eval_episodes=200, note="with a GRU"),
    "memory-none": Task(
        "memory/corridor", 0.95, "90s", {"policy.core": "none"}, WORLDS, 200, note="the control: without memory at most -0.5"
    ),
}  # fmt: skip

LEARNS = {
    "cartpole": Task("gym/CartPole-v1", 475, "500k"),
    "pendulum": Task("gym/Pendulum-v1", -200, "1M"),
    "lunar-lander": Task("gym/LunarLander-v3", 200, "1M"),
    "minatar-breakout": Task("minatar/breakout", 10, "2M", imports=WORLDS),
    "grid": Task("plain/grid", 0.8, "150k", imports=WORLDS),
    "levers": Task("plain/levers", 0.9, "150k", imports=WORLDS),
    "pong": Task("atari/pong", 18, "3M"),
}
"""What every algorithm should learn with its defaults, in so many steps."""


def train(task: Task, settings: Mapping[str, Any], seeds: int, folder: Path) -> list[Run]:
    """The runs of an experiment; they end at the goal."""
    goal = {"run.goal": task.stop_at or task.goal, "run.log_interval": 2.0}
    imports = [word for path in task.imports for word in ("--import", path)]
    return experiments.compare(folder, task.env, task.budget, seeds, goal | settings, *imports)


def ended(run: Run) -> str:
    """Why."""
    if run.score >= run.settings["run.goal"]:
        return "goal"
    return "total_steps" if run.steps >= run.settings["learning.total_steps"] else "max_minutes"


def with_defaults(task: Task, algorithm: str, seeds: int, folder: Path, extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train one algorithm with its defaults; `extra` settings may say where and how fast, but not how it learns. A policy whose
    training games did not reach the goal is evaluated: 100 games may reach far back, such as those that Ape-X reports."""
    try:
        check_config(config := headrace.make_config(task.env, algorithm, task.imports, **extra))
        make_agent(config, describe(config.env, config.envs))
    except headrace.ConfigError as error:
        return [{"seed": 0, "refused": str(error)}]
    rows = []
    for run in train(task, {"learning.algorithm": algorithm} | extra, seeds, folder):
        at = experiments.reached(task.goal, run)
        played = {} if at else {"evaluation": round(headrace.evaluate(run.path, 30, imports=task.imports).mean, 2)}
        rows.append({"seed": run.seed, "score": round(run.score, 3), "steps": run.steps, "steps_to_goal": at and at[0], **played,
                     "minutes": round(run.minutes, 1), "ended": ended(run), "date": time.strftime("%Y-%m-%d")})  # fmt: skip
    return rows


def defaults_table(
    names: Sequence[str], algorithms: Sequence[str], seeds: int, folder: Path, out: Path, extra: dict[str, Any]
) -> None:
    """Train what the files of the tasks do not have yet, and write the task's file after each algorithm."""
    for name in names:
        task, path = LEARNS[name], out / f"defaults-{name}.json"
        known: dict[str, Any] = json.loads(path.read_text())["algorithms"] if path.exists() else {}
        for algorithm in algorithms:
            rows = known.get(algorithm, [])
            if len(rows) < seeds and not any("refused" in row for row in rows):
                known[algorithm] = with_defaults(task, algorithm, seeds, folder / f"defaults-{name}" / algorithm, extra)
                facts = {"env": task.env, "goal": task.goal, "budget": task.budget, "settings": extra}
                summary.write(path, facts | {"algorithms": known, "machine": summary.machine()})
                print(f"{name} {algorithm} {known[algorithm]}", flush=True)


def evaluated(task: Task, run: Run) -> dict[str, Any]:
    """A seed as it is kept: when it reached the goal, and what it scores in whole games."""
    played = headrace.evaluate(run.path, task.eval_episodes, deterministic=task.eval_deterministic, imports=task.imports)
    at = experiments.reached(task.goal, run)
    return {
        "seed": run.seed, "ended": ended(run), "steps": run.steps, "seconds_with_start_up": round(60 * run.minutes, 1),
        "seconds_to_goal": at and round(60 * at[1], 1), "steps_to_goal": at and at[0],
        "steps_per_second_median": round(run.steps_per_second, 1), "training_return_100": run.score,
        "evaluation": {"mean": played.mean, "ci95": played.ci95, "interval": "BCa bootstrap", "episodes": len(played.returns),
                       "distinct": played.distinct, "deterministic": task.eval_deterministic, "returns": played.returns},
    }  # fmt: skip


def main() -> None:
    """Train the tasks named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0")
    parser.add_argument("--folder", type=Path, default=Path("experiments/learning"), help="where the experiments' folders are")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=JSON", help="settings beyond the task's")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--defaults", action="store_true", help="every algorithm with its defaults; tasks: " + ", ".join(LEARNS))
    parser.add_argument("--algorithms", nargs="*", help="with --defaults: only these")
    arguments = parser.parse_args()
    extra = {key: json.loads(value) for key, value in (item.split("=", 1) for item in arguments.set)}
    if arguments.defaults:
        algorithms = arguments.algorithms or [name for name in algorithm_names() if declaration(name).built_in]
        defaults_table(arguments.tasks or list(LEARNS), algorithms, arguments.seeds, arguments.folder, arguments.out, extra)
        return
    if arguments.list:
        for name, task in TASKS.items():
            print(f"{name:26} {task.env:28} goal {task.goal:g}  {task.note}")
        return
    for name in arguments.tasks:
        task = TASKS[name]
        task = dataclasses.replace(task, settings={**task.settings, **extra})
        load = round(os.getloadavg()[0], 1)
        runs = train(task, task.settings, arguments.seeds, arguments.folder / name)
        seeds = [evaluated(task, run) for run in runs]
        facts = {"task": name, "env": task.env, "goal": task.goal, "budget": task.budget, "settings": task.settings}
        about = {"note": task.note, "load_before": load, "machine": summary.machine(), "date": time.strftime("%Y-%m-%d")}
        summary.write(arguments.out / f"{name}.json", facts | {"seeds": seeds} | about)
        title = f"{name}: {task.env}"
        learning_curve([run.path for run in runs], arguments.out / f"{name}.png", title=title, goal=task.goal)
        for s in seeds:
            print(f"{name} seed {s['seed']}: {s['ended']} after {s['steps']:,} steps, {s['seconds_with_start_up']:.0f} s; "
                  f"evaluation {s['evaluation']['mean']:.2f} {s['evaluation']['ci95']}")  # fmt: skip


if __name__ == "__main__":
    main()
