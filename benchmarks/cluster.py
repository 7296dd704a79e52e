"""What it costs to send trajectories from a sampling node to the learner: processor time per step on both sides, and bytes.

    python benchmarks/cluster.py [--game breakout] [--trajectories 200] [--samples] [--json FILE]

A sender with the codec and the stream of a node's uplink, and a receiver process of the learner's side, over loopback. What is
sent are trajectories of a real game under random actions (84x84 frames, stacks of four), written once. No environment is stepped
meanwhile and nothing is learned: everything that is measured is the way of the data. Processor time is what the kernel counts for
each process, whoever else uses the machine; the rate is not, and says little on a busy one.

`--samples` measures batches of Ape-X from two shards of a replay instead, everything but the stream itself: what a node needs to
draw and write them, a receiver to check and store them, and the learner to stack the frames in a batch.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import suppress
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
from headrace.sampling.placements import make_placement
from headrace.sampling.placements.processes import ProcessPlacement
from headrace.shm.primitives import Closed
from headrace.transport.credentials import Credentials
from headrace.transport.messages import HEADER, header
from headrace.transport.streams import Caller


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
        self.codec, self.credits = codec, threading.Semaphore(0)
        self.stream = Caller(shared.endpoint(0), protocol.FLAGS).open()
        hello = {"generation": shared.generation.load(0), "arrays": codec.schema(), "weights": weights}
        self.stream.send(protocol.to_bytes("hello", hello))
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        messages = iter(self.stream)
        next(messages)
        self.stream.send(HEADER.pack(WANT, 0))
        for message in messages:
            if header(message)[0] == CREDIT:
                self.credits.release()

    def send(self, slot: int) -> None:
        """One trajectory, when there is a credit."""
        self.credits.acquire()
        self.stream.send(self.codec.encode(slot))


def measure(env: str, rollout: int, compression: str, trajectories: int) -> dict[str, Any]:
    """One row of the table."""
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
    for i in range(10):
        sender.send(slots[i % len(slots)])
    time.sleep(1.0)
    before, cpu, began = shared.counts[0].copy(), time.process_time(), time.perf_counter()
    for i in range(trajectories):
        sender.send(slots[i % len(slots)])
    cpu = time.process_time() - cpu
    seconds = time.perf_counter() - began
    time.sleep(1.0)
    counted = dict(zip(COUNTS, shared.counts[0] - before, strict=True))
    placement.memory.stop()
    placement.kill()
    row = {
        "env": env, "rollout": rollout, "compression": compression, "steps": counted["steps"],
        "bytes per step": counted["bytes"] / counted["steps"],
        "receiver us per step": 1e6 * counted["seconds"] / counted["steps"],
        "sender us per step": 1e6 * cpu / counted["steps"],
        "steps/s": counted["steps"] / seconds,
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
    into, learner = replay.empty_batch(batch, channels_last=True), 0.0
    for number in range(batches + 5):
        if number == 5:  # what is reached for the first time is not counted
            learner, before = 0.0, [(w.bytes, w.node_seconds, w.receiver_seconds) for w in wires]
        began = time.thread_time()
        assert replay.sample(batch, into) is not None
        learner += time.thread_time() - began
        replay.update(into.keys, np.random.default_rng(number).exponential(size=batch).astype(np.float32))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--rollout", type=int, nargs="*", default=[20, 80])
    parser.add_argument("--trajectories", type=int, default=200)
    parser.add_argument("--samples", action="store_true", help="batches from shards of a replay instead of trajectories")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    with using_threads(1):
        for compression in ("none", "lz4"):
            for rollout in args.rollout if not args.samples else ():
                rows.append(measure(f"atari/{args.game}", rollout, compression, args.trajectories))
                print(rows[-1], flush=True)
            if args.samples:
                rows.append(measure_samples(f"atari/{args.game}", compression, args.batches))
                print(rows[-1], flush=True)
    if args.json:
        summary.write(args.json, {"machine": summary.machine(), "rows": rows})


if __name__ == "__main__":
    main()
