"""Measurements of the Atari kernels on a GPU: the parts `atari *` of gpu_suite.py, and what may be done before.

    python benchmarks/gpu_atari.py --compile sm_90      compile all kernels that the suite uses into the cache; needs no GPU

A kernel with the blocks of one game takes NVRTC a while, so the suite runs the interpreter over all games, and blocks for the
paper's four games, River Raid and Boxing.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
import torch

import headrace._native.atari as native
from headrace.envs.atari_kernels import KernelOptions, assemble, nvrtc_compile
from headrace.envs.atari_vector import AtariVector, games, load_game

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


def consoles_per_warp(count: int) -> int:
    """Few consoles are spread over more warps. To be tuned where a GPU is at hand."""
    return max(1, min(32, count // 512))


def step_seconds(step: Callable[[], Any], seconds: float) -> float:
    """Seconds of a step, after a warm-up; the device has finished what is counted."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began, steps = perf_counter(), 0
    while steps < 3 or perf_counter() - began < seconds:
        step()
        steps += 1
        if steps % 16 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (perf_counter() - began) / steps


def exactness(seconds: float, names: list[str] | None = None, device: str = "cuda") -> list[Row]:
    """Every game against the CPU's core, observations and counters, for as long as `seconds` allows."""
    names = names or list(games())
    began, differing, steps = perf_counter(), [], 0
    for number, name in enumerate(names):
        options: dict[str, Any] = {"repeat_action_probability": 0.25, "autoreset_mode": ("NextStep", "SameStep")[number % 2]}
        options["max_num_frames_per_episode"] = 120
        ours = AtariVector(name, 16, device=device, kernels=KernelOptions("interpreter"), **options)
        theirs = AtariVector(name, 16, **options)
        rng = np.random.default_rng(number)
        same = np.array_equal(ours.reset(seed=number)[0].cpu().numpy(), theirs.reset(seed=number)[0])
        limit = perf_counter() + (began + seconds - perf_counter()) / (len(names) - number)
        while same and perf_counter() < limit:
            actions = rng.integers(len(theirs.action_set), size=16)
            mine, other = ours.step(actions), theirs.step(actions)
            pairs = [
                *zip(mine[:4], other[:4], strict=True),
                *((mine[4][key], other[4][key]) for key in ("lives", "frame_number")),
            ]
            same = all(np.array_equal(a.cpu().numpy(), b) for a, b in pairs)
            steps += 16
        if not same:
            differing.append(name)
        ours.close()
        theirs.close()
    return [{"games": len(names), "steps": steps, "games that differ": ", ".join(differing) or "none"}]


