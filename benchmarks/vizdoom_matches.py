"""Frames per second of Doom matches, of the same level alone, and of how vizdoom's own examples play; and where time goes.

    python benchmarks/vizdoom_matches.py
    python benchmarks/vizdoom_matches.py --scenario multi_deathmatch --players 4 --seconds 10 --rounds 3

All contenders play the same level at 160x120 with random actions, on the cores that the command is given, one after the other, in
an order that is turned by one each round. Counted are frames of players: a frame of a match of 2 players counts twice.

    alone            as many engines as the match has players, each in a process of its own, 4 frames per step
    alone, 1 process the same engines, stepped one after the other by one process
    match            `headrace.envs.vizdoom.match.Match`, 4 frames per step
    2 matches        two processes with a match each
    spinning         the match without the library by which waiting engines yield their cores (native/doom/yield.cpp)
    2, spinning      two of these
    one core         the match with all its engines on one core
    one, spinning    the same without the library
    example          as examples/python/multiple_instances.py of vizdoom: a Python process per player, one frame per action
    example, skip 4  the same with 4 frames per action (`make_action(action, 4)`); where it hangs, the frames up to then count
    asynchronous     as examples/python/cig_multiplayer.py: the asynchronous mode, in real time, 35 frames per second

Printed are medians over the rounds with their ratio to the match. The second table says where a step of the match goes: time of a
frame and of a picture in an engine without network, of reading the observation, of a rendezvous of the threads; the rest is what
the exchange between the engines costs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import summary
import vizdoom

from headrace.config import EnvConfig
from headrace.envs.vizdoom import game as engine
from headrace.envs.vizdoom.env import VizdoomEnv
from headrace.envs.vizdoom.game import DEATHMATCH_ARGS, configured, free_port, start
from headrace.envs.vizdoom.match import Match

FRAMESKIP = 4
LONG = 1_000_000
"""Frames of an episode: none ends while it is measured."""
PATIENCE = 30.0
"""Seconds beyond the measured time after which a contender is stopped."""
SINGLE = {"multi_duel": "duel_bots", "multi_cig": "cig", "multi_deathmatch": "deathmatch_bots"}
"""The single-player name of a match's level."""

Counter = Any
"""Frames played, a shared integer, one for each process."""


def alone(scenario: str, engines: int, seconds: float, counter: Counter) -> None:
    """Single players, one after the other in this process."""
    kwargs = {"bots": 0, "shaping": None, "episode_timeout": LONG}
    envs = [VizdoomEnv(SINGLE[scenario], EnvConfig(kwargs=kwargs)) for _ in range(engines)]
    for env in envs:
        env.reset(seed=0)
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        for env in envs:
            if env.step(env.action_space.sample())[2]:
                env.reset()
        counter.value += FRAMESKIP * engines
    for env in envs:
        env.close()


def match(scenario: str, players: int, seconds: float, counter: Counter, cores: frozenset[int] = frozenset()) -> None:
    """One match; its engines run on these cores only, if there are any."""
    env = Match(scenario, EnvConfig(kwargs={"players": players, "shaping": None, "episode_timeout": LONG}))
    env.reset(seed=0)
    for pid in env.engine_pids if cores else ():
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores)
    space = env.action_space("player_0")
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        env.step({agent: space.sample() for agent in env.agents})
        counter.value += FRAMESKIP * players
    assert env.starts == 1
    env.close()


def one_core(scenario: str, players: int, seconds: float, counter: Counter) -> None:
    """One match whose engines share a core."""
    match(scenario, players, seconds, counter, frozenset({min(os.sched_getaffinity(0))}))


def spinning(scenario: str, players: int, seconds: float, counter: Counter) -> None:
    """One match without the library."""
    engine.yield_library = lambda: None  # type: ignore[assignment]
    match(scenario, players, seconds, counter)


def one_core_spinning(scenario: str, players: int, seconds: float, counter: Counter) -> None:
    """One match without the library, whose engines share a core."""
    engine.yield_library = lambda: None  # type: ignore[assignment]
    one_core(scenario, players, seconds, counter)


def example_player(
    scenario: str, index: int, players: int, port: int, skip: int, mode: str, seconds: float, counter: Counter, ready: Any
) -> None:
    """One player of the example, whose engine has no library of ours."""
    engine.yield_library = lambda: None  # type: ignore[assignment]
    game = configured(scenario, {"episode_timeout": LONG}, gray=False)
    game.set_mode(getattr(vizdoom.Mode, mode))
    role = f"-host {players} {DEATHMATCH_ARGS}" if index == 0 else "-join 127.0.0.1"
    game.set_game_args(f"{role} -port {port} +name player_{index}")
    start(game)
    buttons = len(game.get_available_buttons())
    rng = np.random.default_rng(index)
    ready.wait(PATIENCE)
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        before = game.get_episode_time()
        game.get_state()
        game.make_action(np.eye(buttons)[rng.integers(buttons)].tolist(), skip)
        counter.value += game.get_episode_time() - before


def run(jobs: list[tuple[Callable[..., None], tuple[Any, ...]]], seconds: float) -> float:
    """Frames per second of processes that play together. A process that does not end is killed, with its engine."""
    context = multiprocessing.get_context("spawn")
    counters = [context.Value("q", 0, lock=False) for _ in jobs]
    ready = context.Barrier(len(jobs))
    processes = []
    for (function, args), counter in zip(jobs, counters, strict=True):
        extra = (ready,) if function is example_player else ()
        processes.append(context.Process(target=function, args=(*args, seconds, counter, *extra), daemon=True))
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds + PATIENCE
    for process in processes:
        process.join(max(0.1, deadline - time.monotonic()))
    for process in processes:
        process.kill()
        process.join()
    frames = sum(counter.value for counter in counters)
    if not frames:
        raise SystemExit("no frame was played; the error is above")
    return frames / seconds


