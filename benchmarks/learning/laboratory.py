"""The experiments of docs/laboratory-results.md and docs/results.md that `headrace compare`, `search` and `report` make.

    python benchmarks/learning/laboratory.py strategies-minatar     # 30 runs of 2 minutes
    python benchmarks/learning/laboratory.py lag-pong               # 6 runs of 1.5 M steps, two hours
    python benchmarks/learning/laboratory.py search-cartpole        # 40 trials, 12 minutes
    python benchmarks/learning/laboratory.py mujoco                 # 23 runs, an hour
    python benchmarks/learning/laboratory.py atari-5-appo           # 5 runs of 2.5 M steps, an hour

`strategies`: APPO and IMPALA with their defaults in the placements `served`, `inline`, `serial` and `device`, and `remote`, which
is `served` with all environments at a `headrace serve-envs` of its own over loopback. Each run has the same minutes and all
cores, so the machine must have nothing else to do. `lag`: scores of APPO when its actors have old weights, with and without
PPO's clip. `search`: whether a search finds better settings than the defaults, on seeds
that it has not seen. `mujoco`: the defaults with five seeds, beside published returns. `atari-5-...`: five games that predict
57, with the defaults, APPO and IMPALA; seeds that are in the result file already are not trained again.

The same command goes on where it was stopped. Each writes results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace import evaluate
from headrace.envs.core.reference_scores import normalized
from headrace.experiments import statistics
from headrace.experiments.laboratory import LAG, OFF_POLICY
from headrace.experiments.records import Run

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402
from experiments import HEADRACE, WORLDS, headrace, reached, runs_of  # noqa: E402

SERVER = "127.0.0.1:7790"
ALGORITHMS, NEAR = ("appo", "impala"), ("served", "inline", "serial", "device")
METRICS = {f"lag, {name}": key for name, key in LAG.items()} | OFF_POLICY | {"learner waits": "time/learner/wait"}
ONE_CORE = ("--sampling.placement", "serial", "--learning.num-threads", "1", "--parallel", "2")
MUJOCO = {
    "HalfCheetah-v5": ((1443, 46), (5784, 1244)), "Hopper-v5": ((2383, 272), (2609, 701)),
    "Walker2d-v5": ((2288, 572), (3589, 757)), "Ant-v5": (None, None), "Ant-v5 as v4": (None, (3258, 1079)),
}  # fmt: skip
"""By task, published returns of PPO after 1 M steps, mean and standard deviation. CleanRL's `ppo_continuous_action`: v4, three
seeds, training games at the end. Tianshou's benchmark: v3, ten seeds, the best evaluation during training, the mean action."""
AS_V4 = ("--envs.kwargs", '{"include_cfrc_ext_in_observation": false, "contact_cost_weight": 0.0}')
"""Ant without contact forces, which version 4 does not have, and which are always 0 in version 3 with MuJoCo 2.0 and newer."""
PPO_PAPER = {
    "atari/battle_zone": 17366.7, "atari/double_dunk": -14.9, "atari/name_this_game": 6254.9, "atari/qbert": 14293.3,
}  # fmt: skip
"""Schulman et al. 2017 (PPO), Table 6: the last 100 training games after 40 M frames. Phoenix is not among its games."""


def strategies(folder: Path, env: str, budget: str, seeds: int, *flags: str) -> dict[str, Any]:
    """Train in every placement, those on this machine first; by algorithm and placement what came of it."""
    compare = ["compare", env, *flags, "--budget", budget, "--seeds", str(seeds)]
    compare += ["--vary", f"learning.algorithm={','.join(ALGORITHMS)}"]
    headrace(*compare, "--folder", str(folder / "near"), "--vary", f"sampling.placement={','.join(NEAR)}")
    serve = [*HEADRACE, "serve-envs", "--env", env, "--num-envs", "1024", "--listen", SERVER, *flags]
    with subprocess.Popen(serve) as server:
        try:
            headrace(*compare, "--folder", str(folder / "remote"), "--sampling.placement", "served", "--envs.remote", SERVER)
        finally:
            server.terminate()
    rows: dict[str, list[Run]] = {}
    for run in runs_of(folder):
        placement = "remote" if run.settings["envs.remote"] else run.settings["sampling.placement"]
        rows.setdefault(f"{run.settings['learning.algorithm']}, {placement}", []).append(run)
    return {"env": env, "budget": budget, "strategies": {label: strategy(runs) for label, runs in rows.items()}}


def strategy(runs: list[Run]) -> dict[str, Any]:
    """The seeds of one algorithm in one placement: scores, steps, and the mean over the seeds of every metric that they have."""
    found: dict[str, Any] = {"scores": [round(run.score, 2) for run in runs], "steps": [run.steps for run in runs]}
    for name, key in METRICS.items():
        means = [run.mean(key) for run in runs]
        if all(mean == mean for mean in means):
            found[name] = float(f"{sum(means) / len(means):.4g}")
    return found


def lag(folder: Path, env: str, budget: str, updates: tuple[int, ...]) -> dict[str, Any]:
    """Train APPO on one thread with actors that are so many updates behind; by PPO's clip and updates what came of it."""
    vary = [f"sampling.policy-lag={','.join(map(str, updates))}", "learning.ppo-clip=0.2,None"]
    flags = ("--learning.algorithm", "appo", *ONE_CORE, "--seeds", "1", "--budget", budget)
    headrace("compare", env, *flags, *(word for one in vary for word in ("--vary", one)), "--folder", str(folder))
    rows: dict[str, Any] = {}
    for run in sorted(runs_of(folder), key=lambda run: run.settings["sampling.policy_lag"]):
        arm = rows.setdefault(f"clip {run.settings['learning.ppo_clip']}", {})
        arm[f"k = {run.settings['sampling.policy_lag']}"] = strategy([run])
    return {"env": env, "budget": budget, "runs": rows}


