"""Training on Headrace's own Atari core beside training on ale-py's: what the core saves of the minutes to learn Pong.

    python benchmarks/atari_backends.py

Both play the same games bit for bit and are learned from with the same settings, those that `headrace train` has by default; so
they need equally many steps, and the ratio of their rates is that of their times. Emulation runs beside the learner: as long as
the learner leaves a processor free, it costs nothing. With as many threads as processors the learner feels what it takes. How it
is measured: training_contest.py; the steps to the goal are those of learning/results/time_to_pong.json. Prints a table, writes
results/atari_backends.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import summary
from training_contest import Command, headrace, measure

from headrace.make_config import make_config

HERE = Path(__file__).parent
ENV, BACKENDS = "atari/pong", ("native", "ale")


def command(env: str, folder: Path, envs: int, batch: int, like: dict[str, Any]) -> Command:
    """A `System`."""
    return headrace(env, envs, batch, folder, like)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="threads of the learner")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "atari_backends.json")
    args = parser.parse_args()
    config = make_config(ENV)
    batch = config.learning.batch_size
    defaults = {f"sampling.{name}": getattr(config.sampling, name) for name in ("num_workers", "envs_per_worker", "rollout")}
    rates: dict[tuple[int, str], list[float]] = {(threads, name): [] for threads in args.threads for name in BACKENDS}
    for _ in range(args.rounds):
        for (threads, name), measured in rates.items():
            like = defaults | {"envs.atari_backend": name, "learning.num_threads": threads}
            measured.append(measure(partial(command, envs=config.num_envs, batch=batch, like=like), ENV, batch, args.seconds))
    steps = json.loads((HERE / "learning" / "results" / "time_to_pong.json").read_text())["entries"][-1]["seeds"][0]["steps"]
    rows, load = [], os.getloadavg()[1]
    print(f"{ENV}, steps/s trained on (and minutes for the {steps:,} steps to 18), load {load:.1f}\n")
    print("| learner threads | native | ale | ratio |\n|---|---|---|---|")
    for threads in args.threads:
        median = {name: statistics.median(rates[threads, name]) for name in BACKENDS}
        ratio = median["native"] / median["ale"]
        rows.append({"threads": threads, "steps_per_second": {name: rates[threads, name] for name in BACKENDS}, "ratio": ratio,
                     "minutes_to_goal": {name: steps / rate / 60 for name, rate in median.items()}})  # fmt: skip
        cells = " | ".join(f"{rate:,.0f} ({steps / rate / 60:.0f} min)" for rate in median.values())
        print(f"| {threads} | {cells} | {ratio:.2f} |")
    result = {"machine": summary.machine(), "env": ENV, "steps_to_goal": steps, "rows": rows, "load_average": load}
    summary.write(args.out, result)


if __name__ == "__main__":
    main()
