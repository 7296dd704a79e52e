"""The placement of a run whose sampling is elsewhere: what `train` and the learner see of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import Any

from headrace.cluster import protocol
from headrace.cluster.engines import Engine, make_engine
from headrace.cluster.membership import Membership
from headrace.cluster.protocol import Link
from headrace.cluster.receiver import receiver_main
from headrace.cluster.shapes import whole, workers_of
from headrace.cluster.shard import SUMMARY, make_codec
from headrace.cluster.shard_table import DRAWS, ShardTable
from headrace.cluster.sharded_replay import ShardedReplay
from headrace.cluster.shared import Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.cluster.user_code import pack
from headrace.config import Config, to_dict
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.description import spec_to_json
from headrace.experience.replay.buffer import LearnerReplay
from headrace.experience.replay.layout import replay_layout
from headrace.runs.messages import Message
from headrace.sampling.match_protocols import Members
from headrace.sampling.placements.base import Learn, RunFailed
from headrace.sampling.placements.processes import Main, ProcessPlacement
from headrace.sampling.run_memory import MakeAgent
from headrace.sampling.worker_process import Role
from headrace.transport.streams import Endpoint

END_TIMEOUT = 15.0
"""Seconds that nodes have to end by themselves."""
WAITING_INTERVAL = 15.0
"""Seconds between two lines about nodes that are missing."""


class Cluster(ProcessPlacement):
    """Receivers in the place of rollout workers, one for each node; nodes that `cluster.engine` starts. See `Placement`.

    Raises `ConfigError` if it cannot listen or the engine cannot be used.
    """

    def __init__(self, config: Config, spec: EnvSpec, make_agent: MakeAgent, members: Members | None = None):
        self.nodes = config.cluster.most_nodes
        self._given = config
        self._engine: Engine | None = make_engine(config)
        self._listen, self._own = self._engine.listen, self._engine.own
        self._shared = Shared(self.nodes, self._listen, self._own)
        self.trajectory_fields = SUMMARY if config.replay_shards else None
        self._membership: Membership | None = None
        super().__init__(whole(config), spec, make_agent, members)
        self.rollout_workers = range(self.nodes)
        self.role_names = {"rollout": "receiver of node"}
        self._code = pack(config) if self._engine.sends_code else b""
        # refuses what is too large, before anything is started
        TrajectoryCodec(self.memory.policies[0].trajectories, spec.frame_stack, config.cluster.compression)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": None, "_membership": None, "_shared": None, "_code": b""}

    def make_replay(self, config: Config, core_width: int) -> LearnerReplay:
        if config.replay_shards is None:
            return super().make_replay(config, core_width)
        layout, fields = replay_layout(config, self.spec, core_width, 1)
        codec, batch = make_codec(config, fields), config.learning.batch_size
        batches = config.replay.prefetch + 1 + DRAWS  # that may have been given out or asked for
        return ShardedReplay(layout, fields, ShardTable(self.nodes, batch, batches * batch, codec.largest), codec)

    def workers(self) -> dict[Role, tuple[range, Main]]:
        return {"rollout": (self.rollout_workers, partial(receiver_main, self._shared))}

    def start(self, learn: Learn, main: Main | None = None) -> None:
        assert self._engine is not None
        self._began, self._waiting = monotonic(), monotonic()
        super().start(learn, main)
        endpoint = Endpoint(protocol.MEMBERSHIP, self._listen, self._own, 1 << 24)
        welcome = {"config": to_dict(self._given), "spec": spec_to_json(self.spec)}
        self._membership = Membership(endpoint, self._shared, self.memory.control, self._rows, welcome, self._code)
        address = f"{self._listen.rpartition(':')[0]}:{self._membership.port}"
        self._engine.start(Link(address, self._own, self._given.cluster.wait))

    def _rows(self, role: str, node: int) -> slice:
        if role == "rollout":
            workers = workers_of(node, self.config)
            return slice(workers.start, workers.stop, workers.step)
        each = self._given.sampling.num_policy_workers
        return slice(node * each, (node + 1) * each)

    def messages(self, timeout: float) -> Iterator[Message]:
        assert self._membership is not None
        assert self._engine is not None
        for message in super().messages(timeout):
            if message.kind == "metrics":
                message = message._replace(content={**message.content, **self._membership.metrics()})
            yield message
        yield from self._noticed()
        if self._membership.failures:
            raise RunFailed("\n".join(self._membership.failures))
        self._membership.notices += self._engine.look()
        self._check_waiting()

    def _noticed(self) -> Iterator[Message]:
        membership = self._membership
        assert membership is not None
        while membership.notices:
            yield Message("message", membership.notices.popleft())
        self.restarts, membership.restarts = self.restarts + membership.restarts, 0

    def _check_waiting(self) -> None:
        """Once a while say that too few nodes are there. Raises `RunFailed` if that is so for too long at the start."""
        cluster, membership = self._given.cluster, self._membership
        assert membership is not None
        assert self._engine is not None
        here, least, now = len(membership.nodes), cluster.node_range[0], monotonic()
        if here >= least:
            self._began = -1.0
        elif self._began >= 0 and now > self._began + cluster.wait:
            raise RunFailed(
                f"{here} of at least {least} sampling nodes are there after {cluster.wait:.0f} s (cluster.wait): "
                f"{self._engine.missing(here)}"
            )
        if here < least and now > self._waiting + WAITING_INTERVAL:
            self._waiting = now
            membership.notices.append(f"Waiting for sampling nodes: {here} of {least} are there. {self._engine.missing(here)}")

    def stop(self) -> Iterator[Message]:
        if self._membership is not None:
            self._membership.end()
        yield from super().stop()
        if self._engine is not None:
            self._engine.stop(END_TIMEOUT)
        if self._membership is not None:
            yield from self._noticed()

    def kill(self) -> None:
        if self._membership is not None:
            self._membership.end()
            self._membership.close()
        super().kill()
        if self._engine is not None:
            self._engine.kill()
