"""Real training under a hail of faults: how many were survived, how long each took, what it cost.

    python benchmarks/soak.py --env counting --faults 300     every number that reaches the learner is checked
    python benchmarks/soak.py --env gym/CartPole-v1           until CartPole is solved all the same (mean return 475)

Faults, at random instants: kill -9 of a rollout worker, a policy worker, the learner, the whole run (then the same command
again); SIGSTOP for a second of each. A fault is survived when the learner's step counter goes on within `--patience` seconds.
Steps lost: of a rollout worker at most what its slots held, T x E steps each; of a learner or a run what came after the
checkpoint it went on from. Prints a table, writes results/soak-ENV.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import summary

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
from harness import COUNTING, SMALL, Run

KILLS = {"kill rollout worker": "rollout-", "kill policy worker": "policy-", "kill learner": "learner"}
STOPS = {"stop rollout worker 1 s": "rollout-", "stop policy worker 1 s": "policy-", "stop learner 1 s": "learner"}
WEIGHTS = {"kill rollout worker": 8, "kill policy worker": 3, "kill learner": 1, "kill the whole run": 1}
WEIGHTS |= dict.fromkeys(STOPS, 1)


@dataclass
class Outcome:
    """What came of one kind of fault."""

    injected: int = 0
    survived: int = 0
    seconds: list[float] = field(default_factory=list)
    """From the fault to the learner's next reported step."""
    lost: int = 0
    """Steps."""

    def add(self, other: Outcome) -> None:
        """Count another soak's too."""
        self.injected += other.injected
        self.survived += other.survived
        self.seconds += other.seconds
        self.lost += other.lost


def inject(run: Run, kind: str, rng: random.Random) -> bool:
    """Do it; False where the process was not there at this moment."""
    if kind == "kill the whole run":
        run.kill_and_start_again()
        return True
    number = signal.SIGKILL if kind in KILLS else signal.SIGSTOP
    pids = run.pids((KILLS | STOPS)[kind])
    if not pids:
        return False
    role = Path(f"/proc/{rng.choice(pids)}/comm").read_text().strip()
    done = run.signal(role, number) is not None
    if number == signal.SIGSTOP:
        time.sleep(1)
        run.signal(role, signal.SIGCONT)
    return done


def steps_lost(printed: str, before: int, steps_per_slot: int) -> int:
    """What the lines printed since the fault tell of."""
    slots = sum(int(n) for n in re.findall(r"rollout worker \d+ ended .*?: (\d+) slots returned", printed))
    again = re.findall(r"Going on from \S+: step ([\d,]+)", printed)
    return slots * steps_per_slot + sum(max(0, before - int(step.replace(",", ""))) for step in again)


def soak(run: Run, args: argparse.Namespace, rng: random.Random, steps_per_slot: int) -> dict[str, Outcome]:
    """Inject until there were enough faults, the time is over or the run has ended by itself."""
    faults, patience, end = args.faults, args.patience, time.monotonic() + 60 * args.minutes
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    injected = 0
    while injected < faults and time.monotonic() < end:
        assert run.process is not None
        if run.process.poll() is not None:
            break
        time.sleep(rng.random())
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind in ("kill learner", "kill the whole run") and not run.checkpoints():
            continue
        before, printed, began = run.step(), len(run.output), time.monotonic()
        if run.process.poll() is not None or not inject(run, kind, rng):
            continue
        injected += 1
        outcome = outcomes[kind]
        outcome.injected += 1
        since = time.time()
        while run.process.poll() is None and time.monotonic() < began + patience:
            steps = [row["global_step"] for row in run.metrics() if row["time"] > since]
            if steps and steps[-1] > steps[0]:
                break
            time.sleep(0.02)
        else:
            if run.process.poll() not in (None, 0):
                raise RuntimeError(f"after {kind}:\n{run.story}")
            if run.process.poll() is None:
                continue
        outcome.survived += 1
        outcome.seconds.append(time.monotonic() - began)
        outcome.lost += steps_lost(run.output[printed:], before, steps_per_slot)
        print(f"\r{injected} faults, step {run.step():,}   ", end="", file=sys.stderr)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="counting")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=60, help="no more faults after this")
    parser.add_argument("--patience", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="add to the faults in the results file")
    parser.add_argument("--out", type=Path, help="results file; by default results/soak-ENV.json")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    counting = args.env == "counting"
    settings: dict[str, Any] = {"sampling.num_policy_workers": 2, "learning.total_steps": 10**9}
    if counting:
        settings |= {"learning.algorithm": "counting"}
    else:
        settings |= {"run.goal": 475, "sampling.rollout": 32, "sampling.envs_per_worker": 8, "learning.batch_size": 1024}
    slot = {**SMALL, **settings}
    steps_per_slot = int(slot["sampling.rollout"]) * int(slot["sampling.envs_per_worker"]) // 2
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(Path(temporary) / "run", env=args.env, imports=COUNTING if counting else None, **settings)
        with run:
            run.wait_for("the first steps", run.step, 120)
            began = time.monotonic()
            outcomes = soak(run, args, rng, steps_per_slot)
            assert run.process is not None
            if run.process.poll() is None:
                if counting:
                    run.process.send_signal(signal.SIGINT)
                run.end(1800)
            code, minutes, steps = run.process.returncode, (time.monotonic() - began) / 60, run.step()
            run.assert_nothing_left()
            goal = run.output.splitlines()[-3]
    path = args.out or Path(__file__).parent / "results" / f"soak-{args.env.replace('/', '-').lower()}.json"
    runs: list[dict[str, Any]] = []
    if args.add and path.exists():
        earlier = json.loads(path.read_text())
        runs = earlier["runs"]
        for kind, row in earlier["faults"].items():
            outcomes[kind].add(Outcome(**row))
    print(f"\n\n{args.env}: {minutes:.1f} minutes, {steps:,} steps, exit code {code}; nothing left behind. {goal}\n")
    print("| fault | injected | survived | seconds to go on (median, longest) | steps lost |\n|---|---|---|---|---|")
    for kind in WEIGHTS:
        o = outcomes[kind]
        if o.seconds:
            times = f"{statistics.median(o.seconds):.1f}, {max(o.seconds):.1f}"
            print(f"| {kind} | {o.injected} | {o.survived} | {times} | {o.lost:,} |")
    how = {"seed": args.seed, "minutes": minutes, "steps": steps, "exit_code": code, "end": goal, "load": os.getloadavg()[2]}
    faults = {kind: vars(o) for kind, o in outcomes.items()}
    result = {"machine": summary.machine(), "env": args.env, "runs": [*runs, how], "faults": faults}
    summary.write(path, result)


if __name__ == "__main__":
    main()
