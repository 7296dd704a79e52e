"""What the engine costs the learner: samples/s of training as `headrace train` does it, against a bare loop on the same network.

    python benchmarks/learner_overhead.py

`engine`: slots that another process hands over without end are fetched by the prefetch thread, learned from (APPO with V-trace,
statistics, gradient clipping, Adam) and the weights are published, as in `headrace.train.learn`. `bare`: forward, policy
gradient and value loss, backward and Adam on one batch that never changes, nothing else. Both on all cores, in turn, in one
process; medians, by wall clock and by CPU time, which other work on the machine disturbs less. V-trace needs the value of one
row more than is learned from: T + 1 rows of forward against T. Prints a table, writes results/learner_overhead.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import summary
import torch
from training_contest import as_others

from headrace.accelerator.cpu_allocator import keep_freed_memory
from headrace.accelerator.weights import FlatWeights
from headrace.config import Config
from headrace.envs.make import describe
from headrace.experience.on_policy import OnPolicyExperience
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.make_config import make_config
from headrace.sampling.run_memory import make_run_memory
from headrace.shm.run_control import POLL_INTERVAL, RunControl
from headrace.shm.trajectory_store import TrajectoryStore

context = multiprocessing.get_context("spawn")


def finish_all(store: TrajectoryStore, control: RunControl) -> None:
    """A process of its own: gives every free slot to the learner at once, as it is."""
    while not control.stopped:
        slot = store.acquire(0, POLL_INTERVAL)
        if slot is not None:
            store.finish(slot)


def fill(store: TrajectoryStore) -> None:
    """Plausible experience: random observations and rewards, no episode ends."""
    rng = np.random.default_rng(0)
    for name, array in store.arrays.items():
        if array.dtype == np.uint8:
            array[:] = rng.integers(0, 256, array.shape, np.uint8)
        elif name in ("value", "reward") or name.startswith("obs/"):
            array[:] = rng.normal(size=array.shape)
    store.arrays["log_prob"][:] = -1.0
    store.arrays["valid"][:] = True
    store.arrays["episode_return"][:] = np.nan


def bare_loop(config: Config, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """One update of the same network on a batch that stays."""
    _, model = make_agent(config, describe(config.env, config.envs))
    model = model.to(config.device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    T = len(batch["reward"])
    obs = {name[4:]: x[:T].clone() for name, x in batch.items() if name.startswith("obs/")}
    core, first, action = batch["core"].clone(), batch["first"][:T].clone(), batch["action"].clone()
    advantage, target = torch.randn_like(batch["reward"]), torch.randn_like(batch["reward"])

    def update() -> None:
        out = model.unroll(obs, core, first)
        loss = -(out.distribution.log_prob(action) * advantage).mean() + 0.5 * (out.value - target).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return update


def measure(env: str, precision: str, rounds: int, updates: int) -> dict[str, Any]:
    """Samples/s of both."""
    one_pass = {"learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.returns": "vtrace"}
    settings = {"learning.precision": precision, "learning.device": "cpu", "learning.max_policy_lag": 10**6}
    config = make_config(env, **one_pass, **settings, **as_others(env))
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    memory = make_run_memory([config], spec, [(algorithm, model)])
    store, newest = memory.policies[0].trajectories, memory.policies[0].weights
    fill(store)
    learner, weights = Learner(model, algorithm, config), FlatWeights(model)
    sampler = context.Process(target=finish_all, args=(store, memory.control), daemon=True)
    sampler.start()
    experience = OnPolicyExperience(store, config.slots_per_batch, "cpu")

    def engine() -> None:
        batch = experience.next()
        assert batch is not None
        learner.learn(batch)
        experience.release()
        weights.publish(newest, learner.progress.updates)

    first = experience.next()
    assert first is not None
    bare = bare_loop(config, first.data)
    experience.release()
    seconds: dict[str, list[float]] = {"engine": [], "bare": []}
    cpu: dict[str, list[float]] = {"engine": [], "bare": []}
    for round_ in range(rounds + 1):
        for name, update in (("engine", engine), ("bare", bare)):
            began, began_cpu = perf_counter(), process_time()
            for _ in range(updates):
                update()
            if round_:  # the first warms up
                seconds[name].append((perf_counter() - began) / updates)
                cpu[name].append((process_time() - began_cpu) / updates)
    memory.stop()
    sampler.join()
    rates = {name: config.learning.batch_size / statistics.median(s) for name, s in seconds.items()}
    share = rates["engine"] / rates["bare"]
    cpu_share = statistics.median(cpu["bare"]) / statistics.median(cpu["engine"])
    return {
        "env": env, "precision": precision, "batch": config.learning.batch_size, **rates, "share": share, "cpu_share": cpu_share
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="*", default=["atari/breakout", "vizdoom/basic"])
    parser.add_argument("--precision", nargs="*", default=["float32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2, help="of each, in a round")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "learner_overhead.json")
    args = parser.parse_args()
    keep_freed_memory()
    rows = []
    print("Samples/s of learning; share by wall clock and by CPU time of the process\n")
    print("| | batch | bare loop | engine | share | by CPU time |\n|---|---|---|---|---|---|")
    for env in args.env:
        for precision in args.precision:
            row = measure(env, precision, args.rounds, args.updates)
            rows.append(row)
            numbers = f"{row['batch']} | {row['bare']:,.0f} | {row['engine']:,.0f} | {row['share']:.1%} | {row['cpu_share']:.1%}"
            print(f"| {env}, {precision} | {numbers} |", flush=True)
    facts = {"machine": summary.machine(), "threads": torch.get_num_threads(), "rows": rows}
    summary.write(args.out, facts)


if __name__ == "__main__":
    main()
