"""What an installation does on this machine, as one line of JSON: its facts, pictures of three games, and CartPole to its goal.

    python benchmarks/wheel_check.py                # headrace-atari; with headrace also CartPole
    python benchmarks/wheel_check.py --minutes 30   # for a slow machine

`platforms.py` runs it in root file systems of other systems, and compares the pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace_atari import AtariVector, _native
from headrace_atari._native import atari

GAMES = ("pong", "breakout", "montezuma_revenge")
CONSOLES = 4
GOAL = 475.0
"""CartPole-v1's: a mean return of 475 of 500."""


def pictures(game: str, steps: int = 100, speed_seconds: float = 2.0) -> dict[str, Any]:
    """A digest of `steps` steps of random actions on each console (observations, rewards and the last screens), and frames/s."""
    envs = AtariVector(game, num_envs=CONSOLES, render_mode="rgb_array")
    digest = hashlib.sha256(envs.reset(seed=1)[0].tobytes())
    actions = np.random.default_rng(0).integers(0, envs.single_action_space.n, (steps, CONSOLES))
    for row in actions:
        observations, rewards, *_ = envs.step(row)
        digest.update(np.ascontiguousarray(observations).tobytes() + np.asarray(rewards, np.float64).tobytes())
    for screen in envs.render():
        digest.update(np.ascontiguousarray(screen).tobytes())
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < speed_seconds:
        envs.step(actions[done % steps])
        done += 1
    seconds = time.perf_counter() - begun
    envs.close()
    return {"digest": digest.hexdigest(), "frames_per_s": round(done * CONSOLES * 4 / seconds)}


def cartpole(placement: str, minutes: float) -> dict[str, Any]:
    """What `headrace train` says of CartPole: its last mean return, steps and seconds, of at most so many `minutes`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("headrace")), "train", "--env", "gym/CartPole-v1", "--no-video"]
        command += [
            "--sampling.placement",
            placement,
            "--run.goal",
            str(GOAL),
            "--max-minutes",
            str(minutes),
            "--log-interval",
            "2",
        ]
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"headrace train ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        (path,) = Path(folder).glob("runs/*/metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    returns = [row["charts/episodic_return"] for row in rows if row.get("charts/episodic_return") is not None]
    return {
        "return": returns[-1],
        "goal": GOAL,
        "placement": placement,
        "steps": rows[-1]["global_step"],
        "seconds": round(seconds),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="CartPole's training ends after so many minutes at the latest")
    parser.add_argument("--placement", default="served", help="CartPole's placement; serial takes the least processor time")
    args = parser.parse_args()
    facts = {
        "machine": platform.machine(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("headrace-atari", "headrace", "numpy", "ale-py", "torch")},
        "module": Path(atari.__file__).name,
        "level": _native.LEVEL,
        "games": {game: pictures(game) for game in GAMES},
        "cartpole": cartpole(args.placement, args.minutes) if importlib.util.find_spec("headrace") else None,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
