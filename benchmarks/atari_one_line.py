"""The same PPO training on these consoles and on ale-py's: equal returns and weights, steps per second side by side.

    python benchmarks/atari_one_line.py --json benchmarks/results/atari_one_line.json

Runs packages/headrace-atari/examples/ppo_atari.py with `--envs headrace` and `--envs ale` in turns, several rounds with another
seed each. With one thread of PyTorch the arithmetic is repeatable, so equal observations and rewards give equal weights; the
script stops with an error if a return or a weight differs. Rates are medians over the rounds: of the whole training, where
PyTorch's network is the larger part on a CPU, and of `envs.step` alone. They are per second of the process's processor time, so
that what else the machine does falls on neither side; one thread steps the environments, and one computes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import summary

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "headrace-atari" / "examples"))

import ppo_atari

SIDES = tuple(ppo_atari.VECTOR_ENVS)
RATES = ("steps/s", "steps/s of envs.step")


def compare(game: str, rounds: int, steps: int, num_envs: int) -> dict[str, Any]:
    """Train on both sides in turns. Returns the medians, their ratios, and how many returns were compared.

    Raises `SystemExit` if both sides did not give the same returns and weights.
    """
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for seed in range(rounds):
        for side in SIDES if seed % 2 else reversed(SIDES):
            flags = f"--envs {side} --game {game} --seed {seed} --total-steps {steps} --num-envs {num_envs}"
            repeatable = "--torch-threads 1 --device cpu"
            results[side].append(ppo_atari.main(ppo_atari.arguments(f"{flags} {repeatable}".split()), time.process_time))
        ours, theirs = (results[side][-1] for side in SIDES)
        if (ours["returns"], ours["weights"]) != (theirs["returns"], theirs["weights"]):
            sys.exit(f"{game}, seed {seed}: returns or weights differ")
    row: dict[str, Any] = {"game": game, "returns compared": sum(len(each["returns"]) for each in results[SIDES[0]])}
    for rate in RATES:
        medians = [statistics.median(each[rate] for each in results[side]) for side in SIDES]
        row |= {f"{rate}, {side}": round(value) for side, value in zip(SIDES, medians, strict=True)}
        ratios = [ours[rate] / theirs[rate] for ours, theirs in zip(*results.values(), strict=True)]
        row |= {f"ratio, {rate}": round(medians[0] / medians[1], 2), f"ratios, {rate}": [round(ratio, 2) for ratio in ratios]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["breakout", "pong"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8192, help="of one training")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [compare(game, args.rounds, args.steps, args.num_envs) for game in args.games]
    for row in rows:
        print(", ".join(f"{name}: {value}" for name, value in row.items()))
    if args.json:
        settings = {"games": args.games, "rounds": args.rounds, "steps": args.steps, "num_envs": args.num_envs}
        summary.write(args.json, {"machine": summary.machine(), "settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
