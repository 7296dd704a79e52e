"""Who is who in a cluster: workers' numbers over all nodes, sizes on both sides, roles of machines, settings that are refused."""

from __future__ import annotations

import errno
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster import protocol, roles
from headrace.cluster.engines import ray_engine, static_engine
from headrace.cluster.engines.member_process import INTERRUPTED
from headrace.cluster.engines.static_engine import StaticEngine
from headrace.cluster.protocol import Link
from headrace.cluster.roles import Machine, first_host, machine_of
from headrace.cluster.shapes import of_node, whole, workers_of
from headrace.config import Config, ConfigError, override
from headrace.config.errors import RANK_LOST
from headrace.make_config import OLDEST, check_config, make_config
from headrace.sampling.placements.base import RunFailed
from headrace.transport.credentials import Credentials
from headrace.transport.messages import ProtocolError, Refused


def cluster_config(nodes: int | str = 3, **settings: Any) -> Config:
    name = settings.pop("learning.algorithm", "appo")
    return make_config("gym/CartPole-v1", name, **{"cluster.nodes": nodes, "cluster.engine": "static", **settings})


SHARDED = {"learning.algorithm": "apex-dqn", "replay.shards": "node"}


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_worker_is_on_one_node(nodes: int, workers: int) -> None:
    config = cluster_config(nodes, **{"sampling.num_workers": workers})
    all_nodes, node = whole(config), of_node(config)
    assert all_nodes.num_envs == node.num_envs == nodes * config.num_envs
    numbers = [worker for k in range(nodes) for worker in workers_of(k, node)]
    assert sorted(numbers) == list(range(all_nodes.sampling.num_workers))
    assert {len(workers_of(k, node)) for k in range(nodes)} == {workers}
    # Of every range of numbers, such as the last quarter, nodes have an even share.
    last = range(all_nodes.sampling.num_workers // 2, all_nodes.sampling.num_workers)
    shares = [len(set(last) & set(workers_of(k, node))) for k in range(nodes)]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(("workers", "groups", "policies"), [(1, 2, 2), (2, 2, 4), (3, 2, 5), (4, 1, 3)])
def test_every_policy_acts_on_every_node(nodes: int, workers: int, groups: int, policies: int) -> None:
    sizes = {"sampling.num_workers": workers, "sampling.num_groups": groups, "population.size": policies}
    node = of_node(cluster_config(nodes, **sizes))
    turns = [node.turn_of_group(group) for group in range(node.total_groups)]
    assert sorted(turns) == list(range(node.total_groups))
    for k in range(nodes):
        own = [node.policy_of_group(worker * groups + g) for worker in workers_of(k, node) for g in range(groups)]
        counts = [own.count(p) for p in range(policies)]
        assert min(counts) > 0
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("algorithm", ["impala", "a2c"])
@pytest.mark.parametrize("workers", [1, 2, 4, 16])
@pytest.mark.parametrize(
    ("nodes", "learners", "window"), [(None, 1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 3), (8, 2, 1), (100, 1, 1)]
)
def test_without_a_clip_no_sample_gets_old(algorithm: str, workers: int, nodes: int | None, learners: int, window: int) -> None:
    """All slots that there are, those under way from nodes among them, are few batches; with the settings that are usual, one
    trajectory is a batch."""
    sizes = {"cluster.learners": learners, "cluster.window": window, "sampling.num_workers": workers}
    config = make_config("gym/CartPole-v1", algorithm, **({"cluster.nodes": nodes} if nodes else {}), **sizes)
    check_config(config)
    slots = config.num_slots
    if nodes:
        slots = whole(config).num_slots + nodes // learners * (of_node(config).num_slots + window)
    assert slots <= OLDEST * config.slots_per_batch
    if nodes is None and workers <= 2:
        assert config.slots_per_batch == 1
    assert make_config("gym/CartPole-v1", "appo", **sizes).learning.batch_size == 512  # with a clip: as it was


@pytest.mark.parametrize("batches", [1, 3, 100])
@pytest.mark.parametrize("nodes", [1, 4])
def test_slots_of_both_sides_are_those_of_one_machine(nodes: int, batches: int) -> None:
    """However many nodes there are, as many trajectories wait for the learner as on one machine, and each lane fills one."""
    settings = {"learning.num_minibatches": 1, "sampling.num_workers": 4, "sampling.envs_per_worker": 4, "sampling.rollout": 10}
    config = cluster_config(nodes, **settings, **{"learning.batch_size": 20 * batches})
    one_machine = override(config, **{"cluster.nodes": None, "sampling.num_workers": 4 * nodes})
    assert one_machine.slots_per_batch == batches
    assert whole(config).num_slots + nodes * of_node(config).num_slots == one_machine.num_slots
    assert of_node(config).num_slots == config.most_lanes
    assert of_node(config).min_request_groups == config.min_request_groups  # and not a third of all nodes' groups


def test_with_replay_every_receiver_may_write_at_a_time() -> None:
    config = cluster_config(8, **{"learning.algorithm": "apex-dqn"})
    assert (config.slots_per_batch, whole(config).num_slots) == (1, 8)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling.placement": "serial"}, "serial is one process"),
        ({"sampling.placement": "device", "sampling.num_groups": 1, "sampling.rollout": 32}, "device is one process"),
        ({"cluster.nodes": "4-2"}, r"cluster.nodes is '4-2'; it must be a number from 1 to 1024, two with the larger one last"),
        ({"cluster.nodes": "many"}, "cluster.nodes is 'many'"),
        ({"cluster.nodes": "0-2"}, "cluster.nodes is '0-2'"),
        ({"cluster.nodes": 0}, "cluster.nodes is 0; it must be at least 1"),
        ({"cluster.listen": "0.0.0.0"}, "cluster.listen is '0.0.0.0'; give HOST:PORT, such as 0.0.0.0:7780"),
        ({"cluster.listen": "unix:/tmp/x"}, "cluster.listen is 'unix:/tmp/x'; give HOST:PORT"),
        ({"cluster.listen": "here:65533"}, "cluster.listen is here:65533; the 3 ports that follow are needed, too"),
        ({"population.size": 2, "cluster.learners": 2}, "learn one policy together; population.size is 2"),
        ({"envs.num_agents": 2, "cluster.learners": 2}, "standings of matches are those of one learner"),
        ({"population.size": 2, **SHARDED}, "serve one learner; population.size is 2"),
        ({"learning.num_devices": 2}, r"given by cluster.learners; there are 2 ranks \(learning.num_devices\)"),
        ({"cluster.learners": 2, **SHARDED}, "serve one learner; cluster.learners is 2"),
        ({"cluster.learners": 4}, r"each of the 4 learner ranks \(cluster.learners\) needs a sampling node; .* may be 3"),
        ({"cluster.learners": 3, "cluster.nodes": "2-8"}, "cluster.nodes may be 2"),
        ({"cluster.learners": 2, "cluster.nodes": None}, "needs a cluster .cluster.nodes."),
        ({"replay.checkpoint_contents": True, **SHARDED}, r"shards on nodes \(replay.shards\) are not saved"),
        ({"cluster.nodes": None, **SHARDED}, "there are none without cluster.nodes"),
        ({"cluster.tls_cert": "cert.pem", "cluster.tls_key": "key.pem"}, "belong together"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_the_reason(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_config(cluster_config(**settings))


def test_an_environment_that_prefers_one_process_is_sampled_by_workers() -> None:
    config = make_config("atari/pong", **{"cluster.nodes": 2, "cluster.engine": "static", "learning.device": "cpu"})
    assert config.sampling.placement == "served"
    check_config(config)


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "first"}
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "node[07-09]"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n"}


def test_machines_from_the_variables_of_launchers() -> None:
    assert machine_of({}) == Machine()
    assert machine_of(TORCHRUN) == Machine(1, 4, "first", "torchrun")
    assert machine_of(SLURM) == Machine(2, 3, "node07", "Slurm")
    assert machine_of(SKYPILOT) == Machine(0, 2, "10.0.0.1", "SkyPilot")
    for wrong, words in (
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, "--nproc-per-node 1"),
        (SLURM | {"SLURM_LOCALID": "1"}, "--ntasks-per-node 1"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "do not say where the first machine is"),
        (TORCHRUN | {"RANK": "4"}, "RANK is 4 and WORLD_SIZE 4: .* from 0 to WORLD_SIZE - 1"),
        (SLURM | {"SLURM_PROCID": "-1"}, "SLURM_PROCID is -1"),
        (SKYPILOT | {"SKYPILOT_NUM_NODES": "two"}, "SKYPILOT_NUM_NODES two"),
    ):
        with pytest.raises(ConfigError, match=words):
            machine_of(wrong)


def test_who_is_missing_is_said_of_machines_and_of_processes_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "a-token-of-tests")
    for machines, text in (
        (1, "this machine starts 3 of them"),
        (3, "this machine starts 1 of them; the same command must run on 2 other machines"),
        (4, "the same command must run on 3 other machines"),
    ):
        monkeypatch.setattr(roles, "machine", lambda machines=machines: Machine(0, machines, "here", "Slurm"))
        assert StaticEngine(cluster_config(3)).missing(0) == text


