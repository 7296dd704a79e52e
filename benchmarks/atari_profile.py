"""Where the time of a step of `AtariVector` goes, per game: microseconds of processor time of one console and one step.

    python benchmarks/atari_profile.py --json FILE

Steps of 4 frames, 16 environments, no pool of threads, no sticky actions, random actions. By differences between vectors that
take turns, medians of the rounds:

    emulation     four frames that are not drawn: with RAM as observation, a step of 8 frames less one of 4 frames
    drawing       of the last two frames: with RAM as observation, a step of 4 frames less the emulation
    observation   the brighter of two frames, 84x84, four stacked: a step with images less one with RAM

`translated` is the share of emulation in machine code that programs were translated to; the rest are the TIA's registers,
collisions, and what the complete interpreter does. It is sampled by Linux's `perf` and empty without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import summary
from atari_throughput import GAMES, OPTIONS

from headrace_atari import AtariVector

NUM_ENVS = 16
KINDS: dict[str, dict[str, Any]] = {"images": {}, "ram": {"obs_type": "ram"}, "long": {"obs_type": "ram", "frameskip": 8}}


def vector(game: str, **options: Any) -> AtariVector:
    """A vector of one game, reset."""
    env = AtariVector(game, NUM_ENVS, num_threads=None, **OPTIONS, **options)
    env.reset(seed=0)
    return env


def play(env: AtariVector, steps: int) -> float:
    """Plays random steps; returns microseconds of processor time per step of one console."""
    actions = np.random.default_rng(0).integers(env.single_action_space.n, size=(steps, NUM_ENVS), dtype=np.int32)
    begin = time.process_time()
    for action in actions:
        env.step(action)
    return 1e6 * (time.process_time() - begin) / (steps * NUM_ENVS)


def parts(game: str, steps: int, rounds: int) -> dict[str, float]:
    """Microseconds of the parts of a step."""
    envs = {kind: vector(game, **options) for kind, options in KINDS.items()}
    for env in envs.values():
        play(env, 50)
    turns = [{kind: play(env, steps) for kind, env in envs.items()} for _ in range(rounds)]
    step = {kind: statistics.median(turn[kind] for turn in turns) for kind in KINDS}
    emulation = step["long"] - step["ram"]
    return {"step": step["images"], "emulation": emulation, "drawing": step["ram"] - emulation,
            "observation": step["images"] - step["ram"]}


def translated_share(game: str) -> float | None:
    """The share of translated code in the time of frames that are not drawn; None without perf."""
    if not shutil.which("perf"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        samples = f"{folder}/samples"
        perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-o", samples]
        subprocess.run([*perf, sys.executable, __file__, "--play", game], check=True, stderr=subprocess.DEVNULL)
        report = ["perf", "report", "-i", samples, "--no-children", "-s", "dso"]
        lines = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    shares = {name: float(share) for share, name in re.findall(r"^ +([\d.]+)% +(\S+)", lines, re.MULTILINE)}
    translated = sum(share for name, share in shares.items() if name == "[JIT]")
    native = sum(share for name, share in shares.items() if name.startswith("atari."))
    return translated / (translated + native)


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--steps", type=int, default=100, help="per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--play", metavar="GAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        play(vector(arguments.play, obs_type="ram", frameskip=64), 150)
        return
    columns = ("step", "emulation", "drawing", "observation")
    print("| game | " + " | ".join(columns) + " | translated |\n" + "| --- " * 6 + "|")
    rows: list[dict[str, Any]] = []
    for game in arguments.games:
        row = parts(game, arguments.steps, arguments.rounds)
        share = translated_share(game)
        rows.append({"game": game, **{name: round(row[name], 1) for name in columns}, "translated": share})
        cells = " | ".join(f"{row[name]:.1f}" for name in columns)
        print(f"| {game} | {cells} | " + (f"{share:.0%} |" if share is not None else "- |"), flush=True)
    if arguments.json:
        facts = {"cores": os.cpu_count(), "load": os.getloadavg(), "steps": arguments.steps, "rounds": arguments.rounds}
        summary.write(arguments.json, {"settings": facts, "rows": rows})


if __name__ == "__main__":
    main()
