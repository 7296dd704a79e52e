"""Training throughput of Headrace and Sample Factory 2.1.1: same network, environments, batch and algorithm, learning on.

    VENV/bin/pip install sample-factory==2.1.1 "numpy<2" "gymnasium<1" ale-py vizdoom opencv-python-headless
    python benchmarks/vs_sample_factory.py VENV/bin/python

Both: 2 rollout workers, two groups each (double buffering), asynchronous, one policy worker, rollout 32, GAE, one epoch, on
the CPU. Atari: Nature CNN, frameskip 4. VizDoom: the simplified network of the paper with a GRU of 512, 72x128, frameskip 4.
Sample Factory is relieved of normalising observations and returns, which Headrace does not do here. `headrace` computes its
own way: bf16 where the processor has it, its own Atari core, whose games are ale-py's bit for bit. `headrace, same means` is
kept to float32 and ale-py, which are what Sample Factory has. `headrace, device` is the device placement, in one process without
workers: all environments are one group, whose steps since the last update are the batch.

How it is measured: training_contest.py. Prints a table, writes results/vs_sample_factory.json.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from training_contest import ROLLOUT, SAME_LEARNING, SAME_MEANS, WORKERS, Command, System, arguments, compare, headrace


def sample_factory(python: str, env: str, envs: int, batch: int, folder: Path) -> Command:
    """Sample Factory with these numbers."""
    name = {"atari/breakout": "atari_breakout", "atari/pong": "atari_pong", "vizdoom/basic": "doom_basic"}[env]
    flags: dict[str, Any] = {
        "env": name,
        "experiment": "speed",
        "train_dir": folder,
        "device": "cpu",
        "async_rl": True,
        "serial_mode": False,
        "num_workers": WORKERS,
        "num_envs_per_worker": envs // WORKERS,
        "worker_num_splits": 2,
        "policy_workers_per_policy": 1,
        "rollout": ROLLOUT,
        "recurrence": 1 if env.startswith("atari") else ROLLOUT,
        "batch_size": batch,
        "num_batches_per_epoch": 1,
        "num_epochs": 1,
        "with_vtrace": False,
        "normalize_input": False,
        "normalize_returns": False,
        "save_every_sec": 10**6,
        "decorrelate_experience_max_seconds": 1,
        "default_niceness": os.nice(0),  # it sets niceness absolutely: the same for both, whatever this script runs at
        "experiment_summaries_interval": 5,
    }
    script = str(Path(__file__).with_name("contenders.py"))

    def steps(output: str) -> list[int]:
        return [int(frames) // 4 for frames in re.findall(r"Total num frames: (\d+)", output)]

    return [python, script, "sample-factory", *(f"--{flag}={value}" for flag, value in flags.items())], steps


def main() -> None:
    args = arguments(__doc__, ["atari/breakout", "vizdoom/basic"], "vs_sample_factory.json").parse_args()
    doom = {"policy.core": "gru", "policy.core_size": 512}

    def ours(like: dict[str, Any]) -> System:
        return lambda env, folder: headrace(env, args.envs, args.batch, folder, like | (doom if "doom" in env else {}))

    device = {
        "sampling.placement": "device", "sampling.num_workers": 1, "sampling.num_groups": 1,
        "sampling.envs_per_worker": args.envs, "sampling.rollout": args.batch // args.envs,
    }  # fmt: skip
    systems: dict[str, System] = {
        "headrace": ours(SAME_LEARNING),
        "headrace, device": ours(SAME_LEARNING | device),
        "sample-factory": lambda env, folder: sample_factory(args.python, env, args.envs, args.batch, folder),
        "headrace, same means": ours(SAME_MEANS),
    }
    compare(args, systems, ["sample-factory"])


if __name__ == "__main__":
    main()
