"""What it costs to send trajectories from a sampling node to the learner: processor time per step on both sides, and bytes.

    python benchmarks/cluster.py [--game breakout] [--trajectories 200] [--json FILE]
    python benchmarks/cluster.py --samples [--batches 50] [--json FILE]
    python benchmarks/cluster.py --scaling [1 2 4 8] [--namespaces] [--seconds 60] [--json FILE]

A sender with the codec and the stream of a node's uplink, and a receiver process of the learner's side, over loopback. What is
sent are trajectories of a real game under random actions (84x84 frames, stacks of four), written once. No environment is stepped
meanwhile and nothing is learned: everything that is measured is the way of the data. Processor time is what the kernel counts for
each process, whoever else uses the machine; the rate is not, and says little on a busy one.

`--samples` measures batches of Ape-X from two shards of a replay instead, everything but the stream itself: what a node needs to
draw and write them, a receiver to check and store them, and the learner to stack the frames in a batch.

`--scaling` trains with so many sampling nodes on this machine, whose environments sleep instead of computing (`sleeping.py`), and
compares their steps per second with those of one node. What is measured is whether the nodes hold each other up. With
`--namespaces` (as root) the learner and every node are on a network of their own (`tests/cluster/namespaces.py`). Then a row also
has bytes per step: of trajectories, as the run's metrics say, and all that the nodes' links have sent and received; and processor
time of the learner's receivers and of all processes of the nodes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import summary

from headrace.accelerator.threads import using_threads
from headrace.cluster import protocol
from headrace.cluster.protocol import CREDIT, SAMPLES, SHARD, WANT
from headrace.cluster.receiver import receiver_main
from headrace.cluster.shapes import of_node, whole, workers_of
from headrace.cluster.shard import Shard, make_codec
from headrace.cluster.shard_relay import ShardRelay
from headrace.cluster.shard_table import ShardTable
from headrace.cluster.sharded_replay import ShardedReplay
from headrace.cluster.shared import COUNTS, Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.config import override
from headrace.envs import describe_run
from headrace.experience.replay.layout import replay_layout
from headrace.learning.algorithm import make_agent
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.sampling.placements import make_placement
from headrace.sampling.placements.processes import ProcessPlacement
from headrace.shm.primitives import Closed
from headrace.transport.credentials import Credentials
from headrace.transport.messages import HEADER, header
from headrace.transport.streams import Caller

sys.path.append(str(Path(__file__).parents[1] / "tests" / "cluster"))
from namespaces import Machine, lacks, network

SLEEPING = Path(__file__).with_name("sleeping.py")
WARM_UP = 10.0
"""Seconds after the last node's first steps that are not counted."""


def fill(placement: ProcessPlacement, count: int) -> list[int]:
    """Slots with trajectories of the game under random actions, by an environment group of this process."""
    from headrace.envs.core.contract import LaneRow, ObsRow
    from headrace.envs.groups.base import Completion
    from headrace.envs.make import make_group

    config, store = placement.config, placement.memory.policies[0].trajectories
    group = make_group(config.env, config.envs, config.envs_per_group)
    completion, rng = Completion(group), np.random.default_rng(0)
    slots: list[int] = []
    for _ in range(count):
        slot = store.acquire(0, 1)
        assert slot is not None
        first = ObsRow.view(store.arrays, (slot, 0))
        if not slots:
            group.reset(0, [first])
            completion.wait()
        else:
            for name, field in store.fields.items():
                if field.rows == "T+1":
                    store.arrays[name][slot, 0] = store.arrays[name][slots[-1], store.T]
        for t in range(store.T):
            store.arrays["action"][slot, t] = rng.integers(0, 4, store.arrays["action"][slot, t].shape)
            group.send([LaneRow.view(store.arrays, (slot, t), (slot, t + 1))])
            completion.wait()
        slots.append(slot)
    group.close()
    return slots


class Sender:
    """A node's side of the stream."""

    def __init__(self, shared: Shared, codec: TrajectoryCodec, weights: int) -> None:
        self.codec, self.credits, self.weights = codec, threading.Semaphore(0), threading.Semaphore(0)
        self.stream = Caller(shared.endpoint(0), protocol.FLAGS).open()
        of_policy = {"policy": 0, "arrays": codec.schema(), "weights": weights, "state": []}
        hello = {"generation": shared.generation.load(0), **of_policy}
        self.stream.send(protocol.to_bytes("hello", hello))
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        messages = iter(self.stream)
        next(messages)
        self.stream.send(HEADER.pack(WANT, 0))
        for message in messages:
            kind, number = header(message)
            if kind == CREDIT:
                self.credits.release(number)
            else:
                self.stream.send(HEADER.pack(WANT, 0))
                self.weights.release()

    def send(self, slot: int) -> None:
        """One trajectory, when there is a credit."""
        self.credits.acquire()
        self.stream.send(self.codec.encode(slot))


