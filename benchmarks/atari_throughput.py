"""Frames per second of `AtariVector`, of `ale_py.AtariVectorEnv` and of envpool under the same options.

    python benchmarks/atari_throughput.py --envpool PYTHON --json benchmarks/results/atari_throughput.json

All sides: 84x84 gray, 4 frames per step (the brighter of the last two), 4 images stacked, no sticky actions, uniformly
random actions of the minimal set, `--num-envs` environments stepped together by `--threads` threads. A *frame* is one frame
of the emulator, a quarter of a step. The sides take turns, several rounds per game, and the median of the rounds is kept,
so that what else the machine does falls on all of them alike. `--clock cpu` divides by the processor time of the process
instead of the time that passed, which is fairer still on a busy machine and counts per core. `headrace-caller` has no pool of
threads: the thread that calls `step` steps the consoles, which saves two hand-overs per step. `AtariVector` does so with a pool
of one thread, too. The others cannot.

envpool lives in an environment of its own (pip install envpool): give its interpreter with `--envpool`. Without it, or for
a game that a side does not have, that column stays empty. `raw` is emulation without observations: one console, no
screen drawn, against `ALEInterface.act`.

Each side runs in a process of its own. This file is also what they run, under whatever interpreter they have, so it
imports nothing at its top that envpool's interpreter might lack.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

GAMES = [
    *("pong", "breakout", "space_invaders", "seaquest", "ms_pacman", "qbert", "montezuma_revenge", "beam_rider"),
    *("enduro", "assault", "asteroids", "pitfall", "road_runner", "robotank", "hero"),
]
RATIOS = {
    "ratio_ale": ("headrace", "ale"),
    "ratio_envpool": ("headrace", "envpool"),
    "ratio_caller_ale": ("headrace-caller", "ale"),
    "ratio_caller_envpool": ("headrace-caller", "envpool"),
    "ratio_raw": ("headrace-raw", "ale-raw"),
}
"""Which sides each ratio is of."""
OPTIONS: dict[str, Any] = {"noop_max": 30, "repeat_action_probability": 0.0, "reward_clipping": True}
Stepper = Callable[[np.ndarray], object]


def measure(step: Stepper, num_actions: int, num_envs: int, seconds: float, clock: Callable[[], float]) -> float:
    """Frames per second of `step` under random actions."""
    actions = np.random.default_rng(0).integers(num_actions, size=(64, num_envs), dtype=np.int32)
    for warm_up in actions[:8]:
        step(warm_up)
    begin, end = clock(), time.perf_counter() + seconds
    steps = 0
    while time.perf_counter() < end:
        step(actions[steps % 64])
        steps += 1
    return 4 * steps * num_envs / (clock() - begin)


def side(name: str, game: str, num_envs: int, threads: int | None) -> tuple[Stepper, int]:
    """The step function of one contender after its reset, and the number of actions. `threads`: None for no pool."""
    if name == "envpool":
        import envpool

        task = "".join(part.capitalize() for part in game.split("_")) + "-v5"
        pool = envpool.make(task, "gymnasium", num_envs=num_envs, num_threads=threads, seed=0, reward_clip=True)
        pool.reset()
        return pool.step, int(pool.action_space.n)
    if name == "ale":
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        env: Any = ale_py.AtariVectorEnv(game, num_envs, num_threads=threads, **OPTIONS)
    else:
        from headrace_atari import AtariVector

        env = AtariVector(game, num_envs, num_threads=threads, **OPTIONS)
    env.reset(seed=0)
    return env.step, int(env.single_action_space.n)


def raw_side(name: str, game: str) -> Callable[[int], object]:
    """One frame of one console without a look at its screen; games that end are reset."""
    if name == "ale":
        import ale_py

        from headrace_atari import rom_path

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", 0.0)
        ale.loadROM(rom_path(game))
        actions = ale.getMinimalActionSet()

        def act(k: int) -> None:
            if ale.game_over():
                ale.reset_game()
            ale.act(actions[k % len(actions)])

        return act
    from headrace_atari import games
    from headrace_atari._native import atari
    from headrace_atari.roms import load_game

    console = atari.Emulator(load_game(game))
    console.reset()
    minimal = games()[game]["minimal_actions"]

    def frame(k: int) -> None:
        if console.game_over:
            console.reset()
        console.act(minimal[k % len(minimal)], draw=False)

    return frame


def measure_raw(frame: Callable[[int], object], seconds: float, clock: Callable[[], float]) -> float:
    choices = np.random.default_rng(0).integers(18, size=4096).tolist()
    begin, end = clock(), time.perf_counter() + seconds
    frames = 0
    while time.perf_counter() < end:
        for k in choices[:256]:
            frame(k)
        frames += 256
    return frames / (clock() - begin)


class Contender:
    """One side in a process of its own, so that no side carries another's threads or memory."""

    def __init__(self, python: str, name: str, arguments: argparse.Namespace) -> None:
        command = [python, __file__, "--serve", name, "--threads", str(arguments.threads), "--clock", arguments.clock]
        command += ["--num-envs", str(arguments.num_envs), "--seconds", str(arguments.seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, game: str) -> float:
        """Frames per second of one round of a game; raises RuntimeError if the contender died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.stdin.write(f"{game}\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a contender ended with code {self.process.wait()}")
        return float(answer)

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(arguments: argparse.Namespace) -> None:
    """Answers each line on the standard input, the name of a game, with a measurement."""
    name, _, what = arguments.serve.partition("-")
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    game = ""
    for line in sys.stdin:
        changed, game = line.strip() != game, line.strip()
        if what == "raw":
            if changed:
                frame = raw_side(name, game)
            rate = measure_raw(frame, arguments.seconds, clock)
        else:
            if changed:
                step, num_actions = side(name, game, arguments.num_envs, None if what == "caller" else arguments.threads)
            rate = measure(step, num_actions, arguments.num_envs, arguments.seconds, clock)
        print(rate, flush=True)


def compare(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """One row per game: frames per second of each side and the ratios to ours."""
    pythons = {"headrace": sys.executable, "headrace-caller": sys.executable, "ale": sys.executable}
    if arguments.envpool:
        pythons["envpool"] = arguments.envpool
    pythons |= {"headrace-raw": sys.executable, "ale-raw": sys.executable}
    contenders = {name: Contender(python, name, arguments) for name, python in pythons.items()}
    rows: list[dict[str, object]] = []
    print(f"{'game':20}" + "".join(f"{name:>16}" for name in contenders) + "".join(f"{ratio:>22}" for ratio in RATIOS))
    for game in arguments.games:
        turns: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, contender in contenders.items():
                turns[name].append(contender.turn(game))
        fps = {name: statistics.median(values) for name, values in turns.items()}
        row: dict[str, object] = {"game": game, **{name: round(value) for name, value in fps.items()}}
        for ratio, (ours, other) in RATIOS.items():
            row[ratio] = round(fps[ours] / fps[other], 3) if other in fps else None
        rows.append(row)
        ratios = "".join(f"{row[ratio]:22.1f}" if row[ratio] else f"{'-':>22}" for ratio in RATIOS)
        print(f"{game:20}" + "".join(f"{rate:16,.0f}" for rate in fps.values()) + ratios, flush=True)
    for contender in contenders.values():
        contender.close()
    return rows


def creation(num_envs: int) -> float:
    """Seconds until `num_envs` new consoles have given their first observations."""
    from headrace_atari import AtariVector

    begin = time.perf_counter()
    env = AtariVector("pong", num_envs)
    env.reset(seed=0)
    return time.perf_counter() - begin


def machine(envpool: str | None) -> dict[str, object]:
    """`envpool` is its interpreter."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    facts: dict[str, object] = {"cpu": cpu.partition(": ")[2], "cores": os.cpu_count(), "load": os.getloadavg()}
    facts |= {"python": platform.python_version(), "ale-py": metadata.version("ale-py")}
    if envpool:
        versions = "import platform as p, importlib.metadata as m; print(m.version('envpool'), 'on Python', p.python_version())"
        facts["envpool"] = subprocess.run([envpool, "-c", versions], capture_output=True, text=True, check=True).stdout.strip()
    return facts


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--envpool", metavar="PYTHON", help="interpreter of an environment with envpool")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments)
    print(f"{arguments.num_envs} environments, {arguments.threads} thread(s), frames per second by {arguments.clock} time")
    if not arguments.envpool:
        print("envpool is left out: name an interpreter that has it with --envpool")
    rows = compare(arguments)
    ratios: dict[str, object] = {}
    for column in RATIOS:
        values = [value for row in rows if isinstance(value := row[column], float)]
        if values:
            ratios[column] = {"median": round(statistics.median(values), 3), "least": min(values)}
            print(f"{column:20} median {statistics.median(values):5.1f}, least {min(values):5.1f}")
    ratios["seconds_to_create_1024"] = round(creation(1024), 3)
    print(f"1,024 consoles created and reset in {ratios['seconds_to_create_1024']:.2f} s")
    if arguments.json:
        import summary  # only here: envpool's interpreter lacks headrace

        facts = {key: value for key, value in vars(arguments).items() if key not in ("json", "serve", "envpool")}
        report = {"machine": machine(arguments.envpool), "settings": facts, "summary": ratios, "rows": rows}
        summary.write(arguments.json, report)


if __name__ == "__main__":
    main()
