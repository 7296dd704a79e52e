"""A receiver and its node's streams: credits, generations, weights. Real streams over loopback, in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.cluster import protocol
from headrace.cluster.membership import Membership
from headrace.cluster.protocol import CREDIT, WANT, WEIGHTS
from headrace.cluster.receiver import Receiver
from headrace.cluster.shapes import whole
from headrace.cluster.shared import Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.envs import describe_run
from headrace.learning.algorithm import make_agent
from headrace.make_config import make_config
from headrace.runs.metrics import OF_NODE
from headrace.sampling.placements import make_placement
from headrace.transport.credentials import Credentials
from headrace.transport.messages import HEADER, LARGEST_MESSAGE, header
from headrace.transport.streams import Caller, Endpoint

OWN = Credentials(token="a-token-of-tests")
WINDOW = 2


def eventually(what: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return value


class Peer:
    """The node's side of a trajectory stream."""

    def __init__(self, shared: Shared, hello: dict[str, Any], own: Credentials = OWN):
        endpoint = replace(shared.endpoint(0), own=own)
        self.stream = Caller(endpoint, protocol.FLAGS).open()
        self.received: list[bytes] = []
        self.stream.send(protocol.to_bytes("hello", hello))
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        for message in self.stream:
            self.received.append(message)

    def kinds(self, kind: int) -> list[bytes]:
        return [message for message in self.received[1:] if header(message)[0] == kind]

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()


@pytest.fixture
def parts() -> Iterator[tuple[Any, Shared, dict[str, Any]]]:
    settings = {"cluster.nodes": 1, "cluster.engine": "static", "cluster.window": WINDOW, "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", "appo", **settings)
    placement = make_placement(whole(config), describe_run(config), make_agent)
    shared = Shared(1, "127.0.0.1:0", OWN)
    receiver = Receiver(placement, shared, 0)
    thread = threading.Thread(target=receiver.run)
    thread.start()
    policy = placement.memory.policies[0]
    codec = TrajectoryCodec(policy.trajectories, 1)
    shared.generation.store(0, 7)
    yield (
        placement,
        shared,
        {"policy": 0, "generation": 7, "arrays": codec.schema(), "weights": policy.weights.nbytes, "state": []},
    )
    placement.memory.stop()
    thread.join()
    receiver.close()


def trajectory(placement: Any, order: int) -> bytes:
    """A trajectory with the number `order` in every reward."""
    store = placement.memory.policies[0].trajectories
    slot = store.acquire(0, 1)
    store.arrays["reward"][slot] = order
    store.arrays["valid"][slot] = True
    store.order[slot] = order
    message = TrajectoryCodec(store, 1).encode(slot)
    store.put_back(slot, 0)
    return message


def test_trajectories_need_credits_and_arrive_in_slots(parts: Any) -> None:
    placement, shared, hello = parts
    store = placement.memory.policies[0].trajectories
    message = trajectory(placement, 5)
    peer = Peer(shared, hello)
    eventually(lambda: len(peer.kinds(CREDIT)) == WINDOW)
    time.sleep(0.1)
    assert len(peer.kinds(CREDIT)) == WINDOW
    peer.stream.send(message)
    slot = store.take(timeout=10)
    assert (store.arrays["reward"][slot] == 5).all()
    assert store.order[slot] == 5
    assert eventually(lambda: len(peer.kinds(CREDIT)) == WINDOW + 1)
    store.release(slot)
    # Nobody takes: slots run out, and with them the credits.
    for sent in range(1, store.num_slots + 1):
        eventually(lambda sent=sent: len(peer.kinds(CREDIT)) > sent)
        peer.stream.send(message)
    eventually(lambda: store.qsize() == store.num_slots)
    time.sleep(0.3)
    assert len(peer.kinds(CREDIT)) == 1 + store.num_slots
    peer.stream.send(message)  # without a credit
    eventually(lambda: peer.ended)


