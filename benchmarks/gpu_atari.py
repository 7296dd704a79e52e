"""Measurements of the Atari kernels on a GPU: the parts `atari *` of gpu_suite.py, and what may be done before.

    python benchmarks/gpu_atari.py --compile sm_90      compile all kernels that the suite uses into the cache; needs no GPU

A kernel with the blocks of one game takes NVRTC minutes, so the suite runs the interpreter over all games, and blocks for the
paper's four games, River Raid and Boxing. What it measures comes in the order of importance and stops when its time is over.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import headrace_atari._native.atari as native
from headrace.runs.metrics import read_jsonl
from headrace_atari import AtariVector, KernelOptions, games
from headrace_atari.kernels import assemble, nvrtc_compile
from headrace_atari.roms import load_game

sys.path.insert(0, str(Path(__file__).parent / "learning"))
from time_to_pong import curve_of, reached

Row = dict[str, Any]
PAPER = ["pong", "asteroids", "assault", "ms_pacman"]
"""The games of the figures of CuLE (Dalton et al. 2020)."""
GAMES = [*PAPER, "riverraid", "boxing"]
ATARI57 = """
    alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout
    centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite gopher
    gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix
    pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders star_gunner
    surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
""".split()  # noqa: SIM905
COUNTS = (128, 1024, 4096, 16384, 65536)
PONG = {
    "sampling.envs_per_worker": 256, "sampling.rollout": 16, "learning.batch_size": 4096, "learning.num_minibatches": 32,
}  # fmt: skip
"""What `time_to_pong` changes of the defaults for Pong: eight times the consoles, each for half as many steps, since 256 take
a GPU hardly longer than 32; minibatches of as many samples."""


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_seconds(step: Callable[[], Any], seconds: float, device: torch.device) -> float:
    """Seconds of a step, after a warm-up; the device has finished what is counted."""
    for _ in range(3):
        step()
    synchronize(device)
    began, steps = perf_counter(), 0
    while steps < 3 or perf_counter() - began < seconds:
        step()
        steps += 1
        if steps % 16 == 0:
            synchronize(device)
    synchronize(device)
    return (perf_counter() - began) / steps


def exactness(seconds: float, names: list[str] | None = None, each: int = 16, least: int = 40) -> Iterator[Row]:
    """All games in one batch, `each` consoles of each, against the CPU's core: observations, rewards, ends and counters of every
    step, for as long as `seconds` allows but for `least` steps, with both kinds of autoreset."""
    names = names or list(games())
    ends = perf_counter() + seconds
    for number, mode in enumerate(("NextStep", "SameStep")):
        options: dict[str, Any] = {"repeat_action_probability": 0.25, "autoreset_mode": mode, "max_num_frames_per_episode": 120}
        count = each * len(names)
        ours = AtariVector(names, count, device="cuda", kernels=KernelOptions("interpreter", 8), **options)
        theirs = AtariVector(names, count, **options)
        first_difference: dict[str, int] = {}

        def compare(step: int, mine: Any, other: np.ndarray, where: np.ndarray, found: dict[str, int]) -> None:
            differs = (mine.cpu().numpy() != other).reshape(len(other), -1).any(1) & where
            for console in np.flatnonzero(differs):
                found.setdefault(names[console % len(names)], step)

        everywhere = np.ones(count, bool)
        compare(0, ours.reset(seed=number)[0], theirs.reset(seed=number)[0], everywhere, first_difference)
        rng = np.random.default_rng(number)
        limit = perf_counter() + (ends - perf_counter()) / (2 - number)
        step = 0
        while step < least or perf_counter() < limit:
            step += 1
            actions = rng.integers(len(theirs.action_set), size=count)
            mine, other = ours.step(actions), theirs.step(actions)
            for a, b in zip(mine[:4], other[:4], strict=True):
                compare(step, a, b, everywhere, first_difference)
            for key in ("lives", "frame_number", "episode_frame_number"):
                compare(step, mine[4][key], other[4][key], everywhere, first_difference)
            if "final_obs" in other[4]:
                compare(step, mine[4]["final_obs"], other[4]["final_obs"], other[2] | other[3], first_difference)
        ours.close()
        theirs.close()
        differing = ", ".join(f"{game} at step {at}" for game, at in first_difference.items())
        yield {
            "autoreset": mode, "games": len(names), "consoles": count, "steps of each": step,
            "games that differ": differing or "none",
        }  # fmt: skip


def network(outputs: int, device: torch.device) -> torch.nn.Module:
    """The network of Mnih et al. 2015, bf16."""
    body = torch.nn.Sequential(
        *(torch.nn.Conv2d(4, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU()),
        *(torch.nn.Conv2d(64, 64, 3, 1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 512), torch.nn.ReLU()),
        torch.nn.Linear(512, outputs),
    )
    return body.to(device, torch.bfloat16).to(memory_format=torch.channels_last)


def throughput(
    name: str | list[str], count: int, seconds: float, emulator: str = "blocks", decorrelated: bool = True, learns: bool = True
) -> Row:
    """Frames/s: emulation alone, with observations, with inference and, if it `learns`, with training; memory per console."""
    options = KernelOptions(emulator)  # type: ignore[arg-type]
    before, began = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0, perf_counter()
    env: Any = AtariVector(name, count, device="cuda", kernels=options, sticky_stream="counter")
    device = env.tensor_device
    made = perf_counter() - began
    env.reset(seed=np.arange(count) if decorrelated else np.zeros(count, np.int64))
    size = len(env.action_set)
    if decorrelated:
        for _ in range(30):
            env.step(torch.randint(size, (count,), device=device))
    synchronize(device)
    memory = ((torch.cuda.memory_allocated() if torch.cuda.is_available() else 0) - before) / count
    same = torch.zeros(count, dtype=torch.int64, device=device)

    def actions() -> torch.Tensor:
        return torch.randint(size, (count,), device=device) if decorrelated else same

    model = network(size + 1, device)  # scores of the actions, and a value
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)

    def evaluate(observations: torch.Tensor) -> torch.Tensor:
        images = observations.to(torch.bfloat16).to(memory_format=torch.channels_last) / 255
        return model(images).float()

    def act(observations: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            scores = torch.cat([evaluate(part)[:, :size] for part in observations.split(8192)])
        return torch.distributions.Categorical(logits=scores, validate_args=False).sample()

    observations = env.step(actions())[0]

    def play() -> None:
        nonlocal observations
        observations = env.step(act(observations))[0]

    def train() -> None:
        """Advantage actor-critic over five steps (Mnih et al. 2016), as in the paper's figures."""
        nonlocal observations
        steps = []
        for _ in range(5):
            chosen = act(observations)
            following, rewards, terminated, truncated, _ = env.step(chosen)
            steps.append((observations, chosen, rewards.float(), ~(terminated | truncated)))
            observations = following
        with torch.inference_mode():
            target = torch.cat([evaluate(part)[:, size] for part in observations.split(8192)])
        optimizer.zero_grad(set_to_none=True)
        for seen, chosen, rewards, goes_on in reversed(steps):
            target = rewards + 0.99 * goes_on * target
            for part, action, goal in zip(seen.split(8192), chosen.split(8192), target.clone().split(8192), strict=True):
                out = evaluate(part)
                log_p = out[:, :size].log_softmax(1)
                advantage = goal - out[:, size]
                policy = -(log_p.gather(1, action[:, None])[:, 0] * advantage.detach()).sum()
                entropy = -(log_p.exp() * log_p).sum()
                ((policy + 0.5 * advantage.square().sum() - 0.01 * entropy) / (5 * count)).backward()
        optimizer.step()

    full = step_seconds(lambda: env.step(actions()), seconds, device)
    with_inference = step_seconds(play, seconds, device)
    training = step_seconds(train, seconds, device) / 5 if learns else None
    env._native._observe = lambda *_: None
    alone = step_seconds(lambda: env.step(actions()), seconds, device)
    del env._native._observe  # the class has it; a bound method there would be a cycle, and keep the consoles
    env.close()
    return {
        "game": name if isinstance(name, str) else f"{len(name)} games", "consoles": count, "programs": emulator,
        "consoles differ": decorrelated, "emulation": 4 * count / alone, "with observations": 4 * count / full,
        "with inference": 4 * count / with_inference, "with training": 4 * count / training if training else "",
        "KB/console": memory / 1024, "made in, s": made,
    }  # fmt: skip