@contextmanager
def receiving(env: str, rollout: int, compression: str) -> Iterator[tuple[ProcessPlacement, Shared, Sender, list[int]]]:
    """A receiver's process, a sender that it has greeted, and slots with trajectories to send."""
    settings = {"sampling.placement": "inline", "sampling.rollout": rollout, "sampling.envs_per_worker": 16, "cluster.nodes": 1}
    config = make_config(env, "impala", **settings, **{"cluster.engine": "static", "cluster.compression": compression})
    config = override(config, **{"learning.device": "cpu", "cluster.window": 2, "sampling.num_slots": 16})
    placement = make_placement(whole(config), describe_run(config), make_agent)
    assert isinstance(placement, ProcessPlacement)
    policy = placement.memory.policies[0]
    store, shared = policy.trajectories, Shared(1, "127.0.0.1:0", Credentials(token="a-token-for-benchmarks"))
    slots = fill(placement, 4)
    shared.generation.store(0, 1)
    placement._supervisor.start("rollout", range(1), partial(receiver_main, shared))
    while not shared.port.load(0):
        for message in placement.messages(0.1):
            print(message.content)
    sender = Sender(shared, TrajectoryCodec(store, placement.spec.frame_stack, compression), policy.weights.nbytes)

    def learner() -> None:  # frees slots at once
        with suppress(Closed):
            while (slot := store.take(timeout=None)) is not None:
                store.release(slot)

    threading.Thread(target=learner, daemon=True).start()
    try:
        for i in range(10):
            sender.send(slots[i % len(slots)])
        yield placement, shared, sender, slots
    finally:
        placement.memory.stop()
        placement.kill()


def counted(shared: Shared, send: Callable[[], None]) -> tuple[dict[str, float], float, float]:
    """What the receiver counts meanwhile, processor time of this process, and time (seconds)."""
    time.sleep(1.0)
    before, cpu, began = shared.counts[0].copy(), time.process_time(), time.perf_counter()
    send()
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
    time.sleep(1.0)
    return dict(zip(COUNTS, shared.counts[0] - before, strict=True)), cpu, seconds


def measure_weights(env: str, versions: int) -> dict[str, Any]:
    """Bytes, and processor time of the receiver, of a version of the weights."""
    with receiving(env, 20, "none") as (placement, shared, sender, _):
        store = placement.memory.policies[0].weights
        content = np.zeros(store.nbytes, np.uint8)

        def send() -> None:
            for version in range(2, versions + 2):
                store.publish(content, version)
                sender.weights.acquire()

        store.publish(content, 1)
        sender.weights.acquire()
        found, _, _ = counted(shared, send)
    return {
        "env": env, "weights": int(found["weights"]), "bytes per version": int(found["weight_bytes"] / found["weights"]),
        "receiver ms per version": round(float(1e3 * found["seconds"] / found["weights"]), 2),
    }  # fmt: skip


def plan(row: dict[str, Any], weights: dict[str, Any], nodes: int, rate: float, link: float) -> dict[str, Any]:
    """What so many nodes of `rate` steps per second each would ask of a learner's machine with one link of so many Gbit/s in each
    direction: computed from a row of `measure` and from `measure_weights`, as if everything grew in proportion."""
    steps, gigabit = nodes * rate, 8e-9
    versions = link / (weights["bytes per version"] * gigabit) / nodes
    return {
        "nodes": nodes, "compression": row["compression"], "steps/s": steps,
        "Gbit/s in": round(steps * row["bytes per step"] * gigabit, 2),
        "cores for trajectories": round(steps * row["receiver us per step"] * 1e-6, 2),
        "most versions/s of each node": round(versions, 2),
        "cores for them": round(versions * nodes * weights["receiver ms per version"] * 1e-3, 2),
    }  # fmt: skip


def measure(env: str, rollout: int, compression: str, trajectories: int) -> dict[str, Any]:
    """One row of the table."""
    with receiving(env, rollout, compression) as (_, shared, sender, slots):

        def send() -> None:
            for i in range(trajectories):
                sender.send(slots[i % len(slots)])

        found, cpu, seconds = counted(shared, send)
    row = {
        "env": env, "rollout": rollout, "compression": compression, "steps": found["steps"],
        "bytes per step": found["bytes"] / found["steps"],
        "receiver us per step": 1e6 * found["seconds"] / found["steps"],
        "sender us per step": 1e6 * cpu / found["steps"],
        "steps/s": found["steps"] / seconds,
    }  # fmt: skip
    return {name: value if isinstance(value, str | int) else round(float(value), 2) for name, value in row.items()}