def test_an_old_generation_writes_no_more(parts: Any) -> None:
    placement, shared, hello = parts
    store = placement.memory.policies[0].trajectories
    message = trajectory(placement, 1)
    old = Peer(shared, hello)
    eventually(lambda: len(old.kinds(CREDIT)) == WINDOW)
    shared.generation.store(0, 8)
    old.stream.send(message)
    eventually(lambda: old.ended)
    assert store.take(timeout=0.2) is None
    late = Peer(shared, hello)
    eventually(lambda: late.ended)
    assert b"another node has this place" in late.received[0]
    new = Peer(shared, hello | {"generation": 8})
    eventually(lambda: len(new.kinds(CREDIT)) == WINDOW)  # the slots of the old one are used again
    new.stream.send(message)
    assert store.take(timeout=10) is not None


def test_weights_are_sent_when_wanted_and_skipped_in_between(parts: Any) -> None:
    placement, shared, hello = parts
    weights = placement.memory.policies[0].weights
    peer = Peer(shared, hello)
    content = np.zeros(weights.nbytes, np.uint8)
    weights.publish(content + 1, 11)
    time.sleep(0.1)
    assert not peer.kinds(WEIGHTS)  # not wanted yet
    peer.stream.send(HEADER.pack(WANT, 0))
    eventually(lambda: len(peer.kinds(WEIGHTS)) == 1)
    for version in (12, 13, 14):
        weights.publish(content + version, version)
    time.sleep(0.3)
    assert len(peer.kinds(WEIGHTS)) == 1
    peer.stream.send(HEADER.pack(WANT, 0))
    eventually(lambda: len(peer.kinds(WEIGHTS)) == 2)
    first, last = peer.kinds(WEIGHTS)
    assert (header(first)[1], set(first[8:])) == (11, {1})
    assert (header(last)[1], set(last[8:])) == (14, {14})


def test_other_arrays_and_other_tokens_are_refused(parts: Any) -> None:
    _, shared, hello = parts
    for wrong in (hello | {"arrays": []}, hello | {"weights": 1}, {}):
        peer = Peer(shared, wrong)
        eventually(lambda peer=peer: peer.ended)
        assert b"refused" in peer.received[0]
    stranger = Peer(shared, hello, Credentials(token="another-token"))
    eventually(lambda: stranger.ended)
    assert "token" in stranger.stream.ended


def test_membership_admits_as_many_nodes_as_there_are_places(parts: Any) -> None:
    placement, shared, _ = parts
    control = placement.memory.control
    endpoint = Endpoint(protocol.MEMBERSHIP, "127.0.0.1:0", OWN, LARGEST_MESSAGE)
    membership = Membership(endpoint, shared, control, lambda role, node: slice(None), {"config": {}}, b"")

    def dial(**hello: Any) -> tuple[str, Any, Any]:
        stream = Caller(replace(endpoint, address=f"127.0.0.1:{membership.port}"), protocol.FLAGS).open()
        stream.send(protocol.to_bytes("hello", {"host": "there", "versions": protocol.versions()} | hello))
        ((kind, content),) = json.loads(next(iter(stream))).items()
        return kind, content, stream

    kind, place, stream = dial()
    assert (kind, place["node"], place["generation"]) == ("welcome", 0, 8)
    assert place["port"] == shared.port.load(0)
    assert dial()[0] == "busy"
    assert dial(versions={})[0] == "refused"
    rows = {role: np.ones_like(clock) for role, clock in control.clocks.items() if role != "learner"}
    before = {role: clock.copy() for role, clock in control.clocks.items()}
    for restarts in (1, 3):
        clocks = {role: (restarts * row).tolist() for role, row in rows.items()}
        stream.send(protocol.to_bytes("status", {"clocks": clocks, "restarts": restarts}))
    eventually(lambda: membership.restarts == 3)
    for role in rows:  # what it has done is counted once, and heartbeats are not those of processes here
        change = np.delete(control.clocks[role] - before[role], -2, axis=1)
        assert (change == 3).all()
    found = membership.metrics()
    assert {f"cluster/node-0/{name}" for name in OF_NODE} | {"cluster/nodes"} == found.keys()
    stream.close()
    eventually(lambda: not membership.nodes)
    assert shared.generation.load(0) == 9
    assert dial()[1]["generation"] == 10
    membership.close()
