"""Dynamic batching: many small requesters of unequal speed and one policy worker. Batch sizes, latencies, fairness.

    python benchmarks/dynamic_batching.py [--seconds 5] [--rounds 3] [--json benchmarks/results/dynamic_batching.json]

64 requesters ask for one action each, think, and ask again: 16 in each of 4 processes, which do nothing else. One process runs
the policy worker of a run (`PolicyWorker` with `InferenceRequests`) with the network of Nature's DQN on 84 x 84 x 4 pixels, on
one thread. What differs is when a batch is begun: as soon as `minimum` requests are there or `patience` is over; `maximum` is the
most that a batch takes.

    unequal     requesters think 5 ms to 160 ms, evenly spaced on a logarithmic scale, each time up to a fifth more or less
    greedy      nobody thinks: everybody is always waiting, and the policy worker is the bottleneck

Latency: from a request until its requester has the answer, over all requests. Fairness: Jain's index (sum x)^2 / (n sum x^2) over
requesters, 1 if all are equal, and the smallest share by the largest: where all are greedy, of the answers that each got; where
speeds differ, of each requester's mean latency. Settings take turns in rounds; medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import summary

from headrace import config as configs
from headrace.config import Config
from headrace.sampling.policy_worker import PolicyWorker
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.primitives import Closed
from headrace.shm.run_control import PhaseClock

PROCESSES, EACH = 4, 16
N = PROCESSES * EACH
LOADS = {"unequal": 0.005 * 32 ** (np.arange(N) / (N - 1)), "greedy": np.zeros(N)}
"""Seconds that each requester thinks. Neighbours are in different processes."""
SETTINGS: dict[str, tuple[int | None, int | None, float]] = {
    "as they come": (1, None, 0.0),
    "minimum 8, 5 ms": (8, None, 0.005),
    "default (minimum 22, 5 ms)": (None, None, 0.005),
    "at most 8": (1, 8, 0.0),
    "fixed 32 (SEED)": (32, 32, 10.0),
}
"""minimum, maximum, patience in seconds."""
WARM = 1.0
"""Seconds before measuring."""
fork = multiprocessing.get_context("fork")


class Network:
    """An actor as the policy worker sees one: acts on the lanes' observations, and notes the sizes of its batches."""

    policy = 0

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._net = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
        )  # fmt: skip
        self._inference = torch.inference_mode
        self._observations = torch.randint(0, 255, (N, 4, 84, 84), dtype=torch.uint8)
        self.clock = PhaseClock("policy")
        self.sizes: list[tuple[float, int, float]] = []
        """When each batch began, its size, and the seconds that it took."""

    def refresh(self) -> None:
        """Weights never change."""

    def act(self, lanes: np.ndarray) -> None:
        """One forward pass."""
        began = time.perf_counter()
        with self._inference():
            self._net(self._observations[lanes].float()).argmax(1).tolist()
        self.sizes.append((began, len(lanes), time.perf_counter() - began))


def policy_worker(requests: InferenceRequests, config: Config, report: Any) -> None:
    """A process: answers until the end, then reports its batches."""
    network: Any = Network()
    worker = PolicyWorker(0, requests, network, config)
    network.act(np.arange(N))
    network.act(np.arange(1))
    report.send("ready")
    network.sizes.clear()
    while worker.serve(0.2):
        pass
    report.send(network.sizes)


def requesters(index: int, requests: InferenceRequests, think: np.ndarray, ended: Any, report: Any) -> None:
    """A process: `EACH` requesters, who wait on their own; reports (when answered, lane, latency) of every request."""
    rng = np.random.default_rng(index)
    lanes = [requests.lanes_of(index, g)[0] for g in range(EACH)]
    mine = [float(think[g * PROCESSES + index]) for g in range(EACH)]
    asked, found = [0.0] * EACH, []
    due = [(time.perf_counter() + seconds * rng.random(), g) for g, seconds in enumerate(mine)]
    heapq.heapify(due)
    try:
        while not ended.is_set():
            now = time.perf_counter()
            while due and due[0][0] <= now:
                _, g = heapq.heappop(due)
                asked[g] = time.perf_counter()
                requests.request(lanes[g])
            requests.wait(index, min(0.2, max(0.0, due[0][0] - time.perf_counter())) if due else 0.2)
            for g in requests.woken_groups(index):
                if requests.take([lanes[g]]):
                    now = time.perf_counter()
                    found.append((now, lanes[g], now - asked[g]))
                    heapq.heappush(due, (now + mine[g] * rng.uniform(0.8, 1.2), g))
    except Closed:
        pass
    report.send(found)


