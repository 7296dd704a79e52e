"""Does a step cost more than before? `step_budget.py` of two checkouts, in turn, and the ratio of their CPU times for every part.

    python benchmarks/compare_checkouts.py BEFORE AFTER --env atari/breakout vizdoom/basic --rounds 9

BEFORE and AFTER are folders of checkouts, each with its own `benchmarks/step_budget.py` and an interpreter at `.venv/bin/python`
in which its own package is installed. The runs alternate, and who goes first changes from round to round, so that a machine that
gets slower or faster does so for both. A round gives one ratio AFTER / BEFORE of each part. Their median is robust against rounds
that something disturbed; its 95 % interval (the binomial one, which assumes nothing of the noise; below 6 rounds it is only the
range, and proves nothing) says how far it can be trusted. Costs are CPU microseconds per environment step.

Prints a table and writes a small JSON summary. The exit code is 1 if a part's median ratio is above `--limit` and its interval
above 1. A median above the limit without that is noise: more rounds, or more updates, have to tell (an update of a cheap
environment takes milliseconds, so give it hundreds).

Of the two scripts it needs the flags --env, --updates and --out, and the file `{"cpu_us_per_step": {env: {part: number}}, ...}`.
Parts that only one of the checkouts has are shown without a ratio. `all` is the sum of all parts, `engine` of those whose name
begins so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

from summary import write

ENOUGH_ROUNDS = 6
"""From here on the range of the ratios holds their median with 95 % probability."""
TIMEOUT = 1800.0
"""Seconds for one run of step_budget.py."""


def measure(checkout: Path, env: str, updates: int) -> tuple[dict[str, float], dict[str, Any]]:
    """CPU microseconds per step of every part, and the machine's facts, from one run of the checkout's own script."""
    python, script = checkout / ".venv/bin/python", checkout / "benchmarks/step_budget.py"
    with tempfile.TemporaryDirectory(prefix="compare-") as temporary:
        out = Path(temporary) / "step_budget.json"
        command = [str(python), str(script), "--env", env, "--updates", str(updates), "--out", str(out)]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise SystemExit(f"{script} failed, exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        result = json.loads(out.read_text())
    parts: dict[str, float] = result["cpu_us_per_step"][env]
    engine = sum(value for part, value in parts.items() if part.startswith("engine"))
    return parts | {"engine": engine, "all": sum(parts.values())}, result.get("machine", {})


def summary(rounds: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """By part: medians of both, median of the rounds' ratios and the ends of its interval (where both have the part)."""
    result: dict[str, dict[str, float]] = {}
    for part in dict.fromkeys(part for pair in rounds for costs in pair for part in costs):
        result[part] = {}
        for name, side in (("before", 0), ("after", 1)):
            if part in rounds[0][side]:
                result[part][name] = round(median(pair[side][part] for pair in rounds), 3)
        if len(result[part]) == 2 and all(pair[0][part] > 0 for pair in rounds):
            ratios = sorted(after[part] / before[part] for before, after in rounds)
            low, high = interval(ratios)
            result[part] |= {"ratio": round(median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}
    return result


def interval(ordered: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Ends of the confidence interval of the median: the k-th value from either end. The median lies beyond it with probability
    2 P(X < k), X binomial with p = 1/2; k is the largest for which that is below 1 - `confidence`, but at least 1."""
    n, k = len(ordered), 1
    while 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n <= 1 - confidence:
        k += 1
    return ordered[k - 1], ordered[n - k]


def commit(checkout: Path) -> str:
    """Short commit of a checkout, and whether files differ from it."""

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", checkout, *args], capture_output=True, text=True).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if git("status", "--porcelain", "-uno") else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--env", nargs="*", default=["atari/breakout", "vizdoom/basic", "gym/CartPole-v1"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=20, help="updates that each run measures")
    parser.add_argument("--limit", type=float, default=1.03, help="highest median ratio of a part, for the exit code")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "compare_checkouts.json")
    args = parser.parse_args()
    # Not `resolve`: links in the path may be meant.
    checkouts = [Path(os.path.abspath(checkout)) for checkout in (args.before, args.after)]
    commits, failed = [commit(checkout) for checkout in checkouts], False
    machine: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    notes: list[str] = []
    print(f"before: {commits[0]}; after: {commits[1]}; {args.rounds} rounds of {args.updates} updates; CPU microseconds per step")
    for env in args.env:
        rounds = []
        for number in range(args.rounds):
            costs: list[dict[str, float]] = [{}, {}]
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                costs[side], machine = measure(checkouts[side], env, args.updates)
            rounds.append((costs[0], costs[1]))
        rows[env] = summary(rounds)
        print(f"\n| {env} | before | after | ratio | 95 % interval |\n|---|---|---|---|---|")
        for part, of in rows[env].items():
            cells = [f"{of[side]:.2f}" if side in of else "-" for side in ("before", "after")]
            cells += [f"{of['ratio']:.3f}", f"{of['low']:.3f} to {of['high']:.3f}"] if "ratio" in of else ["-", "-"]
            print(f"| {part} | " + " | ".join(cells) + " |", flush=True)
            if of.get("ratio", 0.0) > args.limit:
                clear = of["low"] > 1 and args.rounds >= ENOUGH_ROUNDS
                failed |= clear
                notes.append(
                    f"{env}: {part} costs {of['ratio']:.3f} times as much" + ("" if clear else ", which noise can explain")
                )
    facts = {key: machine[key] for key in ("processor", "cores", "platform", "python") if key in machine}
    settings = {"before": commits[0], "after": commits[1], "rounds": args.rounds, "updates": args.updates}
    write(args.out, {"machine": facts, **settings, "cpu_us_per_step": rows})
    print("\n" + ("\n".join(notes) or f"No part costs more than {args.limit} times as much."))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
