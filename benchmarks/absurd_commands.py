"""Absurd values for every setting of `headrace train`, and absurd arguments of the other commands: what becomes of them.

    python benchmarks/absurd_commands.py [--every N]

Every command runs in a process of its own; one that trains is interrupted (Ctrl-C) after 8 seconds. Allowed: it runs, it ends at
Ctrl-C, or it ends with a message of at most 2,500 characters. Forbidden: a traceback, a signal, a hang (60 s), processes left
behind. Prints the counts and writes results/absurd_commands.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import summary

from headrace.config import Config
from headrace.config.describe import settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
from commands import Commands, Ended

TINY = ["train", "--env", "gym/CartPole-v1", "--sampling.placement", "serial", "--learning.batch-size", "512", "--run.no-video"]
TINY += ["--learning.total-steps", "600", "--learning.num-threads", "1", "--run.no-dashboard", "--run.folder", "run"]
VALUES = ("", "-1", "0", "2147483648", "1e30", "nan", "x" * 300, "None", "..", "a b\n", "[[[[", "ä")
FOLDERS = ("", "x" * 300, "/dev/null", "/dev/zero", "/proc/self/mem", "/proc", ".", "\n", "a" + "/a" * 3000, "-", "--", "ä")
EVAL = ("--episodes", "--seed", "--num-envs", "--checkpoint", "--import")
INTERRUPT, DEADLINE, LONGEST = 8.0, 60.0, 2500
MEMORY = 24 << 30
"""Bytes of addresses that a command may have: an absurd size must not take this machine's memory."""


def cases() -> Iterator[tuple[str, list[str]]]:
    """What it is about, and the arguments."""
    for setting in settings(Config()):
        for value in VALUES:
            yield "train, one setting", [*TINY, setting.flag, value]
        yield "train, one setting", [*TINY, setting.flag]
    for setting in settings(Config()):
        yield "train, a setting misspelt", [*TINY, setting.flag[:-1] + "_x", "1"]
    for folder in FOLDERS:
        yield "train, the folder", [*TINY, "--run.folder", folder]
        for command in ("eval", "watch"):
            yield f"{command}, the folder", [command, folder]
    for flag in EVAL:
        for value in VALUES:
            yield "eval, one option", ["eval", "trained", flag, value]
    for word in VALUES:
        yield "no such command", [word]
        yield "envs", ["envs", word]
        yield "train, the environment", [*TINY, "--env", f"gym/{word}"]
        yield "train, the environment", [*TINY, "--env", word]


def verdict(ended: Ended) -> str:
    """What came of a command."""
    if ended.problem:
        return ended.problem
    if ended.code == 0:
        return "runs"
    if ended.code == 130:
        return "ends at Ctrl-C"
    said = ended.output.strip()
    if not said or len(ended.message or said) > LONGEST:
        return "no clear message"
    return {1: "fails, explained", 2: "refused"}.get(ended.code or 0, f"exit code {ended.code}")


ALLOWED = ("runs", "ends at Ctrl-C", "refused", "fails, explained")


def suite(scratch: Path, every: int = 1, match: str = "") -> tuple[Counter[tuple[str, str]], list[str]]:
    """Run every nth case; how many of each kind came to what, and the commands that did what none may."""
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    with Commands(OMP_NUM_THREADS="1", XDG_CONFIG_HOME=str(scratch)) as commands:
        commands.run([*TINY, "--run.folder", "trained"], scratch)
        chosen = [case for case in cases() if match in " ".join(case[1])][::every]
        for number, (about, arguments) in enumerate(chosen):
            with tempfile.TemporaryDirectory(dir=scratch) as here:
                (Path(here) / "trained").symlink_to(scratch / "trained")
                ended = commands.run(arguments, Path(here), DEADLINE, interrupt=INTERRUPT, limits={"AS": MEMORY})
            outcome = verdict(ended)
            counts[about, outcome] += 1
            if outcome not in ALLOWED:
                failures.append(f"{about}: headrace {' '.join(arguments)[-200:]!r}: {outcome}\n{ended.output[-1500:]}")
            print(f"\r{number + 1} of {len(chosen)}, {len(failures)} forbidden  ", end="", file=sys.stderr)
    return counts, failures


def counts_of(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """The counts that are written in a result."""
    return Counter({(row["command"], row["outcome"]): row["cases"] for row in rows})


def table(counts: Counter[tuple[str, str]]) -> str:
    """Markdown."""
    outcomes = sorted({outcome for _, outcome in counts}, key=lambda name: (name not in ALLOWED, name))
    lines = [f"| command | cases | {' | '.join(outcomes)} |", "|---" * (len(outcomes) + 2) + "|"]
    for about in [*dict.fromkeys(about for about, _ in counts), "all"]:
        cells = [sum(n for (a, o), n in counts.items() if about in (a, "all") and o == outcome) for outcome in outcomes]
        lines.append(f"| {about} | {sum(cells)} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only every nth case")
    parser.add_argument("--match", default="", help="only commands that contain this text")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "absurd_commands.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        counts, failures = suite(Path(scratch), args.every, args.match)
    print(f"\n{table(counts)}\n")
    print("\n".join(failures))
    if not args.match:
        facts = {"cases": sum(counts.values()), "every": args.every, "forbidden": len(failures), "failures": failures}
        rows = [{"command": about, "outcome": outcome, "cases": n} for (about, outcome), n in counts.items()]
        summary.write(args.out, {"machine": summary.machine(), **facts, "rows": rows})
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
