"""How close the sampler comes to bare environments when the policy costs no CPU, as with an accelerator (paper, Table 1).

    python benchmarks/simulation_distance.py --env atari/breakout vizdoom/basic

The accelerator is emulated, honestly: the policy worker is the real one, but its forward pass is a sleep of t_inference, which
uses no CPU, followed by random actions. A learner that only frees slots stands for the real one. `bare`: the same groups of
environments in as many processes, stepped with random actions and nothing else. Both count steps of the environments.

Sweeps t_inference and k (environments of a worker) with one group and with two (double buffering); the line drawn beside the
measurements is the model behind the paper's condition k/2 > ceil(t_inference / t_environment): a cycle takes the longer of
stepping the other groups and inferring. Beside the rates, which other work on the machine disturbs, stands the CPU time of all
processes per step: what is above the bare environments' is what the sampler costs. Rounds alternate, medians are compared.
Prints a table, puts each environment's rows into results/simulation_distance.json and, with matplotlib, draws .png of all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import summary

from headrace.config import Config
from headrace.envs.core.contract import ArraySpec, Categorical, EnvSpec, LaneRow
from headrace.envs.make import describe, make_group
from headrace.make_config import make_config
from headrace.processes.child import Child
from headrace.sampling.placements.processes import rollout_main
from headrace.sampling.placements.served import Served
from headrace.sampling.run_memory import RunMemory
from headrace.sampling.worker_process import Start, pin, run_worker
from headrace.shm.primitives import Closed
from headrace.shm.run_control import POLL_INTERVAL

WARM_UP = 1.0
"""Seconds before counting begins: every process touches the pages of the trajectory store once."""
START_TIMEOUT = 300.0
"""Seconds until all environments must have made their first steps."""


def no_agent(config: Config, spec: EnvSpec) -> tuple[Any, Any]:
    """An algorithm without fields of its own, and a model of one weight: nobody computes anything."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    model.core_width = 0  # type: ignore[assignment]

    def extra_fields(spec: EnvSpec) -> dict[str, ArraySpec]:
        return {}

    def act(model: Any, obs: Any, core: torch.Tensor, *others: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """For the trial before a run. Workers have an `EmulatedActor`."""
        discrete = all(isinstance(part, Categorical) for part in spec.action.parts)
        return {"action": torch.zeros(len(core), spec.action.width, dtype=torch.int32 if discrete else torch.float32)}, core

    return SimpleNamespace(extra_fields=extra_fields, act=act), model


class EmulatedActor:
    """In place of `Actor`: sleeps instead of computing."""

    def __init__(self, start: Start, seconds: float):
        memory = start.placement.memory
        self.policy, self.seconds = 0, seconds
        self.cursor, self.actions = memory.requests.cursor, memory.policies[0].trajectories.arrays["action"]
        self.rng = np.random.default_rng(start.index)
        # Of every discrete part; continuous actions are all 0.5.
        self.choices = [part.n for part in start.placement.spec.action.parts if isinstance(part, Categorical)]
        self.clock = memory.control.clock("policy", start.index)

    def refresh(self) -> None:
        """There are no weights."""

    def act(self, lanes: np.ndarray) -> None:
        """Random actions after `seconds`."""
        time.sleep(self.seconds)
        slots, rows = self.cursor[lanes].T
        self.actions[slots, rows] = random_actions(self.rng, self.choices, (len(lanes), *self.actions.shape[2:]))


def random_actions(rng: np.random.Generator, choices: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """[..., A]: uniform in every discrete part."""
    return (rng.random(shape) * choices).astype(np.int64) if len(choices) == shape[-1] else np.full(shape, 0.5)


def emulated_policy(start: Start) -> None:
    """A policy worker whose forward pass is a sleep of `start.argument` seconds."""
    from headrace.sampling.policy_worker import PolicyWorker

    placement = start.placement
    actor: Any = EmulatedActor(start, start.argument)
    worker = PolicyWorker(start.index, placement.memory.requests, actor, placement.config)
    while worker.serve(POLL_INTERVAL):
        pass


def free_slots(start: Start) -> None:
    """A learner that frees every slot it gets."""
    store = start.placement.memory.policies[0].trajectories
    try:
        while True:
            slot = store.take(timeout=None)
            if slot is not None:
                store.release(slot)
    except Closed:
        pass


def bare(start: Start) -> None:
    """What a rollout worker does to its environments, and nothing else."""
    config, memory = start.placement.config, start.placement.memory
    E, num_groups, store = memory.requests.C, memory.requests.num_groups, memory.policies[0].trajectories
    os.nice(config.sampling.worker_niceness)
    pin(config, start.index)
    groups = [make_group(config.env, config.envs, E) for _ in range(num_groups)]
    slots = [start.index * num_groups + g for g in range(num_groups)]
    rows = [LaneRow.view(store.arrays, (s, 0), (s, 1)) for s in slots]
    choices = [part.n for part in start.placement.spec.action.parts if isinstance(part, Categorical)]
    rng = np.random.default_rng(start.index)
    for g, group in enumerate(groups):
        group.reset(start.index * 1000 + g * E, [rows[g].after])
    clock = memory.control.clock("rollout", start.index)
    while not memory.control.stopped:
        for g, group in enumerate(groups):
            rows[g].actions[:] = random_actions(rng, choices, (E, len(choices)))
            group.send(rows[g : g + 1])
            group.recv()
            clock.count(E)
    for group in groups:
        group.close()


@contextmanager
def running(config: Config, mains: list[tuple[Any, int, Any]], t_inference: float = 0.0) -> Iterator[Running]:
    """These processes, (role, index, main), over the memory of a run; entered when every environment has made five steps.

    Raises RuntimeError with what failed if that takes longer than `START_TIMEOUT` seconds.
    """
    placement = Served(config, describe(config.env, config.envs), no_agent)
    memory = placement.memory
    children = [
        Child(run_worker, (main, role, index, 0, placement, t_inference), f"{role}-{index}") for role, index, main in mains
    ]
    memory.control.set_ready(0)
    try:
        began, counts = perf_counter(), memory.control.clocks["rollout"][:, -1]
        while not (counts >= 5 * memory.requests.C * memory.requests.num_groups).all():
            if perf_counter() - began > START_TIMEOUT or any(child.gone for child in children):
                reports = [content for child in children for _, content, _ in child.reports.read()]
                raise RuntimeError(f"the environments do not start: {reports}")
            time.sleep(0.02)
        yield Running(memory, children, counts)
    finally:
        memory.stop()
        for child in children:
            child.end(20)


class Running:
    """Processes that step environments."""

    def __init__(self, memory: RunMemory, children: list[Child], counts: np.ndarray):
        self.memory, self.processes, self._counts = memory, [psutil.Process(child.process.pid) for child in children], counts

    @property
    def steps(self) -> float:
        """Of all environments so far."""
        return float(self._counts.sum())

    @property
    def cpu_seconds(self) -> float:
        """CPU time used so far by the processes, with what they have started (Doom engines)."""
        total = 0.0
        for parent in self.processes:
            for one in (parent, *parent.children(recursive=True)):
                times = one.cpu_times()
                total += times.user + times.system
        return total


def rate(config: Config, mains: list[tuple[Any, int, Any]], seconds: float, t_inference: float = 0.0) -> tuple[float, float]:
    """Of these processes, (role, index, main): steps per second of all rollout workers, and CPU microseconds of all processes
    per step."""
    with running(config, mains, t_inference) as run:
        time.sleep(WARM_UP)
        began, before, cpu = perf_counter(), run.steps, run.cpu_seconds
        time.sleep(seconds)
        steps = run.steps - before
        return steps / (perf_counter() - began), (run.cpu_seconds - cpu) / steps * 1e6


def sampler_config(env: str, workers: int, k: int, groups: int) -> Config:
    settings = {"num_workers": workers, "envs_per_worker": k, "num_groups": groups, "rollout": 32}
    settings["num_slots"] = 3 * workers * groups
    config = make_config(env, **{f"sampling.{name}": value for name, value in settings.items()})
    config.sampling.min_request_groups, config.sampling.batch_timeout = 1, 0.0
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="*", default=["atari/breakout", "vizdoom/basic"])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--k", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--ms", type=float, nargs="*", default=[0.5, 2, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "simulation_distance.json")
    args = parser.parse_args()
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"envs": {}}
    for env in args.env:
        measured: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
        for _ in range(args.rounds):
            for k in args.k:
                mains = [("rollout", w, bare) for w in range(args.workers)]
                measured[k,].append(rate(sampler_config(env, args.workers, k, 1), mains, args.seconds))
                for ms in args.ms:
                    for groups in (1, 2):
                        mains = [("rollout", w, rollout_main) for w in range(args.workers)]
                        # one policy worker per rollout worker: an accelerator serves each without queueing
                        config = sampler_config(env, args.workers, k, groups)
                        config.sampling.num_policy_workers = args.workers
                        mains += [("policy", p, emulated_policy) for p in range(args.workers)] + [("learner", 0, free_slots)]
                        measured[k, ms, groups].append(rate(config, mains, args.seconds, ms / 1e3))
        median = {key: [statistics.median(column) for column in zip(*values, strict=True)] for key, values in measured.items()}
        rows = []
        print(f"\n{env}, {args.workers} workers: steps/s (median of {args.rounds}) and share of bare; CPU us per step\n")
        print("| k | t_inference | bare | one group | two groups | predicted | CPU: bare | one group | two groups |")
        print("|---|---|---|---|---|---|---|---|---|")
        for k in args.k:
            base, cpu = median[k,]
            t_env = args.workers / base
            for ms in args.ms:
                (one, cpu1), (two, cpu2) = (median[k, ms, groups] for groups in (1, 2))
                model = [k * t_env / (k * t_env + ms / 1e3), min(1.0, k / 2 * t_env / (ms / 1e3))]
                row = {"k": k, "t_inference_ms": ms, "t_env_ms": t_env * 1e3, "bare": base, "one_group": one, "two_groups": two}
                rows.append({**row, "predicted": model, "cpu_us": [cpu, cpu1, cpu2]})
                shares = f"{one:,.0f} ({one / base:.1%}) | {two:,.0f} ({two / base:.1%}) | {model[0]:.0%}, {model[1]:.0%}"
                print(f"| {k} | {ms} ms | {base:,.0f} | {shares} | {cpu:.0f} | {cpu1:.0f} | {cpu2:.0f} |", flush=True)
        conditions = {"machine": summary.machine(), "workers": args.workers, "load_average": os.getloadavg()[0]}
        result["envs"][env] = {**conditions, "rows": rows}
        summary.write(args.out, result)
    plot(result, args.out.with_suffix(".png"))


