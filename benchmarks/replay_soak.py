"""Half an hour of training on replay under random kills: does every transition stay right, does memory stay flat?

    python benchmarks/replay_soak.py --minutes 30

The counting world steps slowly and every replayed transition is checked (tests/experience/counting_replay.py); a wrong one ends
the run. Rollout workers, the policy worker, the learner and the whole run (with its replay) are killed with SIGKILL. Memory is
the proportional set size of all processes together, so shared pages count once. Prints a table, writes
results/soak-replay.json.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import summary

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "faults"))
from harness import COUNTING, Run  # noqa: E402

VICTIMS = {"rollout-0": 4, "rollout-1": 4, "policy-0": 2, "learner": 2, "the whole run": 1}
SETTINGS = {
    "learning.algorithm": "counting-replay", "learning.experience": "replay", "learning.total_steps": 10**9,
    "learning.batch_size": 64, "learning.gamma": 0.5, "replay.capacity": 4000, "replay.minimum": 500, "replay.slack": 2.0,
    "replay.samples_per_insert": 8.0, "envs.kwargs": json.dumps({"step_seconds": 0.003}),
    "run.log_interval": 1.0, "run.checkpoint_interval": 10.0,
}  # fmt: skip


def memory(run: Run) -> float:
    """Proportional set size of all processes, megabytes."""
    total = 0
    for pid in run.pids():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    """Kill at random instants, measure in between."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seconds-between", type=float, default=20, help="mean time between two kills")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, kills, longest, samples = random.Random(args.seed), Counter[str](), 0.0, []
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(Path(temporary) / "run", env="counting", imports=COUNTING, **SETTINGS)
        run.command.insert(run.command.index(str(COUNTING)) + 1, str(TESTS / "experience" / "counting_replay.py"))
        with run:
            run.wait_for("a checkpoint", run.checkpoints)
            began = time.monotonic()
            while (now := time.monotonic()) < began + 60 * args.minutes:
                step = run.step()
                run.wait_for(f"more steps than {step}", lambda: run.step() > step, 300)  # noqa: B023
                longest = max(longest, time.monotonic() - now)
                samples.append((round(time.monotonic() - began, 1), round(memory(run), 1)))
                time.sleep(rng.random() * 2 * args.seconds_between)
                victim = rng.choices(list(VICTIMS), list(VICTIMS.values()))[0]
                if victim == "the whole run":
                    run.kill_and_start_again()
                elif run.signal(victim, signal.SIGKILL) is None:
                    continue
                kills[victim] += 1
            step = run.step()
            run.wait_for("more steps at the end", lambda: run.step() > step, 300)
            assert run.process is not None
            run.process.send_signal(signal.SIGINT)
            code, steps, last = run.end(120), run.step(), run.metrics()[-1]
            run.assert_nothing_left()
    third = len(samples) // 3
    early, late = (statistics.median(m for _, m in part) for part in (samples[third : 2 * third], samples[2 * third :]))
    updates = last["charts/updates"]
    print(f"{args.minutes:g} minutes, {steps:,} steps, {updates:,.0f} updates of 64 checked transitions, exit code {code}")
    lowest, highest = min(m for _, m in samples), max(m for _, m in samples)
    seconds, megabytes = zip(*summary.thin(samples), strict=True)
    print(
        f"longest pause {longest:.0f} s; memory, median of the second and of the last third: {early:.0f}, {late:.0f} MB; "
        f"single values from {lowest:.0f} to {highest:.0f} MB"
    )
    print("| killed | times |\n|---|---|\n" + "\n".join(f"| {victim} | {n} |" for victim, n in kills.most_common()))
    result = {
        "machine": summary.machine(), "minutes": args.minutes, "steps": steps, "updates": updates, "exit_code": code,
        "kills": kills, "longest_pause": longest, "median_mb": [early, late], "range_mb": [lowest, highest],
        "memory": {"seconds": seconds, "mb": megabytes},
    }  # fmt: skip
    summary.write(Path(__file__).parent / "results" / "soak-replay.json", result)


if __name__ == "__main__":
    main()
