"""Where the time of one step goes: CPU microseconds per environment step of every part, policy and learner included.

    python benchmarks/step_budget.py --env atari/breakout vizdoom/basic gym/CartPole-v1

The components are the real ones, called in turn in one process with one thread, as `--placement serial` does; CPU time is
measured, not wall-clock time, so that other work on the machine disturbs little. Environments are measured with the processes
that belong to them, such as Doom's game engines. `engine` is what is neither environment nor network: finding slots, exchanging
requests, gathering observations and writing actions, forming batches. Prints a table, writes results/step_budget.json.

The parts are as they are in `served` training: as many environments, acting in batches as small as a policy worker's, and each
worker's environments on the core that training binds it to, with the processes that belong to them.

`--train 20` then trains in the `served` placement with the same settings for that many seconds. All cores together could do
cores x 10^6 over the sum of the microseconds in steps per second; printed is what share of that training reaches.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import psutil
import summary
import torch
from training_contest import as_others
from whole_and_parts import whole

from headrace.accelerator.cpu_allocator import keep_freed_memory
from headrace.accelerator.weights import FlatWeights
from headrace.config import Config
from headrace.envs.make import describe
from headrace.experience.on_policy import OnPolicyExperience
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.make_config import make_config
from headrace.sampling.placements.serial import Serial, SerialSampler

PARTS = ("environments", "policy network", "learner network", "engine: sampling", "engine: batches", "engine: weights")


def timed(call: Callable[..., Any], seconds: dict[str, float], part: str) -> Callable[..., Any]:
    """The same call, its CPU time added to `part`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = process_time()
        result = call(*args, **kwargs)
        seconds[part] += process_time() - began
        return result

    return wrapper


def of_children() -> float:
    """CPU seconds of all processes that this one has started and that live."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(spent.user + spent.system for spent in times)


SETTINGS: dict[str, Any] = {
    "learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.returns": "vtrace", "learning.device": "cpu",
}  # fmt: skip
"""One pass over each batch."""


def on_core(call: Callable[..., Any], core: int) -> Callable[..., Any]:
    """The same call, made on this core."""
    cores = os.sched_getaffinity(0)

    def wrapper(*args: Any) -> Any:
        os.sched_setaffinity(0, {core})
        result = call(*args)
        os.sched_setaffinity(0, cores)
        return result

    return wrapper


def bind_engines(workers: int, cores: list[int]) -> None:
    """Bind Doom's engines, which were started worker by worker, to the cores of their workers."""
    started = sorted(psutil.Process().children(recursive=True), key=lambda child: child.create_time())
    engines = [child for child in started if "vizdoom" in child.name()]
    for i, engine in enumerate(engines):
        for thread in engine.threads():
            os.sched_setaffinity(thread.id, {cores[i * workers // len(engines) % len(cores)]})


def budget(env: str, updates: int) -> dict[str, float]:
    """CPU microseconds per step of every part."""
    served = make_config(env, **SETTINGS, **as_others(env), **{"sampling.placement": "served"})
    config: Config = make_config(env, **SETTINGS, **as_others(env), **{
        "sampling.placement": "serial",
        "sampling.num_workers": served.sampling.num_workers,
        "sampling.envs_per_worker": served.sampling.envs_per_worker,
        "sampling.num_groups": served.sampling.num_groups,
        "sampling.max_request_groups": served.min_request_groups,
    })  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    pinned = served.sampling.pin_workers and served.sampling.num_workers >= len(cores) > 1
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    placement = Serial(config, spec, make_agent)
    memory = placement.memory.policies[0]
    learner, weights = Learner(model, algorithm, config), FlatWeights(model)
    sampler = SerialSampler(placement)
    seconds: dict[str, float] = defaultdict(float)
    for worker in sampler.workers:
        for group in worker.groups:
            send = timed(group.envs.send, seconds, "environments")
            if pinned:
                send = on_core(send, cores[worker.index % len(cores)])
            group.envs.send = timed(send, seconds, "environments, all")  # type: ignore[method-assign]
    (actor,) = sampler.actors
    actor._act = timed(actor._act, seconds, "policy network")
    collect = timed(lambda slots: sampler.collect(0, slots), seconds, "sampling, all")
    experience = OnPolicyExperience(memory.trajectories, config.slots_per_batch, "cpu", collect)
    next_batch = timed(experience.next, seconds, "batches, all")
    learn, publish = timed(learner.learn, seconds, "learner network"), timed(weights.publish, seconds, "engine: weights")
    publish(memory.weights, 0)
    in_children = 0.0
    for update in range(updates + 1):
        if update == 1:  # the first one also resets environments and fills caches
            seconds.clear()
            if pinned:
                bind_engines(config.sampling.num_workers, cores)
            in_children = of_children()
        learn(next_batch())
        experience.release()
        publish(memory.weights, update + 1)
    in_children = of_children() - in_children
    sampler.close()
    seconds["engine: sampling"] = seconds["sampling, all"] - seconds["environments, all"] - seconds["policy network"]
    seconds["engine: batches"] = seconds["batches, all"] - seconds["sampling, all"]
    seconds["environments"] += in_children
    return {part: seconds[part] / (updates * config.learning.batch_size) * 1e6 for part in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="*", default=["atari/breakout", "vizdoom/basic", "gym/CartPole-v1"])
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "step_budget.json")
    parser.add_argument("--train", type=float, default=0.0, metavar="SECONDS", help="of training that count; 0: none")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    keep_freed_memory()
    rows, trained = {}, {}
    print("CPU microseconds per step\n\n| | " + " | ".join(PARTS) + " | engine, share |\n|" + "---|" * (len(PARTS) + 2))
    for env in args.env:
        rows[env] = budget(env, args.updates)
        share = sum(value for part, value in rows[env].items() if part.startswith("engine")) / sum(rows[env].values())
        print(f"| {env} | " + " | ".join(f"{value:.1f}" for value in rows[env].values()) + f" | {share:.1%} |", flush=True)
    found = {"machine": summary.machine(), "cpu_us_per_step": rows}
    if args.train:
        cores = len(os.sched_getaffinity(0))
        print(f"\n| | {cores} cores could do, steps/s | training does | share |\n|---|---|---|---|")
        for env in args.env:
            possible = cores * 1e6 / sum(rows[env].values())
            rate = whole(env, SETTINGS | as_others(env) | {"sampling.placement": "served"}, args.train)["steps_per_second"]
            trained[env] = {"possible": possible, "training": rate, "share": rate / possible}
            print(f"| {env} | {possible:,.0f} | {rate:,.0f} | {rate / possible:.0%} |", flush=True)
        found |= {"steps_per_second": trained, "load_before": load}
    summary.write(args.out, found)


if __name__ == "__main__":
    main()
