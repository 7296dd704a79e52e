"""Memory of a training by process, and seconds until it learns: Pong as `make train` plays it, beside other systems.

    python benchmarks/memory.py --sample-factory VENV/bin/python --stable-baselines3 VENV/bin/python

What the virtual environments hold: vs_sample_factory.py, vs_stable_baselines3.py; without one its system is left out. Memory is
PSS (proportional set size: pages that several processes share are divided among them) of every process of the training, from
/proc/PID/smaps_rollup, some seconds after its first update. `anonymous` is what the processes have for themselves, `files` are
programs and libraries, which other programs on the machine may share, `shared` is the memory that the processes share.
`first update` is the time from the start of the command until an update is reported: Headrace does so within a tenth of a
second, Stable-Baselines3 at once, Sample Factory every 5 s. Nothing else should run then.

Headrace trains with its defaults and with those of PPO, the others with as many environments and steps per batch as PPO, Sample
Factory in two workers. What an environment and a slot of trajectories take is the difference between trainings with more and with
fewer of them, in the `served` placement of two workers. Prints tables, writes results/memory.json.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import summary
from training_contest import Command, System, interpreter, marked_processes, running
from vs_sample_factory import sample_factory
from vs_stable_baselines3 import stable_baselines3

ENV, ENVS, BATCH = "atari/pong", 8, 1024
KINDS = {"anonymous": "Pss_Anon", "files": "Pss_File", "shared": "Pss_Shmem"}
MIB = 1024
"""Of what /proc counts in kB."""


def headrace(env: str, folder: Path, settings: dict[str, Any]) -> Command:
    """`headrace train` with its defaults but for `settings`, and metrics often enough to see the first update."""
    given = {"run.folder": folder, "run.log_interval": 0.1, "learning.device": "cpu"} | settings
    command = [sys.executable, "-m", "headrace.cli", "train", "--env", env, "--run.no-dashboard", "--run.no-video"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]

    def steps(output: str) -> list[int]:
        metrics = folder / "metrics.jsonl"
        return [int(n) for n in re.findall(r'"global_step": (\d+)', metrics.read_text() if metrics.exists() else "")]

    return command, steps


def memory_of(pid: int) -> dict[str, float]:
    """PSS of a process in MiB by kind; empty for one that has ended."""
    try:
        found = dict(re.findall(r"^(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {kind: int(found[name]) / MIB for kind, name in KINDS.items() if name in found}


def name_of(pid: int) -> str:
    """What `ps` calls the process, or for one without a name of its own what it runs."""
    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
    known = {"resource_tracker": "resource tracker", "forkserver": "fork server", "multiprocessing": "child", "spawn": "child"}
    run = next((name for part, name in known.items() if any(part in word for word in words)), "main")
    own = Path(f"/proc/{pid}/comm").read_text().strip()
    return run if own.startswith(("python", "headrace", "pt_main")) else own


def measure(make: System, env: str, settle: float) -> dict[str, Any]:
    """Seconds to the first update, and PSS by process and kind in MiB, `settle` seconds later."""
    began = time.monotonic()
    with running(make, env) as (mark, steps):
        while not any(steps()):
            time.sleep(0.02)
        first = time.monotonic() - began
        time.sleep(settle)
        processes: dict[str, dict[str, float]] = {}
        numbers: dict[str, int] = defaultdict(int)
        for pid in sorted(marked_processes(mark)):
            if memory := memory_of(pid):
                name = name_of(pid)
                numbers[name] += 1
                processes[f"{name} {numbers[name]}" if numbers[name] > 1 else name] = memory
    total = {kind: sum(memory.get(kind, 0.0) for memory in processes.values()) for kind in KINDS}
    return {"first_update": first, "total": sum(total.values()), **total, "processes": processes}


def main() -> None:
    """Measure, print the tables, write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample-factory", type=interpreter, help="interpreter of its virtual environment")
    parser.add_argument("--stable-baselines3", type=interpreter, help="interpreter of its virtual environment")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds between the first update and the measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "memory.json")
    args = parser.parse_args()

    placed = {"sampling.placement": "served", "sampling.num_workers": 2, "sampling.num_groups": 2, "sampling.rollout": 32}
    served = {"learning.algorithm": "ppo", **placed}

    def ours(**settings: Any) -> System:
        return lambda env, folder: headrace(env, folder, {name.replace("__", "."): v for name, v in settings.items()})

    def of_served(envs: int, slots: int) -> System:
        counts = {"sampling.envs_per_worker": envs // 2, "sampling.num_slots": slots, "learning.batch_size": 32 * 64}
        return ours(**served, **counts)

    systems: dict[str, System] = {"Headrace, as `make train`": ours(), "Headrace, PPO": ours(learning__algorithm="ppo")}
    if args.sample_factory:
        systems["Sample Factory"] = lambda env, folder: sample_factory(args.sample_factory, env, ENVS, BATCH, folder)
    if args.stable_baselines3:
        for kind in ("dummy", "subprocesses"):
            systems[f"SB3, {kind}"] = partial(stable_baselines3, args.stable_baselines3, kind, ENVS, BATCH)
    many = {"16": of_served(16, 32), "64": of_served(64, 32), "64, twice the slots": of_served(64, 64)}
    systems |= {f"Headrace, served, environments: {name}": make for name, make in many.items()}

    found: dict[str, Any] = {}
    print("| MiB | first update | total | anonymous | files | shared | processes |\n|---|---|---|---|---|---|---|")
    for name, make in systems.items():
        of = found[name] = measure(make, ENV, args.settle)
        numbers = " | ".join(f"{of[kind]:,.0f}" for kind in ("total", *KINDS))
        parts = ", ".join(f"{process} {sum(memory.values()):,.0f}" for process, memory in of["processes"].items())
        print(f"| {name} | {of['first_update']:.1f} s | {numbers} | {parts} |", flush=True)
    few, more, slots = (found[f"Headrace, served, environments: {name}"] for name in many)
    each = {"environment": (more["total"] - few["total"]) / 48, "slot": (slots["total"] - more["total"]) / 32}
    print(f"\nMiB for each further environment {each['environment']:.2f}, for each further slot {each['slot']:.2f}")
    summary.write(args.out, {"machine": summary.machine(), "load_average": os.getloadavg()[0], "found": found, "each": each})


if __name__ == "__main__":
    main()
