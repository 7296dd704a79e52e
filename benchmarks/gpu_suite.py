"""Every measurement of a GPU in one go: transfers, acting, learning, whole training runs. One table, one JSON file.

    python benchmarks/gpu_suite.py             at most eight minutes (`--minutes`)
    python benchmarks/gpu_suite.py --quick     about seven
    python benchmarks/gpu_suite.py --device cpu --tiny     does every part run at all?

    transfers   GB/s between the host and the device, page-locked and pageable memory
    acting      the policy worker's whole work for one batch (gather, copy, network, sampling, copy back, scatter), with CUDA
                graphs and without: milliseconds and observations/s
    learning    samples/s of updates as in training (APPO, V-trace; batches arrive from another process, weights are published),
                with graphs and without, against a bare loop of forward, loss, backward and Adam on one batch that stays
    training    steps/s that the learner has trained on, whole runs: as configured by default, VizDoom, CartPole in PyTorch beside
                its policy, with two policy workers, without graphs, with every observation crossing the bus twice; shares of the
                parts' time
    atari *     consoles on the GPU (gpu_atari.py): compilation, exactness of all games against the CPU, frames/s of emulation
                alone, with observations, inference and training over 128 to 65,536 consoles, a mixed batch, memory, minutes
                to 18 in Pong, kernels

Every part is a process of its own with a time limit: one that fails or takes longer is reported with the rows that it had until
then, the others go on, and what comes last is left out when the minutes are over. The kernels are compiled (minutes of some
cores, once: they are kept) while transfers, acting and learning are measured; `gpu_atari.py --compile sm_90` does it before,
without a GPU. Variants of a part are measured in turns and medians taken. `time/learner/train` is the time in which the host
gives work to the device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import gpu_atari
import numpy as np
import summary
import torch
from learner_overhead import bare_loop, context, fill, finish_all
from training_contest import as_others

from headrace.accelerator.cpu_allocator import keep_freed_memory
from headrace.accelerator.graphs import set_up
from headrace.accelerator.weights import Publisher
from headrace.config import Config
from headrace.envs.make import describe
from headrace.experience.on_policy import OnPolicyExperience
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.sampling.actor import Actor
from headrace.sampling.run_memory import RunMemory, make_run_memory

Row = dict[str, Any]
ROW = "row: "
"""How the lines begin by which a part gives its rows."""
ACTING_GROUP = 16
"""Environments of a group where acting is measured."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    seconds: float
    """Of each variant in a round."""
    rounds: int
    megabytes: tuple[int, ...]
    acting: tuple[int, ...]
    """Environments in a batch of actions; multiples of `ACTING_GROUP`."""
    batch: int
    """Samples of an update."""
    warm_up: float
    """Seconds before a training run is measured..."""
    training: float
    """...and seconds that it is."""
    limit: float
    """Seconds a part may take..."""
    atari: float
    """...and those that the parts of gpu_atari.py, their starts not counted, take together behind the compilation..."""
    compilation: float
    """...which may take so many."""