class Wire:
    """Stands for the stream to a shard, without a network."""

    def __init__(self, replay: ShardedReplay, node: int, shard: Shard, control: Any) -> None:
        self.relay, self.shard = ShardRelay(replay, node), shard
        self.bytes, self.node_seconds, self.receiver_seconds = 0, 0.0, 0.0
        self.relay.begin(self, 1)  # type: ignore[arg-type]
        self.relay.receive(SHARD, shard.statistics())
        self.thread = threading.Thread(target=self.relay.run, args=(control,))
        self.thread.start()

    def send(self, message: bytes) -> None:
        """Answer a request."""
        began = time.thread_time()
        answer = self.shard.answer(message)
        between = time.thread_time()
        self.relay.receive(SAMPLES, answer)
        self.node_seconds += between - began
        self.receiver_seconds += time.thread_time() - between
        self.bytes += len(answer)


SLOTS = 40
"""Trajectories of 80 steps of 8 environments in each shard."""


def measure_samples(env: str, compression: str, batches: int) -> dict[str, Any]:
    """One row of the table of samples."""
    settings = {"sampling.placement": "inline", "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "cluster.nodes": 2}
    settings |= {
        "learning.batch_size": 512,
        "replay.shards": "node",
        "replay.capacity": 100_000,
        "cluster.engine": "static",
        "sampling.rollout": 80,
    }
    config = make_config(env, "apex-dqn", **settings, **{"cluster.compression": compression, "replay.minimum": 1})
    config = override(config, **{"learning.device": "cpu"})
    node = override(of_node(config), **{"sampling.num_slots": SLOTS})
    spec, batch = describe_run(config), config.learning.batch_size
    shards = []
    for k in range(2):
        placement = make_placement(node, spec, make_agent)
        assert isinstance(placement, ProcessPlacement)
        placement.rollout_workers = workers_of(k, node)
        shards.append(shard := Shard.of(placement, 0))
        first = placement.rollout_workers[0] * config.sampling.envs_per_worker
        for slot in fill(placement, SLOTS):
            placement.memory.policies[0].trajectories.arrays["env_index"][slot] = first + np.arange(node.lane_size)
            shard.write(slot)
    layout, fields = replay_layout(whole(config), spec, 0, 1)
    codec = make_codec(config, fields)
    replay = ShardedReplay(layout, fields, ShardTable(2, batch, 20 * batch, codec.largest), codec)
    control = placement.memory.control
    wires = [Wire(replay, k, shard, control) for k, shard in enumerate(shards)]
    into, learner = replay.empty_batch(batch), 0.0
    for number in range(batches + 5):
        if number == 5:  # what is reached for the first time is not counted
            learner, before = 0.0, [(w.bytes, w.node_seconds, w.receiver_seconds) for w in wires]
        began = time.thread_time()
        drawn = replay.sample(batch, into)
        assert drawn is not None
        learner += time.thread_time() - began
        replay.update(drawn.keys, np.random.default_rng(number).exponential(size=batch).astype(np.float32))
    change = np.array([(w.bytes, w.node_seconds, w.receiver_seconds) for w in wires]) - np.array(before)
    nbytes, seconds, receiving = change.sum(0) / (batches * batch)
    control.stop()
    for wire in wires:
        wire.thread.join()
    return {
        "env": env, "batch": batch, "compression": compression, "bytes per sample": round(nbytes),
        "node us per sample": round(float(1e6 * seconds), 1), "receiver us per sample": round(float(1e6 * receiving), 1),
        "learner us per sample": round(1e6 * learner / (batches * batch), 1),
    }  # fmt: skip


def scaling(nodes: int, seconds: float, apart: bool) -> dict[str, Any]:
    """Steps per second of a real run with so many nodes, over `seconds` seconds in which all of them were there; if they are
    `apart`, also what crossed their links and what they cost."""
    with tempfile.TemporaryDirectory() as folder, network() if apart else nullcontext() as made:
        command = [sys.executable, "-m", "headrace.cli", "train", "--env", "sleeping", "--import", str(SLEEPING)]
        settings = {
            "learning.algorithm": "impala", "learning.batch-size": 40 * nodes, "learning.total-steps": 10**9,
            "learning.num-threads": 1, "sampling.num-workers": 1, "sampling.envs-per-worker": 2, "sampling.rollout": 20,
            "sampling.placement": "inline", "cluster.engine": "static", "cluster.nodes": nodes, "run.folder": f"{folder}/run",
            "run.log-interval": 1.0,
        }  # fmt: skip
        command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        command += ["--run.no-video", "--run.no-dashboard"]
        machines: list[Machine] = []
        if made is None:
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        else:
            learner, *machines = [made.add(Path(folder)), *(made.add() for _ in range(nodes))]
            place = {"WORLD_SIZE": str(nodes + 1), "MASTER_ADDR": learner.address, "HEADRACE_TOKEN": "a-token-for-benchmarks"}
            run, *_ = [
                machine.popen(command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
                for rank, machine in enumerate([learner, *machines])
            ]
        lines: list[dict[str, float]] = []
        begin: tuple[int, np.ndarray] | None = None
        try:
            while begin is None or lines[-1]["time"] < lines[begin[0]]["time"] + seconds:
                time.sleep(1.0)
                if run.poll() is not None:
                    raise RuntimeError(f"the run has ended with exit code {run.returncode}")
                found = read_jsonl(path) if (path := Path(folder, "run", "metrics.jsonl")).exists() else []
                lines = [line for line in found if line.get("cluster/nodes") == nodes]
                sending = [line["time"] for line in lines if all(line.get(f"cluster/node-{k}/SPS") for k in range(nodes))]
                if begin is None and sending and sending[-1] > sending[0] + WARM_UP:
                    begin = len(lines) - 1, carried(machines)
            change = carried(machines) - begin[1]
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)
    first, *counted = lines[begin[0] :]
    steps = counted[-1]["global_step"] - first["global_step"]
    rate = steps / (counted[-1]["time"] - first["time"])
    row = {"nodes": nodes, "steps/s": round(rate, 1), "cpu": round(float(np.mean([line["system/cpu"] for line in lines])), 2)}
    if not machines:
        return row

    def of_nodes(name: str) -> float:
        return float(np.nanmean([line.get(f"cluster/node-{k}/{name}", np.nan) for line in counted for k in range(nodes)]))

    sent, received, node = map(float, change / steps)
    return row | {
        "bytes per step": round(of_nodes("bytes_per_step"), 1), "sent": round(sent, 1), "received": round(received, 1),
        "receiver us per step": round(1e6 * of_nodes("receiver_cores") / of_nodes("SPS"), 1),
        "node us per step": round(1e6 * node, 1),
    }  # fmt: skip


def carried(machines: list[Machine]) -> np.ndarray:
    """Bytes that the links of all of them have sent and received, and processor time of their processes (seconds)."""
    total = np.zeros(3)
    for machine in machines:
        traffic = machine.traffic()
        total += traffic["sent"], traffic["received"], sum(sum(process.cpu_times()[:2]) for process in machine.processes())
    return total


def measure_scaling(counts: list[int], seconds: float, apart: bool) -> list[dict[str, Any]]:
    """A row for each number of nodes, with its steps per second as a share of so many times those of the first."""
    rows: list[dict[str, Any]] = []
    for count in counts:
        row = scaling(count, seconds, apart)
        one = (rows[0] if rows else row)["steps/s"] / counts[0]
        rows.append(row | {"of linear": round(row["steps/s"] / (count * one), 3)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--rollout", type=int, nargs="*", default=[20, 80])
    parser.add_argument("--trajectories", type=int, default=200)
    parser.add_argument("--samples", action="store_true", help="batches from shards of a replay instead of trajectories")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--scaling", type=int, nargs="*", help="numbers of nodes; without one 1 2 4 8")
    parser.add_argument("--namespaces", action="store_true", help="of --scaling: the learner and each node in one of its own")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=100, help="of the plan")
    parser.add_argument("--rate", type=float, default=2500.0, help="of the plan: steps per second of each node")
    parser.add_argument("--link", type=float, default=10.0, help="of the plan: Gbit/s of the learner's machine")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.scaling is not None:
        if args.namespaces and lacks():
            print(f"Not measured: {lacks()}")
            return
        rows = measure_scaling(args.scaling or [1, 2, 4, 8], args.seconds, args.namespaces)
        if args.json:
            summary.write(args.json, {"machine": summary.machine(), "scaling": rows})
        return
    env, rows = f"atari/{args.game}", []
    with using_threads(1):
        if args.samples:
            for compression in ("none", "lz4"):
                rows.append(measure_samples(env, compression, args.batches))
                print(rows[-1], flush=True)
            if args.json:
                summary.write(args.json, {"machine": summary.machine(), "samples": rows})
            return
        for rollout in args.rollout:
            for compression in ("none", "lz4"):
                rows.append(measure(env, rollout, compression, args.trajectories))
                print(rows[-1], flush=True)
        weights = measure_weights(env, 200)
        print(weights, flush=True)
    plans = [plan(row, weights, args.nodes, args.rate, args.link) for row in rows[-2:]]
    print(*plans, sep="\n")
    if args.json:
        summary.write(args.json, {"machine": summary.machine(), "rows": rows, "weights": weights, "plan": plans})


if __name__ == "__main__":
    main()
