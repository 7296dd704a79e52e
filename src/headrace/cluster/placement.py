"""The placement of a run whose sampling is elsewhere: what `train` and the learner see of a cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from headrace.cluster import protocol
from headrace.cluster.engines import make_engine
from headrace.cluster.joining import Lost
from headrace.cluster.membership import Membership
from headrace.cluster.protocol import Link
from headrace.cluster.rank import Joined, free_port, learner_of_rank, place_of
from headrace.cluster.receiver import receiver_main
from headrace.cluster.shapes import nodes_of, whole, workers_of
from headrace.cluster.shard import SUMMARY, make_codec
from headrace.cluster.shard_table import DRAWS, ShardTable
from headrace.cluster.sharded_replay import ShardedReplay
from headrace.cluster.shared import Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.cluster.user_code import pack
from headrace.config import Config, ConfigError, to_dict
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
from headrace.transport.credentials import Credentials
from headrace.transport.messages import HEADER, LARGEST_MESSAGE
from headrace.transport.streams import Endpoint

REPORT_INTERVAL = 1.0  # seconds between two reports of a learner rank to the first
END_TIMEOUT = 15.0  # seconds that nodes have to end by themselves
NOTICE_TIMEOUT = 5.0
"""Seconds from the loss of a rank in which learners notice it where the connections between them were closed."""
WAITING_INTERVAL, REMINDING_INTERVAL = 15.0, 600.0
"""Seconds between two lines about nodes that are missing: while the run waits for them, and while it goes on without them."""


class Receivers(ProcessPlacement):
    """A learner rank of a cluster: receivers in the place of rollout workers, one for each of its nodes. See `Placement`. A
    learner that is lost starts again here, with those of the other ranks.

    Args:
        rank: this rank; it listens at the address `listen`, with its `own` credentials.
    """

    def __init__(
        self, config: Config, spec: EnvSpec, agent: MakeAgent, rank: int, listen: str, own: Credentials,
        members: Members | None = None,
    ) -> None:  # fmt: skip
        self.nodes, self._given, self._listen, self._own = config.cluster.most_nodes, config, listen, own
        self._shared = Shared(self.nodes, listen, own, config.cluster.learners)
        self._place: dict[str, str] = {}  # environment variables that place this rank's learner among the others
        self._rank_lost = 0.0
        """When another rank was lost (perf_counter); 0 if this rank's learner cannot wait for one any more."""
        self.trajectory_fields = SUMMARY if config.replay_shards else None
        super().__init__(whole(config), spec, agent, members)
        self.rollout_workers = nodes_of(rank, config)
        self.role_names = {"rollout": "receiver of node"}
        # refuses what is too large, before anything is started
        for policy in self.memory.policies[: self.memory.learners]:
            TrajectoryCodec(policy.trajectories, spec.frame_stack, config.cluster.compression)
            if (nbytes := policy.weights.nbytes + HEADER.size) > LARGEST_MESSAGE:
                raise ConfigError(
                    f"weights of {nbytes / 2**20:,.1f} MiB are too large to be sent to nodes ({LARGEST_MESSAGE >> 20} MiB): "
                    "use a smaller network, or learn without a cluster"
                )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_shared": None}

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
        super().start(learn, main or partial(learner_of_rank, self._place))

    def messages(self, timeout: float) -> Iterator[Message]:
        yield from super().messages(timeout)
        if self.ranks_here < self._given.cluster.learners:
            self.waited = perf_counter()
        if self._rank_lost and perf_counter() > self._rank_lost + NOTICE_TIMEOUT:
            for child in self._supervisor.children:
                if child.role == "learner" and child.started < self._rank_lost and not child.killed:
                    child.kill("it waits for a rank that is gone")
            self._rank_lost = 0.0

    @property
    @abstractmethod
    def ranks_here(self) -> int:
        """How many learner ranks take part now."""

    @property
    def waits_for_ranks(self) -> bool:
        """Whether the learner has not connected to the learners of the other ranks yet; until then it does not notice that the
        run ends."""
        return self._given.cluster.learners > 1 and not self.memory.control.heartbeat("learner", 0)


