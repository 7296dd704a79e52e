"""Integers per second and wake-up latency of Headrace's queue, faster-fifo and multiprocessing.Queue.

    pip install --no-deps --target DIRECTORY faster-fifo
    python benchmarks/queues.py --faster-fifo DIRECTORY

Throughput: every producer process puts integers one by one, one consumer process gets them, one by one or as many as there
are (multiprocessing.Queue cannot). All integers are counted from the first get to the last. `in bulk`: producers put 8 at a
time too. Latency: two processes send one integer back and forth through two queues and sleep in between; half a round trip,
wake-up included. Rounds of all queues alternate and medians are compared. Prints tables, writes results/queues.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import summary

from headrace.shm.primitives import Queue

CAPACITY, BULK = 1024, 8
fork = multiprocessing.get_context("fork")


class Headrace:
    many = True

    def __init__(self) -> None:
        self.queue = Queue(CAPACITY)
        self.out = np.zeros(CAPACITY, np.int32)
        self.put, self.get = self.queue.put, self.queue.get

    def put_many(self, values: list[int]) -> None:
        self.queue.put_many(np.array(values, np.int32))

    def get_many(self) -> int:
        return self.queue.get_many(self.out)


class FasterFifo:
    many = True

    def __init__(self) -> None:
        import faster_fifo  # type: ignore[import-not-found]
        import faster_fifo_reduction  # type: ignore[import-not-found]  # noqa: F401

        self.queue = faster_fifo.Queue(max_size_bytes=64 * CAPACITY)
        # Its waits have a deadline (10 s unless told otherwise); none is reached here.
        self.put, self.get, self.put_many = self.queue.put, self.queue.get, self.queue.put_many

    def get_many(self) -> int:
        return len(self.queue.get_many(max_messages_to_get=CAPACITY))


class Multiprocessing:
    many = False

    def __init__(self) -> None:
        self.queue = fork.Queue(CAPACITY)
        self.put, self.get = self.queue.put, self.queue.get


def produce(queue: Any, n: int, bulk: bool, start: Any) -> None:
    start.wait()
    if bulk:
        values = list(range(BULK))
        for _ in range(n // BULK):
            queue.put_many(values)
    else:
        for i in range(n):
            queue.put(i)


def throughput(make: Callable[[], Any], producers: int, mode: str, n: int) -> float:
    """Integers per second."""
    queue, start = make(), fork.Event()
    each = n // producers // BULK * BULK
    processes = [fork.Process(target=produce, args=(queue, each, mode == "in bulk", start)) for _ in range(producers)]
    for process in processes:
        process.start()
    time.sleep(0.05)
    start.set()
    queue.get()
    began, got = time.perf_counter(), 1
    if mode == "one by one":
        for _ in range(producers * each - 1):
            queue.get()
    else:
        while got < producers * each:
            got += queue.get_many()
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    return producers * each / seconds


def answer(there: Any, back: Any, n: int) -> None:
    for _ in range(n):
        back.put(there.get())


def latency(make: Callable[[], Any], n: int) -> np.ndarray:
    """Half of every round trip, in microseconds."""
    there, back = make(), make()
    process = fork.Process(target=answer, args=(there, back, n))
    process.start()
    times = np.zeros(n)
    for i in range(n):
        began = time.perf_counter()
        there.put(i)
        back.get()
        times[i] = time.perf_counter() - began
    process.join()
    return times[n // 10 :] / 2 * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faster-fifo", type=Path, help="where faster-fifo was installed (pip install --target)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=100_000, help="integers a measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "queues.json")
    args = parser.parse_args()
    queues: dict[str, Any] = {"headrace": Headrace}
    if args.faster_fifo:
        sys.path.insert(0, str(args.faster_fifo))
        queues["faster-fifo"] = FasterFifo
    queues["multiprocessing"] = Multiprocessing

    rates: dict[tuple[str, int, str], list[float]] = {}
    delays: dict[str, list[np.ndarray]] = {name: [] for name in queues}
    for _ in range(args.rounds):
        for mode in ("one by one", "get many", "in bulk"):
            for producers in (1, 2, 4, 8):
                for name, make in queues.items():
                    if make.many or mode == "one by one":
                        # The slow ones get fewer, so that each measurement takes a comparable time.
                        n = args.n if name == "headrace" else args.n // 5
                        rates.setdefault((mode, producers, name), []).append(throughput(make, producers, mode, n))
        for name, make in queues.items():
            delays[name].append(latency(make, 3000))

    results: dict[str, Any] = {
        "machine": summary.machine(),
        "capacity": CAPACITY,
        "bulk": BULK,
        "throughput": [],
        "latency": {},
    }
    for mode in ("one by one", "get many", "in bulk"):
        print(f"\n{mode}: million integers/s (median of {args.rounds})\n\n| producers | " + " | ".join(queues) + " |")
        print("|" + "---|" * (len(queues) + 1))
        for producers in (1, 2, 4, 8):
            medians = {
                name: float(np.median(rates[mode, producers, name]))
                for name in queues
                if (mode, producers, name) in rates
            }
            results["throughput"].append({"mode": mode, "producers": producers, **medians})
            cells = [
                f"{medians[name] / 1e6:.3f} ({medians['headrace'] / medians[name]:.1f}x)" if name in medians else "-"
                for name in queues
            ]
            print(f"| {producers} | " + " | ".join(cells) + " |")
    print("\nOne-way latency with a sleeping receiver, microseconds\n\n| | median | 99 % |\n|---|---|---|")
    for name in queues:
        median, tail = (float(np.median([np.percentile(d, q) for d in delays[name]])) for q in (50, 99))
        results["latency"][name] = {"median_us": median, "p99_us": tail}
        print(f"| {name} | {median:.1f} | {tail:.1f} |")
    summary.write(args.out, results)


if __name__ == "__main__":
    main()