def network(outputs: int) -> torch.nn.Module:
    """The network of Mnih et al. 2015, bf16."""
    body = torch.nn.Sequential(
        *(torch.nn.Conv2d(4, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU()),
        *(torch.nn.Conv2d(64, 64, 3, 1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 512), torch.nn.ReLU()),
        torch.nn.Linear(512, outputs),
    )
    return body.to("cuda", torch.bfloat16).to(memory_format=torch.channels_last)


def throughput(
    name: str | list[str], count: int, seconds: float, emulator: str, decorrelated: bool = True, device: str = "cuda"
) -> Row:
    """Frames/s: emulation alone, with observations, with inference, with training; bytes of GPU memory per console."""
    free = torch.cuda.mem_get_info()[0]
    options = KernelOptions(emulator, consoles_per_warp(count))  # type: ignore[arg-type]
    began = perf_counter()
    env = AtariVector(name, count, device=device, kernels=options, sticky_stream="counter")
    made = perf_counter() - began
    env.reset(seed=np.arange(count) if decorrelated else np.zeros(count, np.int64))
    size = len(env.action_set)
    if decorrelated:
        for _ in range(30):
            env.step(torch.randint(size, (count,), device=device))
    torch.cuda.synchronize()
    memory = (free - torch.cuda.mem_get_info()[0]) / count
    same = torch.zeros(count, dtype=torch.int64, device=device)

    def actions() -> torch.Tensor:
        return torch.randint(size, (count,), device=device) if decorrelated else same

    model = network(size + 1)  # scores of the actions, and a value
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

    training = step_seconds(train, seconds) / 5
    full = step_seconds(lambda: env.step(actions()), seconds)
    with_inference = step_seconds(play, seconds)
    observe = env._native._observe
    env._native._observe = lambda *_: None
    alone = step_seconds(lambda: env.step(actions()), seconds)
    env._native._observe = observe
    env.close()
    return {
        "game": name if isinstance(name, str) else f"{len(name)} games", "consoles": count, "programs": emulator,
        "consoles differ": decorrelated, "emulation": 4 * count / alone, "with observations": 4 * count / full,
        "with inference": 4 * count / with_inference, "with training": 4 * count / training, "KB/console": memory / 1024,
        "made in, s": made,
    }  # fmt: skip


def throughputs(seconds: float) -> list[Row]:
    """All games of the suite at the most consoles, two at every number, correlated too, and the mixed batch."""
    each = seconds / 80
    rows = [throughput(name, 65536, each, "blocks") for name in GAMES]
    rows += [throughput("pong", count, each, emulator) for count in COUNTS for emulator in ("blocks", "interpreter")]
    rows += [throughput("riverraid", count, each, "blocks") for count in COUNTS[:-1]]
    rows += [throughput("pong", 4096, each, "blocks", decorrelated=False)]
    rows += [throughput(ATARI57, 57 * 288, each, "interpreter")]
    emulated = [row["emulation"] for row in rows[: len(GAMES)]]
    rows.append({**dict.fromkeys(rows[0], ""), "game": "median", "emulation": statistics.median(emulated)})
    rows.append({**dict.fromkeys(rows[0], ""), "game": "least", "emulation": min(emulated)})
    return rows


def kernel_profile(seconds: float) -> list[Row]:
    """Milliseconds of the kernels of a step, by the events of PyTorch's profiler."""
    rows = []
    for name in ("pong", "riverraid"):
        env = AtariVector(name, 16384, device="cuda", kernels=KernelOptions(consoles_per_warp=32), sticky_stream="counter")
        env.reset(seed=0)
        actions = torch.zeros(16384, dtype=torch.int64, device="cuda")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step_seconds(lambda env=env, actions=actions: env.step(actions), seconds / 4)  # type: ignore[misc]
        for event in profile.key_averages():
            if event.key in ("step", "observe"):
                rows.append({"game": name, "kernel": event.key, "ms": event.device_time / 1e3, "calls": event.count})
        env.close()
    return rows or [{"game": "none", "kernel": "the profiler saw no kernel", "ms": 0.0, "calls": 0}]


def compile_all(arch: str, names: list[str], workers: int | None = None) -> list[Row]:
    """Compiles the interpreter and the blocks of `names` into the cache, several at a time. Needs no GPU."""
    began = perf_counter()
    with ProcessPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        jobs = {name: pool.submit(_compile, arch, name) for name in ["", *names]}
        rows = [{"programs": f"blocks of {name}" if name else "interpreter", "s": job.result()} for name, job in jobs.items()]
    return [*rows, {"programs": "all, side by side", "s": perf_counter() - began}]


def _compile(arch: str, name: str) -> float:
    began = perf_counter()
    source = assemble(native.block_source(load_game(name)) if name else None)
    nvrtc_compile(source, arch)
    return perf_counter() - began


def parts(seconds: float) -> dict[str, Callable[[], list[Row]]]:
    """The parts of gpu_suite.py, by name, each in about `seconds`."""
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else ""
    return {
        "atari compilation": lambda: compile_all(arch, GAMES),
        "atari exactness": lambda: exactness(seconds),
        "atari throughput": lambda: throughputs(seconds),
        "atari profile": lambda: kernel_profile(seconds / 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", metavar="ARCH", required=True, help="for example sm_90")
    parser.add_argument("--games", nargs="*", default=GAMES)
    args = parser.parse_args()
    for row in compile_all(args.compile, args.games):
        print(f"{row['programs']}: {row['s']:.0f} s")


if __name__ == "__main__":
    main()
