"""DQN on Pong from a replay, end to end: Headrace's Ape-X beside Stable-Baselines3, CleanRL and RLlib.

    SB3/bin/pip install stable-baselines3 ale-py opencv-python-headless
    CLEANRL/bin/pip install gymnasium==0.29.1 stable-baselines3==2.3.2 ale-py==0.10.1 "numpy<2" opencv-python-headless tensorboard
    CLEANRL/bin/pip install --no-deps --ignore-requires-python cleanrl==1.2.0
    RLLIB/bin/pip install "ray[rllib]" "gymnasium[atari]" opencv-python-headless
    python benchmarks/vs_dqn.py SB3/bin/python --cleanrl CLEANRL/bin/python --rllib RLLIB/bin/python

All: DQN with Nature's network, on the CPU; every step is learned from 8 times (a batch of 32 every 4 steps is the default of
CleanRL and of Stable-Baselines3; `--batch 512` has Ape-X's batch); a replay of 50,000 steps. Headrace and RLlib draw by priority,
the others uniformly. CleanRL has one environment; of Stable-Baselines3 and RLlib the faster of one and 16 counts. `headrace, same
means` is kept to float32 and ale-py, as in vs_sample_factory.py.

How it is measured: training_contest.py. The steps that it counts are those that the updates made so far stand for; a system
that samples another number of steps per update ends the script. Prints a table, writes results/vs_dqn.json, with another batch
results/vs_dqn_BATCH.json.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from contenders import CAPACITY, FIRST, SAMPLES_PER_STEP
from training_contest import Command, System, arguments, compare, headrace, interpreter

BATCH = 32
APEX: dict[str, Any] = {
    "learning.algorithm": "apex-dqn", "policy.encoder": "nature-conv", "policy.hidden": 512, "q.dueling": False,
    "q.double": False, "learning.learning_rate": 1e-4, "learning.precision": "auto", "sampling.rollout": 20,
    "replay.capacity": CAPACITY, "replay.minimum": FIRST, "replay.samples_per_insert": SAMPLES_PER_STEP, "run.log_interval": 1,
}  # fmt: skip
MEANS = {"learning.precision": "float32", "envs.atari_backend": "ale"}


def trained(batch: int, counts: list[tuple[float, float]]) -> list[int]:
    """Steps that the updates stand for. `counts`: steps sampled and updates made. Raises RuntimeError where these do not fit."""
    between = batch // SAMPLES_PER_STEP
    if counts and counts[-1][1] * between > 2 * FIRST:
        each = (counts[-1][0] - FIRST) / counts[-1][1]
        if not 0.75 * between < each < 1.25 * between:
            raise RuntimeError(f"{each:.2f} steps per update, where {between} are compared")
    return [int(updates) * between for _, updates in counts if updates]


def other(python: str, system: str, batch: int, envs: int, env: str, folder: Path) -> Command:
    """One of contenders.py's."""

    def steps(output: str) -> list[int]:
        return trained(batch, [(float(a), float(b)) for a, b in re.findall(r"sampled ([\d.]+), updates (\d+)", output)])

    return [python, str(Path(__file__).with_name("contenders.py")), "dqn", system, str(batch), str(envs)], steps


def apex(like: dict[str, Any], batch: int, envs: int, env: str, folder: Path) -> Command:
    """Headrace with these settings."""
    command, _ = headrace(env, envs, batch, folder, APEX | like)

    def steps(output: str) -> list[int]:
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return trained(batch, [(line["global_step"], line["charts/updates"]) for line in found])

    return command, steps


def main() -> None:
    parser = arguments(__doc__, ["atari/pong"], "vs_dqn.json")
    parser.set_defaults(batch=BATCH)
    parser.add_argument("--cleanrl", type=interpreter, help="interpreter of CleanRL's virtual environment")
    parser.add_argument("--rllib", type=interpreter, help="interpreter of RLlib's virtual environment")
    args = parser.parse_args()
    if args.batch != BATCH:
        args.out = args.out.with_stem(f"{args.out.stem}_{args.batch}")
    numbers = [("", 1), (f", {args.envs} environments", args.envs)]
    others: dict[str, System] = {
        f"SB3{label}": partial(other, args.python, "stable-baselines3", args.batch, envs) for label, envs in numbers
    }
    if args.cleanrl:
        others["CleanRL"] = partial(other, args.cleanrl, "cleanrl", args.batch, 1)
    if args.rllib:
        others |= {f"RLlib{label}": partial(other, args.rllib, "rllib", args.batch, envs) for label, envs in numbers}
    systems: dict[str, System] = {"headrace": partial(apex, {}, args.batch, args.envs)} | others
    systems["headrace, same means"] = partial(apex, MEANS, args.batch, args.envs)
    compare(args, systems, list(others))


if __name__ == "__main__":
    main()