FULL = Sizes(0.3, 3, (1, 16, 64, 256), (16, 64, 256, 1024, 2048), 4096, 8, 12, 110, 240, 220)
QUICK = Sizes(0.2, 3, (1, 64), (64, 1024), 4096, 6, 8, 60, 150, 220)
TINY = Sizes(0.01, 1, (1,), (16, 48), 256, 1, 2, 240, 20, 240)
START = 40
"""Seconds that the start of a part of gpu_atari.py may take, and the end of its last measurement."""


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def medians(variants: dict[str, Callable[[], object]], sizes: Sizes, device: str, warm_up: int = 6) -> dict[str, float]:
    """Median seconds of one call of each, in turns; a round counts what the device has finished in it."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        for _ in range(warm_up):
            call()
    for _ in range(sizes.rounds):
        for name, call in variants.items():
            synchronize(device)
            began, calls = perf_counter(), 0
            while perf_counter() - began < sizes.seconds or calls < 2:
                call()
                calls += 1
            synchronize(device)
            seconds[name].append((perf_counter() - began) / calls)
    return {name: statistics.median(values) for name, values in seconds.items()}


# -- the parts ------------------------------------------------------------------------------------------------------------


def transfers(device: str, sizes: Sizes) -> list[Row]:
    """GB/s by size and kind of memory."""
    rows = []
    for megabytes in sizes.megabytes:
        there = torch.zeros(megabytes << 20, dtype=torch.uint8, device=device)
        pageable = torch.zeros_like(there, device="cpu")
        pinned = pageable.pin_memory() if device != "cpu" else pageable.clone()

        def copies(to: torch.Tensor, of: torch.Tensor) -> Callable[[], object]:
            return lambda: to.copy_(of, non_blocking=True)

        variants = {
            "to device, page-locked": copies(there, pinned), "to device, pageable": copies(there, pageable),
            "to host, page-locked": copies(pinned, there), "to host, pageable": copies(pageable, there),
        }  # fmt: skip
        for name, seconds in medians(variants, sizes, device).items():
            rows.append({"what": name, "size": f"{megabytes} MiB", "GB/s": (megabytes << 20) / seconds / 1e9})
    return rows


def prepared(config: Config) -> tuple[Any, Any, RunMemory]:
    """Algorithm, model and the memory of a run, full of plausible experience."""
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    memory = make_run_memory([config], spec, [(algorithm, model)])
    fill(memory.policies[0].trajectories)
    return algorithm, model, memory


def acting(device: str, sizes: Sizes) -> list[Row]:
    """One batch of actions, by batch size, precision and graphs."""
    rows = []
    largest = max(sizes.acting)
    for precision in ("float32", "bf16"):
        settings = {
            "learning.device": device, "learning.precision": precision, "sampling.num_workers": largest // ACTING_GROUP,
            "sampling.envs_per_worker": ACTING_GROUP, "sampling.num_groups": 1, "sampling.rollout": 2,
            "learning.batch_size": 2 * ACTING_GROUP, "learning.num_minibatches": 1, "sampling.one_transfer": "off",
        }  # fmt: skip
        config = make_config("atari/breakout", **settings, **as_others("atari/breakout"))
        algorithm, model, memory = prepared(config)
        L = memory.requests.L
        memory.requests.cursor[:] = np.stack([np.arange(L), np.zeros(L)], 1)
        actors = {"eager": Actor(model, algorithm.act, memory, 0, device, graphs=False)}
        if device != "cpu":
            _, another = make_agent(config, describe(config.env, config.envs))
            actors["graphs"] = Actor(another, algorithm.act, memory, 0, device, graphs=True)
        for n in sizes.acting:
            lanes = np.arange(n // ACTING_GROUP)
            variants = {name: (lambda actor=actor, lanes=lanes: actor.act(lanes)) for name, actor in actors.items()}
            for name, seconds in medians(variants, sizes, device).items():
                what = f"{n} observations, {precision}, {name}"
                rows.append({"what": what, "ms": seconds * 1e3, "observations/s": n / seconds})
    return rows


def learning(device: str, sizes: Sizes) -> list[Row]:
    """Updates as in training and bare ones, by precision and graphs."""
    rows = []
    for precision in ("float32", "bf16"):
        variants: dict[str, Callable[[], object]] = {}
        stops = []
        for graphs in (False, True) if device != "cpu" else (False,):
            settings = {
                "learning.device": device, "learning.precision": precision, "learning.graphs": graphs,
                "learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.returns": "vtrace",
                "learning.max_policy_lag": 10**6, "learning.batch_size": sizes.batch, "sampling.one_transfer": "off",
                "sampling.rollout": 16,
            }  # fmt: skip
            config = make_config("atari/breakout", **settings, **as_others("atari/breakout"))
            algorithm, model, memory = prepared(config)
            store, weights = memory.policies[0].trajectories, memory.policies[0].weights
            learner = Learner(model, algorithm, config)
            publisher = Publisher(learner.model, weights, device)
            sampler = context.Process(target=finish_all, args=(store, memory.control), daemon=True)
            sampler.start()
            experience = OnPolicyExperience(store, config.slots_per_batch, device)
            stops.append((memory, sampler))

            def engine(experience: Any = experience, learner: Learner = learner, publisher: Publisher = publisher) -> None:
                learner.learn(experience.next())
                experience.release()
                publisher.publish(learner.progress.updates)

            variants["graphs" if graphs else "eager"] = engine
            if "bare loop" not in variants:
                first = experience.next()
                assert first is not None
                variants["bare loop"] = bare_loop(config, first.data)
                experience.release()
        seconds = medians(variants, sizes, device)
        for name, each in seconds.items():
            row = {"what": f"{sizes.batch} samples, {precision}, {name}", "ms": each * 1e3, "samples/s": sizes.batch / each}
            rows.append({**row, "of bare loop": seconds["bare loop"] / each})
        for memory, sampler in stops:
            memory.stop()
            sampler.join(10)
            sampler.kill()
    return rows


def training(device: str, sizes: Sizes, env: str, **settings: Any) -> list[Row]:
    """One whole run: steps/s of learning after its start."""
    workers = max(1, min(16, len(os.sched_getaffinity(0)) - 2)) if sizes is not TINY else 1
    # An Atari console costs no process, a Doom does.
    envs, rollout = (4, 8) if sizes is TINY else (64 if env.startswith("atari/") else 16, 32)
    workers, envs = settings.get("sampling.num-workers", workers), settings.get("sampling.envs-per-worker", envs)
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "run.folder": f"{folder}/run", "run.log-interval": 0.5, "learning.total-steps": 10**9, "learning.device": device,
            "run.max-minutes": (sizes.warm_up + sizes.training) / 60, "sampling.num-workers": workers,
            "sampling.envs-per-worker": envs, "sampling.rollout": rollout, "learning.num-epochs": 1,
            "learning.batch-size": max(rollout * envs // 2, sizes.batch) if sizes is not TINY else rollout * envs // 2,
            "learning.num-minibatches": 1, "sampling.placement": "served",
            **{name.replace("_", "-"): value for name, value in as_others(env).items()}, **settings,
        }  # fmt: skip
        command = [sys.executable, "-m", "headrace.cli", "train", "--env", env, "--run.no-dashboard", "--run.no-video"]
        for name, value in flags.items():
            command += [f"--{name}"] if value is None else [f"--{name}", str(value)]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"headrace train ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        metrics = [row for row in read_jsonl(Path(folder) / "run" / "metrics.jsonl") if "charts/SPS_interval" in row]
    measured = metrics[int(len(metrics) * sizes.warm_up / (sizes.warm_up + sizes.training)) :]
    said = [line for line in done.stdout.splitlines() if "without a CUDA graph" in line or "cross the bus twice" in line]
    phases = [name for name in measured[-1] if name.startswith("time/")]
    shares = {name: statistics.mean(row[name] for row in measured if name in row) for name in phases}
    variant = ", ".join(name if value is None else f"{name} {value}" for name, value in settings.items()) or "defaults"
    return [
        {
            "what": f"{env}, {workers} x {envs} environments, {variant}",
            "steps/s": statistics.mean(row["charts/SPS_interval"] for row in measured),
            "frames/s": statistics.mean(row["charts/FPS"] for row in measured),
            "learner waits": shares.get("time/learner/wait", float("nan")),
            "policy waits": shares.get("time/policy/wait", float("nan")),
            "rollout steps": shares.get("time/rollout/step", float("nan")),
            "lag": measured[-1].get("lag/mean", float("nan")),
            "messages": said, "shares": shares, "whole run, s": time.time() - began,
        }
    ]  # fmt: skip


def tensors(sizes: Sizes) -> Row:
    """Settings of `training` in the device placement, for environments written in PyTorch."""
    envs, rollout = (64, 8) if sizes is TINY else (16384, 32)
    return {
        "sampling.placement": "device", "sampling.num-workers": 1, "sampling.num-groups": 1, "sampling.envs-per-worker": envs,
        "sampling.rollout": rollout, "learning.batch-size": envs * rollout,
    }  # fmt: skip


def parts(device: str, sizes: Sizes) -> dict[str, Callable[[], Iterable[Row]]]:
    """By name, in order."""
    result: dict[str, Callable[[], Iterable[Row]]] = {
        "transfers": lambda: transfers(device, sizes),
        "acting": lambda: acting(device, sizes),
        "learning": lambda: learning(device, sizes),
    }
    if device != "cpu" and gpu_atari.possible():
        result |= gpu_atari.parts(sizes.atari)
    result["training"] = lambda: training(device, sizes, "atari/breakout")
    if importlib.util.find_spec("vizdoom") and sizes is not TINY:
        result["training vizdoom"] = lambda: training(device, sizes, "vizdoom/basic")
    result["training of tensors"] = lambda: training(device, sizes, "torch/CartPole-v1", **tensors(sizes))
    if device != "cpu" or sizes is not TINY:
        two = {"sampling.num-policy-workers": 2}
        result["training, two policy workers"] = lambda: training(device, sizes, "atari/breakout", **two)
        result["training without graphs"] = lambda: training(device, sizes, "atari/breakout", **{"learning.no-graphs": None})
        result["training, two transfers"] = lambda: training(device, sizes, "atari/breakout", **{"sampling.one-transfer": "off"})
    return result


# -- one process for each -------------------------------------------------------------------------------------------------


def limit_of(name: str, sizes: Sizes) -> float:
    """Seconds that a part may take."""
    if name == gpu_atari.COMPILATION:
        return sizes.compilation
    return START + sizes.atari * gpu_atari.SHARES[name] if name in gpu_atari.SHARES else sizes.limit


def measured_apart(name: str, arguments: list[str], limit: float) -> Row:
    """Run one part in a process; its rows, and what went wrong. A part that is ended takes its own processes with it."""
    began = perf_counter()
    command = [sys.executable, __file__, *arguments, "--part", name]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **streams) as part:  # type: ignore[call-overload]
        late = False
        try:
            printed, said = part.communicate(timeout=max(limit, 0.0))
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(part.pid, signal.SIGKILL)
            printed, said = part.communicate()
        except BaseException:  # Ctrl-C does not reach its processes, which are a group of their own
            os.killpg(part.pid, signal.SIGKILL)
            raise
    rows = [json.loads(line.removeprefix(ROW)) for line in printed.splitlines() if line.startswith(ROW)]
    result: Row = {"rows": rows, "seconds": perf_counter() - began}
    if late:
        result["error"] = f"took longer than {limit:.0f} s: {said[-1500:]}"
    elif part.returncode:
        result["error"] = f"exit code {part.returncode}: {said[-1500:]}"
    elif not rows:
        result["error"] = "measured nothing"
    return result


def measure_all(names: list[str], arguments: list[str], sizes: Sizes, ends: float) -> Iterator[tuple[str, Row]]:
    """Every part's name and result, until `ends` (seconds of `perf_counter`). The compilation goes on beside the parts that do
    not need it."""

    def measured(name: str) -> Row:
        if (left := ends - perf_counter()) < min(20.0, limit_of(name, sizes)):
            return {"rows": [], "seconds": 0.0, "error": "not begun: the time was over"}
        return measured_apart(name, arguments, min(left, limit_of(name, sizes)))

    with ThreadPoolExecutor(1) as beside:
        compiling = beside.submit(measured, gpu_atari.COMPILATION) if gpu_atari.COMPILATION in names else None
        for name in names:
            yield name, measured(name) if name != gpu_atari.COMPILATION or compiling is None else compiling.result()


def table(name: str, part: Row) -> str:
    """Markdown."""
    lines = []
    if part["rows"]:
        columns = [key for key, value in part["rows"][0].items() if not isinstance(value, (list, dict))]
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(_number(row.get(column, "")) for column in columns) + " |" for row in part["rows"]]
    if "error" in part:
        lines.append(f"\nFAILED after {part['seconds']:.0f} s: {part['error']}")
    said = [f"\nSaid: {line}" for row in part["rows"] for line in row.get("messages", ())]
    return "\n".join([f"## {name}\n", *lines, *said, ""])


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    """Measure all parts, or, as a child, one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing about speed")
    parser.add_argument("--parts", nargs="*", help="only these")
    parser.add_argument("--minutes", type=float, default=7.8, help="after which nothing goes on")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu_suite.json")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = TINY if args.tiny else QUICK if args.quick else FULL
    known = parts(args.device, sizes)
    if args.part:
        keep_freed_memory()
        set_up(args.device)
        for row in known[args.part]():
            print(ROW + json.dumps(row), flush=True)
        return
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here, so nothing was measured; --device cpu measures the CPU")
    began = perf_counter()
    facts = {"machine": summary.machine(), "torch": torch.__version__, "device": args.device, "sizes": vars(sizes)}
    accelerator = facts["machine"]["accelerator"] or "no accelerator"
    print(f"torch {torch.__version__}, {accelerator}, {os.cpu_count()} cores; device {args.device}\n", flush=True)
    arguments = ["--device", args.device] + ["--quick"] * args.quick + ["--tiny"] * args.tiny
    results = {}
    chosen = [name for name in known if args.parts is None or name in args.parts]
    for name, result in measure_all(chosen, arguments, sizes, began + 60 * args.minutes):
        results[name] = result
        print(table(name, result), flush=True)
        summary.write(args.out, {**facts, "load": os.getloadavg(), "parts": results})
    print(f"{perf_counter() - began:.0f} s, load average {os.getloadavg()[0]:.1f}; {args.out}")
    if failed := [name for name, part in results.items() if "error" in part]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