def test_machines_have_a_token_in_common_and_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)
    monkeypatch.setattr(roles, "machine", lambda: Machine(0, 3, "here", "Slurm"))
    with pytest.raises(ConfigError, match="need a token that all of them have"):
        StaticEngine(cluster_config(2))
    with pytest.raises(ConfigError, match=r"Slurm has started 3 machines.* cluster.nodes is 1"):
        StaticEngine(cluster_config(1))
    monkeypatch.setenv("HEADRACE_TOKEN", "a-token-of-tests")
    assert StaticEngine(cluster_config(2)).listen == "0.0.0.0:7780"
    monkeypatch.setattr(roles, "machine", Machine)
    monkeypatch.delenv("HEADRACE_TOKEN")
    alone, other = StaticEngine(cluster_config(2)), StaticEngine(cluster_config(2))
    assert alone.listen == "127.0.0.1:0"
    assert alone.own.token != other.own.token
    assert alone.own.token not in repr(alone.own)


@pytest.mark.parametrize(("code", "goes_on"), [(-9, True), (INTERRUPTED, True), (RANK_LOST, True), (1, False), (2, False)])
def test_a_node_of_this_machine_that_somebody_has_ended_is_replaced(
    code: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "machine", Machine)
    made: list[Any] = []

    def start(*_: Any) -> Any:
        made.append(SimpleNamespace(exit_code=None, name="sampling node", end_reason=lambda: "its end", rank=0))
        return made[-1]

    monkeypatch.setattr(static_engine, "MemberProcess", start)
    engine = StaticEngine(cluster_config(2))
    engine.start(Link("127.0.0.1:7780", engine.own, 1.0))
    made[1].exit_code = code
    if goes_on:
        assert engine.look() == ["A sampling node of this machine has ended (its end); another one starts"]
        assert engine._members == [made[0], made[2]]
    else:
        with pytest.raises(RunFailed, match="its end"):
            engine.look()


