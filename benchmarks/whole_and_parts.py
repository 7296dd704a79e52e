"""The whole against its parts in the device placement: microseconds per step of each part alone, and what training makes of them.

    python benchmarks/whole_and_parts.py --env atari/pong atari/breakout
    python benchmarks/whole_and_parts.py --env atari/pong --set policy.encoder=nature-cnn policy.hidden=512 --seconds 20

Parts: stepping all environments with random actions; acting for all of them; one update from one and the same batch. Each is run
for itself, in turns, in one process, with all threads that training has, and is the median of what its turns took. One after the
other they would allow 10^6 over the sum of their microseconds in steps per second. The whole is `headrace train` with the same
settings, in a process of its own, without its first seconds; its `time/*` metrics say how many microseconds of a step it spends
in each part, so that what is lost has a place. Prints a table, writes results/whole_and_parts.json with the load before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import summary

from headrace.cli.flags import parse_config
from headrace.config import Config
from headrace.runs.metrics import read_jsonl

WARM_UP = 4.0
"""Seconds at the start of a run that do not count: processes start, memory is touched, kernels are chosen."""
START_UP = 10.0
"""Seconds from the start of the command to the first line of metrics, which its time limit includes."""
PARTS = ("environments", "acting", "learning")


def parts(config: Config, rounds: int) -> dict[str, float]:
    """Microseconds per step of every part alone."""
    import torch

    from headrace.accelerator.cpu_allocator import keep_freed_memory
    from headrace.accelerator.threads import using_threads
    from headrace.envs.make import describe, make_group
    from headrace.experience.on_device import DeviceExperience
    from headrace.learning.algorithm import make_agent
    from headrace.learning.learner import Learner
    from headrace.sampling.device_sampler import DeviceSampler

    keep_freed_memory()
    spec, threads = describe(config.env, config.envs), config.learner_threads
    algorithm, model = make_agent(config, spec)
    group = make_group(config.env, config.envs, config.num_envs, threads=threads if threads > 1 else None, device=config.device)
    sampler = DeviceSampler(config, spec, algorithm, model, group, seed=0)
    learner = Learner(make_agent(config, spec)[1], algorithm, config)
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    with using_threads(threads):
        sampler.start(seed=0)
        batch = DeviceExperience(sampler.collect, config.device, range(config.num_envs)).next()
        actions, choices = sampler._memory["action"], spec.action.parts[0].n  # type: ignore[union-attr]
        actions.copy_(torch.randint_like(actions, choices))
        steps = config.update_period * config.num_envs

        def repeat(step: Callable[[int], None]) -> Callable[[], Any]:
            return lambda: [step(t) for t in range(config.update_period)]

        runs = dict(zip(PARTS, (repeat(sampler._step), repeat(sampler._act), lambda: learner.learn(batch)), strict=True))
        for turn in range(rounds + 1):
            for part, run in runs.items():
                began = perf_counter()
                run()
                if turn:  # the first one chooses kernels
                    times[part].append((perf_counter() - began) / steps * 1e6)
    sampler.close()
    return {part: statistics.median(values) for part, values in times.items()}


def whole(env: str, settings: dict[str, Any], seconds: float) -> dict[str, float]:
    """Steps per second of training, and its microseconds per step by part. Raises `SystemExit` if training fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headrace.cli", "train", "--env", env, "--run.folder", folder, "--no-dashboard"]
        command += ["--no-video", "--run.goal", "None", "--run.log-interval", "1", "--learning.total-steps", "1000000000"]
        command += ["--run.max-minutes", str((START_UP + WARM_UP + seconds) / 60), *flags(settings)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"{env}: {(run.stdout + run.stderr)[-2000:]}")
        rows = [row for row in read_jsonl(Path(folder) / "metrics.jsonl") if "charts/updates" in row]
    rows = [row for row in rows if row["time"] - rows[0]["time"] >= WARM_UP - 1]
    if len(rows) < 2:
        raise SystemExit(f"{env}: training gave too few lines of metrics on this machine; give more --seconds")
    passed = rows[-1]["time"] - rows[0]["time"]
    rate = (rows[-1]["global_step"] - rows[0]["global_step"]) / passed
    spent = {"environments": "time/rollout/step", "acting": "time/policy/forward", "learning": "time/learner/train"}
    return {"steps_per_second": rate} | {
        part: statistics.mean(row.get(name, 0.0) for row in rows) / rate * 1e6 for part, name in spent.items()
    }


def flags(settings: dict[str, Any]) -> list[str]:
    """The settings as command line flags."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", *str(value).split())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["atari/pong", "atari/breakout"])
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=VALUE", help="settings beyond the defaults")
    parser.add_argument("--rounds", type=int, default=7, help="turns of the parts")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training that count")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "whole_and_parts.json")
    asked = parser.parse_args()
    settings = {"sampling.placement": "device"} | dict(item.split("=", 1) for item in asked.set)
    load, rows = os.getloadavg()[0], {}
    head = " | ".join(f"{part}: alone, training" for part in PARTS)
    print(f"Microseconds per step\n\n| | {head} | steps/s: parts | training | share |")
    print("|" + "---|" * (len(PARTS) + 4))
    for env in asked.env:
        alone = parts(parse_config(["--env", env, *flags(settings)], tuned=False), asked.rounds)
        trained = whole(env, settings, asked.seconds)
        possible = 1e6 / sum(alone.values())
        rows[env] = {"alone": alone, "training": trained, "possible": possible, "share": trained["steps_per_second"] / possible}
        cells = " | ".join(f"{alone[part]:.0f}, {trained[part]:.0f}" for part in PARTS)
        rate = trained["steps_per_second"]
        print(f"| {env} | {cells} | {possible:,.0f} | {rate:,.0f} | {rate / possible:.0%} |", flush=True)
    summary.write(asked.out, {"machine": summary.machine() | {"load_before": load}, "settings": settings, "envs": rows})


if __name__ == "__main__":
    main()