def contenders(scenario: str, players: int, seconds: float) -> dict[str, Callable[[], float]]:
    """What is measured, by name."""

    def example(skip: int, mode: str) -> float:
        port = free_port()
        return run([(example_player, (scenario, index, players, port, skip, mode)) for index in range(players)], seconds)

    return {
        "match": lambda: run([(match, (scenario, players))], seconds),
        "2 matches": lambda: run([(match, (scenario, players))] * 2, seconds),
        "spinning": lambda: run([(spinning, (scenario, players))], seconds),
        "2, spinning": lambda: run([(spinning, (scenario, players))] * 2, seconds),
        "one core": lambda: run([(one_core, (scenario, players))], seconds),
        "one, spinning": lambda: run([(one_core_spinning, (scenario, players))], seconds),
        "alone": lambda: run([(alone, (scenario, 1))] * players, seconds),
        "alone, 1 process": lambda: run([(alone, (scenario, players))], seconds),
        "example": lambda: example(1, "PLAYER"),
        "example, skip 4": lambda: example(FRAMESKIP, "PLAYER"),
        "asynchronous": lambda: example(1, "ASYNC_PLAYER"),
    }


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of these processes so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / ticks


def breakdown(scenario: str, players: int, steps: int) -> dict[str, float]:
    """Microseconds of one step of a match, by what they go to."""
    env = VizdoomEnv(SINGLE[scenario], EnvConfig(kwargs={"bots": 0, "shaping": None, "episode_timeout": LONG}))
    env.reset(seed=0)
    frame, picture, observation = [], [], []
    for _ in range(steps):
        if env.game.is_episode_finished():
            env.reset()
        env.game.set_action(env.player.presses(env.action_space.sample()))
        t0 = time.perf_counter()
        env.game.advance_action(1, False)
        t1 = time.perf_counter()
        env.game.advance_action(1, True)
        t2 = time.perf_counter()
        env.player.observe()
        t3 = time.perf_counter()
        frame.append(t1 - t0)
        picture.append((t2 - t1) - (t1 - t0))
        observation.append(t3 - t2)
    env.close()
    barrier = threading.Barrier(players)

    def meet() -> None:
        for _ in range(steps):
            barrier.wait()

    threads = [threading.Thread(target=meet) for _ in range(players)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rendezvous = (time.perf_counter() - begin) / steps

    game = Match(scenario, EnvConfig(kwargs={"players": players, "shaping": None, "episode_timeout": LONG}))
    game.reset(seed=0)
    space = game.action_space("player_0")
    engines, own, begin = cpu_seconds(game.engine_pids), time.process_time(), time.perf_counter()
    for _ in range(steps):
        game.step({agent: space.sample() for agent in game.agents})
    step = (time.perf_counter() - begin) / steps
    own = (time.process_time() - own) / steps
    engines = (cpu_seconds(game.engine_pids) - engines) / steps
    game.close()
    cores = min(players, os.cpu_count() or 1)
    waves = players / cores  # engines that have to share a core take turns
    parts = {
        f"{FRAMESKIP} frames": FRAMESKIP * statistics.mean(frame) * waves,
        "picture": statistics.mean(picture) * waves,
        "observation": statistics.mean(observation) * waves,
        "rendezvous of threads": FRAMESKIP * rendezvous,
    }
    rest = {"exchange between engines": step - sum(parts.values())}
    times = {"step": step, **parts, **rest, "processor time, engines": engines, "processor time, python": own}
    return {name: round(1e6 * value, 1) for name, value in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenario", default="multi_cig", choices=sorted(SINGLE))
    parser.add_argument("--players", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000, help="steps of the table of where time goes")
    parser.add_argument("--only", nargs="*", help="names of contenders")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    asked = parser.parse_args()
    all_of_them = contenders(asked.scenario, asked.players, asked.seconds)
    chosen = {name: play for name, play in all_of_them.items() if not asked.only or name in asked.only}
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    loads = []
    for number in range(asked.rounds):
        names = list(chosen)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            loads.append(round(os.getloadavg()[0], 1))
            rates[name].append(round(chosen[name](), 1))
            print(f"round {number + 1}: {name}: {rates[name][-1]:.0f} frames/s (load before {loads[-1]})", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"\n{asked.scenario}, {asked.players} players, frames of players per second (median of {asked.rounds})")
    for name, rate in medians.items():
        print(
            f"{name:18} {rate:8.0f}  {rate / medians['match']:6.2f} x the match"
            if "match" in medians
            else f"{name:18} {rate:8.0f}"
        )
    where = breakdown(asked.scenario, asked.players, asked.steps)
    print("\nmicroseconds of a step of the match")
    for name, value in where.items():
        print(f"{name:26} {value:8.0f}  {100 * value / where['step']:5.1f} %")
    data = {
        "machine": summary.machine(),
        "scenario": asked.scenario,
        "players": asked.players,
        "seconds": asked.seconds,
        "frames_per_second": rates,
        "median": medians,
        "step_microseconds": where,
        "load_before_each": loads,
    }
    summary.write(asked.out / f"vizdoom_{asked.scenario}_{asked.players}.json", data)


if __name__ == "__main__":
    main()
