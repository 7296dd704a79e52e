"""Whether Headrace's Atari console plays as the Arcade Learning Environment does, frame by frame.

Every game is played with random actions on both, several seeds, resetting when it is over and now and then before. After
each frame the 128 bytes of RAM, the screen (TIA colours), reward, lives and game over must be equal. With the last seed
nothing is drawn, which takes another path through the core; screens are compared with all others. Every further mode and
difficulty is played for `--mode-frames` frames. No sticky actions: the consoles are compared, not the action noise.

    python benchmarks/atari_exactness.py                        # 104 games, 20,000 frames each
    python benchmarks/atari_exactness.py pong klax --frames 500

Writes a summary as JSON and as a table in Markdown, anew after each game: one line for each game that differs, with the first
difference of each run, and one for all others. Exits with 1 if anything differed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
import summary

import headrace_atari._native.atari as native
from headrace_atari import games, rom_path

RESULTS = Path(__file__).parent / "results"


@dataclass
class Run:
    """One stretch of play: what was compared, and the first frame that differed (None: none did)."""

    game: str
    mode: int
    difficulty: int
    seed: int
    drawn: bool
    frames: int = 0
    resets: int = 0
    rewards: int = 0
    difference: str | None = None


def play(run: Run, frames: int, reset_every: int = 4000, translate: bool = True) -> Run:
    """Plays `frames` frames on both consoles and fills in `run`; stops at the first difference.

    `translate`: our console runs the program as machine code where it can, as it does by default.
    """
    path = rom_path(run.game)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", run.seed)
    ale.loadROM(str(path))
    game = native.make_game(games()[run.game]["index"], path.read_bytes(), translate)
    ours = native.Emulator(game, run.mode, run.difficulty)
    ale.setMode(run.mode)
    if run.difficulty:  # 0 is what runs unless told otherwise, also where it is not on the list
        ale.setDifficulty(run.difficulty)
    ale.reset_game()
    ours.reset()
    rng = np.random.default_rng(run.seed)
    actions = ale.getMinimalActionSet()
    ram, screen = np.zeros(128, np.uint8), np.zeros(ale.getScreenDims(), np.uint8)
    reward = our_reward = left = 0
    since_reset = stillborn = 0
    while True:
        ale.getRAM(ram)
        our_ram = ours.ram()
        where = f"frame {run.frames}, {since_reset} after reset {run.resets}"
        if not np.array_equal(ram, our_ram):
            first = int(np.argmax(ram != our_ram))
            run.difference = f"{where}: RAM ${0x80 + first:02X} is {our_ram[first]}, not {ram[first]}"
        elif reward != our_reward:
            run.difference = f"{where}: reward is {our_reward}, not {reward}"
        elif (ale.lives(), ale.game_over()) != (ours.lives, ours.game_over):
            run.difference = f"{where}: lives and game over are {ours.lives, ours.game_over}, not {ale.lives(), ale.game_over()}"
        elif run.drawn:
            ale.getScreen(screen)
            if not np.array_equal(screen, our_screen := ours.screen()):
                y, x = np.argwhere(screen != our_screen)[0]
                run.difference = f"{where}: pixel ({x}, {y}) is {our_screen[y, x]}, not {screen[y, x]}"
        stillborn += since_reset == 0 and ale.game_over()  # some modes of demon_attack are over after every reset
        if run.difference or run.frames == frames or stillborn == 10:
            return run
        if ale.game_over() or since_reset == reset_every:
            ale.reset_game()
            ours.reset()
            reward = our_reward = 0
            run.resets += 1
            since_reset = 0
        else:
            if left == 0:
                action, left = actions[rng.integers(len(actions))], rng.integers(1, 12)
            left -= 1
            reward, our_reward = ale.act(action), ours.act(action.value, draw=run.drawn)
            run.rewards += reward != 0
            run.frames += 1
            since_reset += 1


def runs_of(game: str, frames: int, seeds: int, mode_frames: int) -> list[tuple[Run, int]]:
    """The runs of one game and their frames: the default mode with each seed, then every other mode and difficulty."""
    facts = games()[game]
    default = facts["modes"][0] if "default_mode" not in facts else facts["default_mode"]
    runs = [(Run(game, default, 0, seed, seed < seeds - 1 or seeds == 1), frames // seeds) for seed in range(seeds)]
    if mode_frames:
        others = [(m, d) for m in facts["modes"] for d in facts["difficulties"] if (m, d) != (default, 0)]
        runs += [(Run(game, m, d, 1, True), mode_frames) for m, d in others]
    return runs


def check(job: tuple[str, int, int, int]) -> list[Run]:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return [play(run, frames) for run, frames in runs_of(*job)]


def sums(runs: Iterable[Run]) -> dict[str, int]:
    """What the runs of one or several games played, in all."""
    runs = list(runs)
    counted = {field: sum(getattr(run, field) for run in runs) for field in ("frames", "resets", "rewards")}
    return counted | {"variants": len({(run.game, run.mode, run.difficulty) for run in runs})}


def differences(runs: Iterable[Run]) -> list[str]:
    """The first difference of each run that has one; difficulties that differ in the same way are named together."""
    alike: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for run in runs:
        if run.difference:
            alike[run.mode, run.seed, run.difference].append(run.difficulty)
    return [
        f"mode {mode}, difficulty {', '.join(map(str, difficulties))}, seed {seed}: {difference}"
        for (mode, seed, difference), difficulties in alike.items()
    ]


def report(results: dict[str, list[Run]]) -> dict[str, Any]:
    """The games that differ, one by one, and all others together."""
    differ = {game: runs for game, runs in results.items() if differences(runs)}
    exact = {game: runs for game, runs in results.items() if game not in differ}
    return {
        "ale_py": ale_py.__version__,
        "machine": platform.machine(),
        "all": {"games": len(results), **sums(run for runs in results.values() for run in runs)},
        "differ": {game: sums(runs) | {"differences": differences(runs)} for game, runs in differ.items()},
        "exact": {"count": len(exact), **sums(run for runs in exact.values() for run in runs), "games": list(exact)},
    }


def table(facts: dict[str, Any]) -> str:
    """The report in Markdown."""
    everything, exact = facts["all"], facts["exact"]
    lines = [
        f"{exact['count']} of {everything['games']} games without a difference in {everything['frames']:,} frames, "
        f"ale-py {facts['ale_py']}.",
        "",
        "| game | frames | resets | rewarded frames | modes x difficulties | first difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = [(game, row, "; ".join(row["differences"])) for game, row in facts["differ"].items()]
    for name, row, found in [*rows, (f"the other {exact['count']}", exact, "none")]:
        counted = f"{row['frames']:,} | {row['resets']:,} | {row['rewards']:,} | {row['variants']:,}"
        lines.append(f"| {name} | {counted} | {found} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", help="default: all")
    parser.add_argument("--frames", type=int, default=20_000, help="per game in its default mode, over all seeds")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--mode-frames", type=int, default=600, help="per other mode and difficulty; 0: none")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "atari_exactness.json")
    parser.add_argument("--markdown", type=Path, default=RESULTS / "atari_exactness.md")
    arguments = parser.parse_args()
    names = arguments.games or sorted(games())
    start = time.monotonic()
    results: dict[str, list[Run]] = {}
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        jobs = [(game, arguments.frames, arguments.seeds, arguments.mode_frames) for game in names]
        for runs in pool.imap(check, jobs):
            results[runs[0].game] = runs
            bad = [run for run in runs if run.difference]
            frames = sum(run.frames for run in runs)
            print(f"{len(results):3}/{len(names)} {runs[0].game:22} {frames:8,} frames, {len(bad)} runs differ", flush=True)
            for run in bad[:3]:
                print(f"      mode {run.mode}, difficulty {run.difficulty}, seed {run.seed}: {run.difference}", flush=True)
            facts = report(results) | {"seconds": round(time.monotonic() - start, 1)}
            summary.write(arguments.json, facts)
            arguments.markdown.write_text(table(facts))
    print(table(facts).splitlines()[0])
    return int(any(run.difference for runs in results.values() for run in runs))


if __name__ == "__main__":
    sys.exit(main())