def measure(load: str, setting: str, seconds: float) -> dict[str, Any]:
    """One round."""
    minimum, maximum, patience = SETTINGS[setting]
    config = configs.override(Config(env="gym/CartPole-v1"), **{
        "sampling.num_workers": PROCESSES, "sampling.num_groups": EACH, "sampling.envs_per_worker": EACH,
        "sampling.min_request_groups": minimum, "sampling.max_request_groups": maximum, "sampling.batch_timeout": patience,
    })  # fmt: skip
    requests = InferenceRequests(PROCESSES, EACH, 1, 1, (0,))
    ended = fork.Event()
    pipes = [fork.Pipe(duplex=False) for _ in range(PROCESSES + 1)]
    processes = [fork.Process(target=policy_worker, args=(requests, config, pipes[0][1]), daemon=True)]
    processes += [
        fork.Process(target=requesters, args=(i, requests, LOADS[load], ended, pipes[i + 1][1]), daemon=True)
        for i in range(PROCESSES)
    ]
    processes[0].start()
    assert pipes[0][0].recv() == "ready"
    for process in processes[1:]:
        process.start()
    begin = time.perf_counter() + WARM
    time.sleep(WARM + seconds)
    end = begin + seconds
    ended.set()
    requests.close()
    sizes, *found = (pipe[0].recv() for pipe in pipes)
    for process in processes:
        process.join()
    answers = [answer for part in found for answer in part if begin <= answer[0] < end]
    return numbers(load, [batch for batch in sizes if begin <= batch[0] < end], answers, seconds)


def numbers(load: str, batches: list[tuple[float, int, float]], answers: list[tuple[float, int, float]], seconds: float) -> Any:
    """What is reported of a round."""
    size = np.array([n for _, n, _ in batches])
    latency = 1e3 * np.array([waited for _, _, waited in answers])
    lanes = np.array([lane for _, lane, _ in answers])
    count = np.bincount(lanes, minlength=N)
    assert count.min() > 0, "a requester was never answered"
    share = count if load == "greedy" else np.bincount(lanes, latency, minlength=N) / count
    return {
        "requests_per_s": len(answers) / seconds,
        "batch_mean": float(size.mean()),
        "batch_percentiles": np.percentile(size, (5, 50, 95)).tolist(),
        "latency_ms_percentiles": np.percentile(latency, (50, 95, 99)).round(2).tolist(),
        "busy": sum(took for _, _, took in batches) / seconds,
        "jain": float(share.sum() ** 2 / (N * (share**2).sum())),
        "smallest_by_largest": float(share.min() / share.max()),
    }


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every number over the rounds."""
    return {key: np.median([row[key] for row in rows], axis=0).round(4).tolist() for key in rows[0]}


def main() -> None:
    """Measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {(load, name): [] for load in LOADS for name in SETTINGS}
    for _ in range(asked.rounds):
        for load, name in rounds:
            rounds[load, name].append(measure(load, name, asked.seconds))
    rows = [{"load": load, "setting": name, **median(found)} for (load, name), found in rounds.items()]
    heads = ["load", "batches", "requests/s", "batch: mean", "5 %, 50 %, 95 %", "latency, ms: 50 %, 95 %, 99 %"]
    heads += ["busy", "Jain", "smallest/largest"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row in rows:
        cells = [row["load"], row["setting"], f"{row['requests_per_s']:,.0f}", f"{row['batch_mean']:.1f}"]
        cells += [", ".join(f"{n:.0f}" for n in row["batch_percentiles"])]
        cells += [", ".join(f"{n:.1f}" for n in row["latency_ms_percentiles"])]
        cells += [f"{row['busy']:.0%}", f"{row['jain']:.3f}", f"{row['smallest_by_largest']:.2f}"]
        print("| " + " | ".join(cells) + " |")
    if asked.json:
        summary.write(asked.json, {"machine": summary.machine(), "load_average": os.getloadavg(), "rows": rows})


if __name__ == "__main__":
    main()
