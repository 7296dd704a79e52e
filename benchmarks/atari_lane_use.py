"""How many lanes of a warp work while compiled programs run, counted on the CPU by the launcher that tests use. Needs no GPU.

    python benchmarks/atari_lane_use.py [--games pong ...] [--steps 10] [--docs]

32 consoles of a game, decorrelated by random actions and different numbers of steps before, run as one warp: once each lane its
own block (a warp then executes the different blocks one after the other), once always the block of the console that is
furthest behind. Lane use is the share of the 32 lanes that are active, weighted with the instructions of the blocks.
`--docs` writes the table into docs/atari.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from atari_kernel_resources import write_into_docs

from headrace.envs import atari_kernels
from headrace.envs.atari_kernels import WARP, KernelOptions
from headrace.envs.atari_vector import AtariVector

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "native"))
from host_kernels import HostKernels

GAMES = ["pong", "breakout", "space_invaders", "ms_pacman", "qbert", "seaquest", "riverraid", "boxing", "montezuma_revenge"]


def decorrelated_states(game: str, count: int) -> list[bytes]:
    """Saved states: console i after 8 i steps and more of random play."""
    vector = AtariVector(game, count, num_threads=1, reward_clipping=False)
    vector.reset(seed=0)
    rng = np.random.default_rng(0)
    states: list[bytes] = []
    while len(states) < count:
        for _ in range(8):
            vector.step(rng.integers(len(vector.action_set), size=count))
        states.append(vector.save_state(len(states)))
    vector.close()
    return states


def lane_use(game: str, states: list[bytes], steps: int, reconverge: bool) -> tuple[float, float]:
    """Share of active lanes by instructions, and instructions per block, over `steps` steps of all consoles."""
    kernels = HostKernels()
    atari_kernels.CudaKernels = lambda device: kernels  # type: ignore[assignment,misc]
    options = KernelOptions(consoles_per_warp=WARP, reconverge=reconverge)
    vector = AtariVector(game, len(states), device="cuda", kernels=options, reward_clipping=False)
    vector.reset(seed=0)
    for env, state in enumerate(states):
        vector.load_state(env, state)
    kernels.counts = [0, 0, 0, 0]
    rng = np.random.default_rng(1)
    for _ in range(steps):
        vector.step(rng.integers(len(vector.action_set), size=len(states)))
    _, lanes, instructions, active = kernels.counts
    return active / (WARP * instructions), active / lanes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/atari.md")
    args = parser.parse_args()
    lines = ["| game | plain | reconverging | instructions per block |", "| --- | --- | --- | --- |"]
    shares: tuple[list[float], list[float]] = ([], [])
    for game in args.games:
        states = decorrelated_states(game, WARP)
        (plain, length), (together, _) = (lane_use(game, states, args.steps, reconverge) for reconverge in (False, True))
        shares[0].append(plain)
        shares[1].append(together)
        lines.append(f"| {game} | {plain:.0%} | {together:.0%} | {length:.1f} |")
        print(lines[-1], flush=True)
    lines.append(f"| median | {statistics.median(shares[0]):.0%} | {statistics.median(shares[1]):.0%} | |")
    print("\n".join(lines))
    if args.docs:
        write_into_docs("lanes", "\n".join(lines))


if __name__ == "__main__":
    main()