def search(folder: Path, env: str, budget: str, trials: int, seeds: int) -> dict[str, Any]:
    """Search with the algorithm's own ranges; what the best trial and the defaults reach on ten other seeds."""
    numbers = ["--trials", str(trials), "--seeds", str(seeds), "--test-seeds", "10", "--budget", budget]
    headrace("search", env, *ONE_CORE, *numbers, "--folder", str(folder))
    tried = json.loads((folder / "trials.json").read_text())
    kept = ("number", "state", "value", "best", "scores")
    rows = [{name: trial[name] for name in kept} | {"params": list(trial["params"].values())} for trial in tried]
    unseen = {path.name: [run.score for run in runs_of(path)] for path in sorted((folder / "test").glob("*"))}
    facts = {"env": env, "budget": budget, "seeds": seeds, "over": list(tried[0]["params"])}
    return facts | {"unseen": unseen, "best": json.loads((folder / "best.json").read_text()), "trials": rows}


def mujoco(folder: Path) -> dict[str, Any]:
    """Train the defaults on each task; scores with the interquartile mean and its interval."""
    rows = {}
    for task, (cleanrl, tianshou) in MUJOCO.items():
        env, as_v4, _ = task.partition(" as v4")
        own = folder / task.replace(" ", "-")
        seeds = ("--seeds", "3", *AS_V4) if as_v4 else ("--seeds", "5")
        headrace("compare", f"gym/{env}", "--budget", "1M", *seeds, "--folder", str(own))
        runs = runs_of(own)
        rows[task] = learned([run.score for run in runs], [run.minutes for run in runs])
        rows[task] |= {"CleanRL": cleanrl, "Tianshou": tianshou}
        played = [evaluate(run.path, 10, deterministic=True).mean for run in runs]
        rows[task] |= {"mean action, 10 games": [round(mean, 1) for mean in played]}
        if cleanrl:
            rows[task] |= {"steps and minutes to CleanRL's": [reached(cleanrl[0], run) for run in runs]}
    return {"budget": "1M", "tasks": rows}


def atari_5(folder: Path, seeds: int, *flags: str) -> dict[str, Any]:
    """Train the seeds that the result file lacks on the games of Atari-5, 10 M frames each, and estimate the median of 57."""
    before = earlier(folder.name)
    rows: dict[str, Any] = {}
    for env in statistics.ATARI_5:
        row = before.get("tasks", {}).get(env, {"scores": [], "minutes": []})
        if missing := seeds - (first := len(row["scores"])):
            own = folder / Path(env).name
            which = ("--seeds", str(missing), "--first-seed", str(first))
            headrace("compare", env, "--budget", "2500k", *which, *flags, "--folder", str(own))
            runs = [run for run in runs_of(own) if run.seed >= first]
            row = learned([*row["scores"], *(run.score for run in runs)], [*row["minutes"], *(run.minutes for run in runs)])
        rows[env] = row | {"PPO, 40 M frames": PPO_PAPER.get(env)}
    human = [np.array([normalized(env, score) for score in row["scores"]]) for env, row in rows.items()]
    median = [round(float(x), 4) for x in (statistics.atari_5(*human), *ends(statistics.atari_5, human))]
    machines = [*before.get("machine", []), summary.machine()]
    return {"frames": 10_000_000, "tasks": rows, "median of 57 games, 95 %": median, "machine": machines}


def earlier(name: str) -> dict[str, Any]:
    """The result file of an experiment; empty where there is none yet."""
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def learned(scores: list[float], minutes: list[float]) -> dict[str, Any]:
    """Final scores of the seeds, their interquartile mean with its interval, and the minutes of training."""
    array = np.array(scores)
    return {
        "scores": array.round(1).tolist(), "iqm": round(float(statistics.iqm(array)), 1),
        "95 %": [round(end, 1) for end in ends(statistics.iqm, [array])], "minutes": [round(x, 2) for x in minutes],
    }  # fmt: skip


def ends(statistic: statistics.Statistic, tasks: list[np.ndarray]) -> list[float]:
    """The 95 % interval of a statistic of the scores of each task, [low, high]; empty for single seeds."""
    return [float(end) for end in statistics.interval(statistic, tasks) if not np.isnan(end)]


EXPERIMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "strategies-minatar": lambda folder: strategies(folder, "minatar/breakout", "2m", 3, *WORLDS),
    "strategies-pong": lambda folder: strategies(folder, "atari/pong", "5m", 1),
    "strategies-vizdoom": lambda folder: strategies(folder, "vizdoom/basic", "5m", 1),
    "lag-pong": lambda folder: lag(folder, "atari/pong", "1500k", (0, 64, 16)),
    "search-cartpole": lambda folder: search(folder, "gym/CartPole-v1", "60k", 40, 3),
    "search-halfcheetah": lambda folder: search(folder, "gym/HalfCheetah-v5", "150k", 20, 2),
    "mujoco": mujoco,
    "atari-5-default": lambda folder: atari_5(folder, 3),
    "atari-5-appo": lambda folder: atari_5(folder, 1, "--learning.algorithm", "appo"),
    "atari-5-impala": lambda folder: atari_5(folder, 1, "--learning.algorithm", "impala"),
}


def main() -> None:
    """Make the experiments, their reports and their result files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--folder", type=Path, default=Path("experiments"), help="where the experiments' folders are")
    args = parser.parse_args()
    for name in args.names:
        folder = args.folder / name
        found = EXPERIMENTS[name](folder)
        headrace("report", str(folder), "--out", str(folder / "report"))
        summary.write(HERE / "results" / f"{name}.json", {"machine": summary.machine()} | found)


if __name__ == "__main__":
    main()