def cases() -> list[dict[str, Any]]:
    """Arguments of `throughput`, the most important first."""

    def correlated(name: str, count: int) -> dict[str, Any]:
        return {"name": name, "count": count, "decorrelated": False, "learns": False}

    def interpreted(name: str | list[str], count: int) -> dict[str, Any]:
        return {"name": name, "count": count, "emulator": "interpreter"}

    most = COUNTS[-1]
    every = [
        *({"name": name, "count": most} for name in GAMES), {"name": "pong", "count": 4096}, interpreted(ATARI57, 57 * 288),
        interpreted("pong", most), correlated("pong", most), {"name": "riverraid", "count": 4096},
        *({"name": "pong", "count": count} for count in COUNTS),
        *(correlated(name, count) for count in (most, 4096) for name in GAMES),
        *({"name": name, "count": count} for name in GAMES for count in COUNTS),
        *(interpreted("pong", count) for count in COUNTS), *(correlated(name, count) for name in GAMES for count in COUNTS),
    ]  # fmt: skip
    return list({repr(case): case for case in every}.values())


def throughputs(seconds: float) -> Iterator[Row]:
    """`cases` until the time is over, and how many were not measured. After the games at the most consoles, their median and the
    least."""
    ends, emulated, left = perf_counter() + seconds, list[float](), 0
    for case in cases():
        if perf_counter() > ends:
            left += 1
            continue
        row = throughput(**case, seconds=0.2)
        yield row
        emulated.append(row["emulation"])
        if len(emulated) == len(GAMES):
            empty = dict.fromkeys(row, "")
            yield {**empty, "game": "median", "consoles": row["consoles"], "emulation": statistics.median(emulated)}
            yield {**empty, "game": "least", "consoles": row["consoles"], "emulation": min(emulated)}
    if left:
        yield {"game": f"{left} cases not measured: the time was over"}


