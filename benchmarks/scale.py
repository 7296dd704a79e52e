"""From 16 to 2,048 environments on one machine: memory per environment, start-up, file descriptors, throughput of the sampler.

    python benchmarks/scale.py --env atari/breakout

The real rollout workers and trajectory store; the policy answers at once with random actions and the learner only frees slots
(see simulation_distance.py), so that what is measured is what the number of environments costs. Memory is the proportional set
size of all processes, in which shared memory counts once. Prints a table, writes results/scale.json.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import summary
from simulation_distance import emulated_policy, free_slots, running, sampler_config

from headrace.sampling.placements.processes import rollout_main


def measure(env: str, workers: int, envs: int, seconds: float) -> dict[str, Any]:
    """One size."""
    config = sampler_config(env, workers, envs // workers, 2)
    config.sampling.num_slots, config.sampling.rollout = 3 * config.total_groups, 16
    began = perf_counter()
    mains: list[tuple[Any, int, Any]] = [("rollout", w, rollout_main) for w in range(workers)]
    with running(config, [*mains, ("policy", 0, emulated_policy), ("learner", 0, free_slots)]) as run:
        started = perf_counter() - began
        before, since = run.steps, perf_counter()
        time.sleep(seconds)
        rate = (run.steps - before) / (perf_counter() - since)
        everybody = [psutil.Process(), *run.processes]
        pss = sum(p.memory_full_info().pss for p in everybody)
        store = sum(array.nbytes for array in run.memory.policies[0].trajectories.arrays.values())
        fds = max(p.num_fds() for p in everybody)
    return {"envs": envs, "start_s": started, "steps_per_s": rate, "pss": pss, "store": store, "fds": fds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="atari/breakout")
    parser.add_argument("--envs", type=int, nargs="*", default=[16, 64, 256, 1024, 2048])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "scale.json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{args.env}, {args.workers} workers, two groups each, rollout 16, three slots a group\n")
    print("| environments | first steps | steps/s | memory, all | of it trajectories | per environment | most descriptors |")
    print("|---|---|---|---|---|---|---|")
    for envs in args.envs:
        row = measure(args.env, args.workers, envs, args.seconds)
        rows.append(row)
        each = (row["pss"] - rows[0]["pss"]) / (envs - rows[0]["envs"]) if len(rows) > 1 else float("nan")
        memory = f"{row['pss'] / 2**20:,.0f} MiB | {row['store'] / 2**20:,.0f} MiB | {each / 2**10:,.0f} KiB"
        print(f"| {envs} | {row['start_s']:.1f} s | {row['steps_per_s']:,.0f} | {memory} | {row['fds']} |", flush=True)
    summary.write(args.out, {"machine": summary.machine(), "env": args.env, "rows": rows})


if __name__ == "__main__":
    main()