class Cluster(Receivers):
    """The first learner rank, and members that `cluster.engine` starts: other ranks, sampling nodes.

    Raises `ConfigError` if it cannot listen or the engine cannot be used.
    """

    def __init__(self, config: Config, spec: EnvSpec, make_agent: MakeAgent, members: Members | None = None):
        self._engine = make_engine(config)
        self._membership: Membership | None = None
        self._restarts_elsewhere = 0  # what `restarts` has of `Membership.restarts`
        try:
            super().__init__(config, spec, make_agent, 0, self._engine.listen, self._engine.own, members)
            self._code = pack(config) if self._engine.sends_code else b""
        except BaseException:
            self._engine.kill()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": None, "_membership": None, "_code": b""}

    def start(self, learn: Learn, main: Main | None = None) -> None:
        self._began, self._waiting = monotonic(), monotonic()
        host, _, port = self._listen.rpartition(":")
        store = 0  # port where learner ranks meet
        if (learners := self._given.cluster.learners) > 1:
            store = int(port) + self.nodes + 1 if int(port) else free_port(host)
            self._place = place_of(0, learners, f"{host}:{store}", self._engine.alone, self._engine.host)
        super().start(learn, main)
        endpoint = Endpoint(protocol.MEMBERSHIP, self._listen, self._own, 1 << 24)
        welcome: dict[str, Any] = {"config": to_dict(self._given), "spec": spec_to_json(self.spec)}
        welcome |= {"store": store, "alone": self._engine.alone}
        self._membership = Membership(endpoint, self._shared, self.memory.control, self._rows, welcome, self._code)
        address = f"{self._listen.rpartition(':')[0]}:{self._membership.port}"
        self._engine.start(Link(address, self._own, self._given.cluster.wait))

    def _rows(self, role: str, node: int) -> list[int]:
        if role == "rollout":
            return list(workers_of(node, self.config))
        each, of_policy = self._given.sampling.num_policy_workers, self.config.sampling.num_policy_workers
        return [p * of_policy + node * each + i for p in range(self.memory.learners) for i in range(each)]

    @property
    def ranks_here(self) -> int:
        assert self._membership is not None
        return len(self._membership.ranks) + 1

    def messages(self, timeout: float) -> Iterator[Message]:
        assert self._membership is not None
        for message in super().messages(timeout):
            if message.kind == "metrics":
                message = message._replace(content={**message.content, **self._membership.metrics(message.policy)})
            yield message
        yield from self._noticed(self._membership)
        if self._membership.failures:
            raise RunFailed("\n".join(self._membership.failures))
        for child in self._supervisor.children:
            if child.role == "learner":
                self._membership.begin_again(child.started)
        self._membership.notices += self._engine.look()
        self._check_waiting(self._membership)

    def _noticed(self, membership: Membership) -> Iterator[Message]:
        self._rank_lost, membership.rank_lost = membership.rank_lost or self._rank_lost, 0.0
        while membership.notices:
            yield Message("message", membership.notices.popleft())
        self.restarts += membership.restarts - self._restarts_elsewhere  # the supervisor counts those of this machine
        self._restarts_elsewhere = membership.restarts

    def _check_waiting(self, membership: Membership) -> None:
        """Once a while say that members are missing. Raises `RunFailed` if that is so for too long at the start."""
        cluster, now = self._given.cluster, monotonic()
        here, least = len(membership.nodes), cluster.node_range[0]
        ranks, missing = self.ranks_here, self._engine.missing(here)
        of_ranks = f"{ranks} of {cluster.learners} learner ranks, " if cluster.learners > 1 else ""
        if complete := here >= least and ranks == cluster.learners:
            self._began = -1.0
        elif self._began >= 0 and now > self._began + cluster.wait:
            there = f"{of_ranks}{here} of at least {least} sampling nodes are there"
            raise RunFailed(f"{there} after {cluster.wait:.0f} s (cluster.wait): {missing}")
        waits = self._began >= 0 or here == 0 or ranks < cluster.learners
        if not complete and now > self._waiting + (WAITING_INTERVAL if waits else REMINDING_INTERVAL):
            self._waiting = now
            what = "Waiting for sampling nodes" if waits else "Training goes on without all sampling nodes"
            membership.notices.append(f"{what}: {of_ranks}{here} of {least} are there: {missing}")

    def stop(self) -> Iterator[Message]:
        if self._membership is not None:
            self._membership.end()
        if self.waits_for_ranks:
            super().kill()  # it has nothing to save
        yield from super().stop()
        self._engine.stop(END_TIMEOUT)
        if self._membership is not None:
            yield from self._noticed(self._membership)

    def kill(self) -> None:
        if self._membership is not None:
            self._membership.end()
            self._membership.close()
        super().kill()
        self._engine.kill()


class LaterRank(Receivers):
    """A learner rank other than the first. This process has joined the run as that rank (`joined`)."""

    def __init__(self, config: Config, spec: EnvSpec, make_agent: MakeAgent, joined: Joined):
        self._joined, place = joined, joined.member.place
        own = joined.link.own
        super().__init__(config, spec, make_agent, joined.rank, joined.listen, own)
        for k in self.rollout_workers:  # where nodes look for them, if this rank takes the place of one that was lost
            self._shared.port.store(k, place["ports"][k])
        self._note_generations(place["generations"])
        self._reported, self._ranks = 0.0, 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_joined": None}

    def start(self, learn: Learn, main: Main | None = None) -> None:
        self._place = self._joined.variables
        super().start(learn, main)

    @property
    def ranks_here(self) -> int:
        return self._ranks

    def _note_generations(self, generations: list[int]) -> None:
        for k in self.rollout_workers:
            self._shared.generation.store(k, generations[k])

    def messages(self, timeout: float) -> Iterator[Message]:
        for message in super().messages(timeout):
            if message.kind == "message":
                self._joined.member.send("message", message.content)
            elif message.kind == "done":
                self._joined.member.send("done", None)
            yield message
        while (received := self._joined.member.next(0)) is not None:
            kind, content = received
            if kind == "generations":
                self._note_generations(content)
            elif kind == "ranks":
                self._ranks = int(content)
            elif kind == "rank lost":
                self._rank_lost = perf_counter()
            elif kind == "end":
                self.memory.stop()  # the learner ends with those of the other ranks
                self._joined.ended = True
            elif kind == "lost":
                raise Lost(f"the first learner rank {self._joined.link.address} is lost")
        there = any(child.role == "learner" for child in self._supervisor.children)
        if self._joined.ended and (self.waits_for_ranks or not there):
            raise KeyboardInterrupt  # this learner cannot take part in the end of the others
        if monotonic() > self._reported + REPORT_INTERVAL:
            self._reported = monotonic()
            ports = [self._shared.port.load(k) for k in self.rollout_workers]
            counts = self._shared.counts[list(self.rollout_workers)].tolist()
            self._joined.member.send("receivers", {"host": self._joined.host, "ports": ports, "counts": counts})