def time_to_pong(seconds: float, device: str = "cuda", goal: float = 18.0) -> Iterator[Row]:
    """`headrace train` with `PONG` on the device until the mean return of 100 training games is `goal`, or `seconds` are over.
    Times count from the start of the process."""
    with tempfile.TemporaryDirectory() as folder:
        flags = {"sampling.placement": "device", "learning.device": device, **PONG, "run.folder": folder, "run.goal": goal}
        flags |= {"run.max_minutes": seconds / 60, "run.log_interval": 0.5}
        command = [sys.executable, "-m", "headrace.cli", "train", "--env", "atari/pong", "--run.no-dashboard", "--run.no-video"]
        for name, value in flags.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"headrace train ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        rows = read_jsonl(Path(folder) / "metrics.jsonl")
    curve = curve_of(rows, began)
    at = reached(curve, goal)
    rates = [row["charts/SPS_interval"] for row in rows if "charts/SPS_interval" in row]
    yield {
        "game": "pong", "goal": goal, "seconds": at[0] * 60 if at else "not reached", "million steps": at[1] / 1e6 if at else "",
        "best mean return": max((mean for _, _, mean in curve), default=float("nan")),
        "steps/s": statistics.median(rates) if rates else float("nan"),
        "settings": ", ".join(f"{name} {value}" for name, value in PONG.items()),
    }  # fmt: skip


def kernel_profile(seconds: float) -> Iterator[Row]:
    """Milliseconds and calls of the kernels of a step with inference, the longest first, by PyTorch's profiler."""
    for name in ("pong", "riverraid"):
        env: Any = AtariVector(name, 16384, device="cuda", sticky_stream="counter")
        env.reset(seed=0)
        device = env.tensor_device
        model = network(len(env.action_set), device)
        observations = env.step(torch.zeros(16384, dtype=torch.int64, device=device))[0]

        def step(env: Any = env, model: torch.nn.Module = model, observations: torch.Tensor = observations) -> None:
            with torch.inference_mode():
                scores = model(observations.to(torch.bfloat16).to(memory_format=torch.channels_last) / 255)
            env.step(scores.argmax(1))

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step_seconds(step, seconds / 4, device)
        events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
        for event in events[:8]:
            yield {"game": name, "kernel": event.key[:60], "ms": event.device_time / 1e3, "calls": event.count}
        if not events:
            yield {"game": name, "kernel": "the profiler saw no kernel", "ms": 0.0, "calls": 0}
        env.close()


def compile_all(arch: str, names: list[str], workers: int | None = None) -> Iterator[Row]:
    """Compiles the interpreter and the blocks of `names` into the cache, several at a time. Needs no GPU."""
    began = perf_counter()
    # Processes that begin anew: a copy of one that has used CUDA could not.
    with ProcessPoolExecutor(workers or min(8, os.cpu_count() or 1), get_context("spawn")) as pool:
        jobs = {pool.submit(_compile, arch, name): name for name in ["", *names]}
        for job in as_completed(jobs):
            yield {"programs": f"blocks of {jobs[job]}" if jobs[job] else "interpreter", "s": job.result()}
    yield {"programs": "all, side by side", "s": perf_counter() - began}


def _compile(arch: str, name: str) -> float:
    began = perf_counter()
    source = assemble(native.block_source(load_game(name)) if name else None)
    nvrtc_compile(source, arch)
    return perf_counter() - began


def possible() -> bool:
    """Whether the packages are there that Atari on a GPU needs."""
    return all(importlib.util.find_spec(name) for name in ("cuda", "ale_py")) and bool(importlib.util.find_spec("cuda.core"))


COMPILATION = "atari compilation"
SHARES = {"atari exactness": 0.2, "atari throughput": 0.24, "atari pong to 18": 0.52, "atari profile": 0.04}
"""Of the seconds that the parts after the compilation have together."""


def parts(seconds: float) -> dict[str, Callable[[], Iterable[Row]]]:
    """The parts of gpu_suite.py, by name; after the compilation they take about `seconds` together."""
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else ""
    functions = (exactness, throughputs, time_to_pong, kernel_profile)
    each = {name: partial(function, seconds * SHARES[name]) for name, function in zip(SHARES, functions, strict=True)}
    return {COMPILATION: partial(compile_all, arch, GAMES), **each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", metavar="ARCH", required=True, help="for example sm_90")
    parser.add_argument("--games", nargs="*", default=GAMES)
    args = parser.parse_args()
    for row in compile_all(args.compile, args.games):
        print(f"{row['programs']}: {row['s']:.0f} s")


if __name__ == "__main__":
    main()