def plot(result: dict[str, Any], path: Path) -> None:
    """Share of the bare rate over t_inference in units of k/2 environment steps."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure, axes = plt.subplots(1, len(result["envs"]), figsize=(5.5 * len(result["envs"]), 4), squeeze=False, sharey=True)
    for axis, (env, measured) in zip(axes[0], result["envs"].items(), strict=True):
        rows = measured["rows"]
        x = [row["t_inference_ms"] / (row["k"] / 2 * row["t_env_ms"]) for row in rows]
        axis.plot(x, [row["two_groups"] / row["bare"] for row in rows], "o", label="two groups")
        axis.plot(x, [row["one_group"] / row["bare"] for row in rows], "s", label="one group")
        line = np.geomspace(min(x) / 2, max(x) * 2, 200)
        axis.plot(line, np.minimum(1, 1 / line), "C0-", lw=0.8, label="min(1, k/2 t_env / t_inf)")
        axis.plot(line, 1 / (1 + line / 2), "C1-", lw=0.8, label="k t_env / (k t_env + t_inf)")
        axis.axvline(1, color="grey", lw=0.5)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(title=env, xlabel="t_inference / (k/2 t_environment)", ylim=(0, 1.1))
    axes[0][0].set_ylabel("share of bare environments")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    # Child processes import this file by its name: what they run must not be called `__main__`.
    import simulation_distance

    simulation_distance.main()