def test_a_node_of_this_machine_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "machine", Machine)
    monkeypatch.setattr(static_engine, "START_AGAIN", 0.2)
    lost = SimpleNamespace(exit_code=-9, name="sampling node", end_reason=lambda: "its end", rank=0)
    tries: list[Any] = [lost, OSError(errno.EAGAIN, "no room"), another := SimpleNamespace(exit_code=None)]

    def start(*_: Any) -> Any:
        if isinstance(made := tries.pop(0), OSError):
            raise made
        return made

    monkeypatch.setattr(static_engine, "MemberProcess", start)
    engine = StaticEngine(cluster_config(1))
    engine.start(Link("127.0.0.1:7780", engine.own, 1.0))
    (text,) = engine.look()
    assert "(its end), and another one could not be started: no room" in text
    assert engine.look() == []
    time.sleep(0.3)
    assert engine.look() == ["A sampling node of this machine has ended (its end); another one starts"]
    assert engine._members == [another]


@pytest.mark.parametrize(("own", "listen"), [(True, "127.0.0.1:0"), (False, "10.0.0.1:0")])
def test_machines_that_come_to_a_ray_cluster_of_one_can_reach_the_learner(
    own: bool, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes to a cluster that the run has started."""
    context = SimpleNamespace(get_node_id=lambda: "this")
    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1" if own else "10.0.0.1")
    ray = SimpleNamespace(util=util, get_runtime_context=lambda: context)
    alive = [{"Alive": True, "NodeManagerAddress": "10.0.0.1"}]
    monkeypatch.setattr(ray_engine, "RayCluster", lambda *_: SimpleNamespace(ray=ray, alive=alive, own=own))
    engine = ray_engine.RayEngine(cluster_config("1-4", **{"cluster.engine": "ray"}))
    assert engine.listen == listen
    for own_host, address in (("0.0.0.0", listen[:-2]), ("[::]", listen[:-2]), ("10.0.0.7", "10.0.0.7"), ("host", "host")):
        engine.start(Link(f"{own_host}:7780", engine.own, 1.0))  # as `cluster.listen` says
        assert engine._link == Link(f"{address}:7780", engine.own, 1.0)


@pytest.mark.parametrize(
    ("nodes", "machines", "processes"), [(3, 1, 3), (3, 3, 1), ("2-4", 1, 2), ("2-4", 2, 1), ("1-4", 3, 0), ("auto", 1, 1)]
)
def test_the_first_machine_is_the_nodes_that_are_lacking(
    nodes: int | str, machines: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "machine", lambda: Machine(0, machines, "here", "Slurm"))
    monkeypatch.setattr(static_engine, "MemberProcess", lambda link, imports, rank: link)
    monkeypatch.setenv("HEADRACE_TOKEN", "a-token-of-tests")
    engine = StaticEngine(cluster_config(nodes))
    engine.start(Link("0.0.0.0:7780", engine.own, 1.0))
    assert [link.address for link in engine._members] == ["127.0.0.1:7780"] * processes
    engine.own = Credentials("a-token-of-tests", ca="cert.pem")
    engine.start(Link("0.0.0.0:7780", engine.own, 1.0))
    address = "here:7780" if machines > 1 else "127.0.0.1:7780"  # the certificate is for the name that other machines know
    assert [link.address for link in engine._members] == [address] * processes


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("node7", "node7"), ("node7,node9", "node7"), ("n[001-004,9],x", "n001"), ("a[3]-ib,b", "a3-ib"), ("g-a,g[1-2]", "g-a")],
)
def test_the_first_host_of_a_slurm_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_other_versions_are_named() -> None:
    own = protocol.versions()
    protocol.check_versions(own, "there")
    with pytest.raises(Refused, match=r"there has other versions .*python 2\.7 instead of 3\."):
        protocol.check_versions(own | {"python": "2.7"}, "there")
    with pytest.raises(Refused, match=r"headrace 99 instead of"):
        protocol.check_versions(own | {"headrace": "99"}, "there")
    with pytest.raises(Refused, match="protocol None instead of"):
        protocol.check_versions(None, "there")


def test_messages_that_are_none_of_the_protocol() -> None:
    assert protocol.from_bytes(protocol.to_bytes("hello", {"a": 1})) == ("hello", {"a": 1})
    for wrong in (b"", b"[]", b"{}", b'{"a": 1, "b": 2}', b"\xff"):
        with pytest.raises(ProtocolError):
            protocol.from_bytes(wrong)
    with pytest.raises(Refused, match="why"):
        protocol.from_bytes(protocol.to_bytes("refused", "why"))
