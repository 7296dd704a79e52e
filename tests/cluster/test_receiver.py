"""A receiver and its node's streams: credits, generations, weights. Real streams over loopback, in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.cluster import membership as membership_module
from headrace.cluster import protocol
from headrace.cluster.membership import Membership, Rank
from headrace.cluster.population_codec import ResultsCodec, StateCodec
from headrace.cluster.protocol import COUNTED, CREDIT, STATE, STATE_WRITTEN, VERSION, WANT, WEIGHTS, Link
from headrace.cluster.receiver import Receiver, _Session
from headrace.cluster.shapes import whole
from headrace.cluster.shared import COUNTS, Shared
from headrace.cluster.trajectory_codec import TrajectoryCodec
from headrace.cluster.uplink import Uplink
from headrace.config import ConfigError
from headrace.envs import describe_run
from headrace.envs.core.imports import import_files
from headrace.learning.algorithm import make_agent
from headrace.make_config import for_agents, make_config
from headrace.population.members import make_members
from headrace.runs.metrics import OF_NODE
from headrace.sampling.placements import make_placement
from headrace.shm.population import Standings
from headrace.shm.trajectory_store import TrajectoryStore
from headrace.transport.credentials import Credentials
from headrace.transport.messages import HEADER, LARGEST_MESSAGE, header
from headrace.transport.streams import Caller, Endpoint, Stream

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


STATIC = {"cluster.nodes": 1, "cluster.engine": "static", "cluster.window": WINDOW, "learning.device": "cpu"}


@contextmanager
def receiving(placement: Any, say: Callable[[str], None] = lambda text: None) -> Iterator[tuple[Shared, list[dict[str, Any]]]]:
    """The receiver of node 0, and for each policy what its uplink says first. `say`: see `Receiver`."""
    shared, hello = Shared(1, "127.0.0.1:0", OWN), []
    receiver = Receiver(placement, shared, 0, say)
    thread = threading.Thread(target=receiver.run)
    thread.start()
    shared.generation.store(0, 7)
    for p, policy in enumerate(placement.memory.policies[: placement.memory.learners]):
        arrays, state = TrajectoryCodec(policy.trajectories, 1).schema(), StateCodec(placement.memory, p).schema()
        hello.append({"policy": p, "generation": 7, "arrays": arrays, "weights": policy.weights.nbytes, "state": state})
    try:
        yield shared, hello
    finally:
        placement.memory.stop()
        thread.join()
        receiver.close()


@pytest.fixture
def parts() -> Iterator[tuple[Any, Shared, dict[str, Any]]]:
    config = make_config("gym/CartPole-v1", "appo", **STATIC)
    placement = make_placement(whole(config), describe_run(config), make_agent)
    with receiving(placement) as (shared, (hello,)):
        yield placement, shared, hello


def credits_of(peer: Peer) -> int:
    """All credits that it was given."""
    return sum(header(message)[1] for message in peer.kinds(CREDIT))


def trajectory(placement: Any, order: int) -> bytes:
    """A trajectory with the number `order` in every reward."""
    return trajectory_of(placement.memory.policies[0].trajectories, order)


def trajectory_of(store: TrajectoryStore, order: int = 0) -> bytes:
    slot = store.acquire(0, 1)
    store.arrays["reward"][slot] = order
    store.arrays["valid"][slot] = True
    store.order[slot] = order
    message = TrajectoryCodec(store, 1).encode(slot)
    store.put_back(slot, 0)
    return message


def trajectory_bytes(message: bytearray, order: int) -> bytes:
    """The same trajectory with another number."""
    HEADER.pack_into(message, 0, protocol.TRAJECTORY, order)
    return bytes(message)


def test_trajectories_need_credits_and_arrive_in_slots(parts: Any) -> None:
    placement, shared, hello = parts
    store = placement.memory.policies[0].trajectories
    message = trajectory(placement, 5)
    peer = Peer(shared, hello)
    eventually(lambda: credits_of(peer) == WINDOW)
    peer.stream.send(message)
    slot = store.take(timeout=10)
    assert (store.arrays["reward"][slot] == 5).all()
    assert store.order[slot] == 5
    assert eventually(lambda: credits_of(peer) == WINDOW + 1)
    store.release(slot)
    # Nobody takes: slots run out, and then the credits, since what was sent waits for a slot.
    for sent in range(2, store.num_slots + WINDOW + 2):
        eventually(lambda sent=sent: credits_of(peer) >= sent)
        peer.stream.send(trajectory_bytes(bytearray(message), sent))
    eventually(lambda: store.qsize() == store.num_slots)
    time.sleep(0.3)
    assert credits_of(peer) == 1 + store.num_slots + WINDOW
    # They are taken in the order in which they were sent, and every slot that becomes free is used.
    weights, content = placement.memory.policies[0].weights, np.zeros(placement.memory.policies[0].weights.nbytes, np.uint8)
    weights.publish(content, 1)
    peer.stream.send(HEADER.pack(WANT, 0))
    assert eventually(lambda: peer.kinds(WEIGHTS))  # a node that waits for a slot gets weights
    for sent in range(2, store.num_slots + WINDOW + 2):
        slot = store.take(timeout=10)
        assert store.order[slot] == sent
        store.release(slot)
    eventually(lambda: credits_of(peer) == 1 + store.num_slots + 2 * WINDOW)
    for sent in range(store.num_slots + WINDOW + 1):  # the last one is without a credit
        peer.stream.send(trajectory_bytes(bytearray(message), sent))
    eventually(lambda: peer.ended)


def test_no_slot_is_kept_for_a_node_that_sends_nothing_or_has_gone(parts: Any) -> None:
    placement, shared, hello = parts
    store, message = placement.memory.policies[0].trajectories, trajectory(placement, 1)
    peer = Peer(shared, hello)
    eventually(lambda: credits_of(peer) == WINDOW)
    for sent in range(store.num_slots + WINDOW):
        eventually(lambda sent=sent: credits_of(peer) > sent)
        peer.stream.send(message)
    eventually(lambda: store.qsize() == store.num_slots)
    peer.stream.close("gone")  # while trajectories of it wait
    for _ in range(store.num_slots):
        store.release(store.take(timeout=10))
    Peer(shared, hello)
    slots = [store.acquire(9, 1) for _ in range(store.num_slots)]
    assert None not in slots


def test_an_old_generation_writes_no_more(parts: Any) -> None:
    placement, shared, hello = parts
    store = placement.memory.policies[0].trajectories
    message = trajectory(placement, 1)
    old = Peer(shared, hello)
    eventually(lambda: credits_of(old) == WINDOW)
    shared.generation.store(0, 8)
    old.stream.send(message)
    eventually(lambda: old.ended)
    assert store.take(timeout=0.2) is None
    late = Peer(shared, hello)
    eventually(lambda: late.ended)
    assert b"another node has this place" in late.received[0]
    new = Peer(shared, hello | {"generation": 8})
    eventually(lambda: credits_of(new) == WINDOW)
    new.stream.send(message)
    assert store.take(timeout=10) is not None


def test_a_trajectory_with_an_impossible_number_ends_the_stream(parts: Any) -> None:
    placement, shared, hello = parts
    message = bytearray(trajectory(placement, 1))
    HEADER.pack_into(message, 0, protocol.TRAJECTORY, 2**31)
    peer = Peer(shared, hello)
    eventually(lambda: credits_of(peer) == WINDOW)
    peer.stream.send(bytes(message))
    eventually(lambda: peer.ended)
    store = placement.memory.policies[0].trajectories
    again = Peer(shared, hello)
    for sent in range(store.num_slots):  # no slot is lost
        eventually(lambda sent=sent: credits_of(again) > sent)
        again.stream.send(trajectory_bytes(message, sent))
    eventually(lambda: store.qsize() == store.num_slots)


def test_of_two_streams_that_open_at_once_one_stays() -> None:
    config = make_config("gym/CartPole-v1", "appo", **STATIC)
    placement = make_placement(whole(config), describe_run(config), make_agent)
    receiver, open_for_ever = Receiver(placement, Shared(1, "127.0.0.1:0", OWN), 0), threading.Event()

    def nothing() -> Iterator[bytes]:
        open_for_ever.wait(60)
        yield from ()

    (policy,), sessions = receiver._policies, [_Session(Stream(nothing(), lambda: None), 0) for _ in range(2)]
    answers = [policy.serve(session, nothing()) for session in sessions]
    for answer in answers:
        assert protocol.from_bytes(next(answer))[0] == "welcome"
    for answer in answers:
        assert header(next(answer)) == (CREDIT, WINDOW)
    first, second = sessions
    assert first.stream.ended == "the node has opened another stream"
    assert policy._session is second
    open_for_ever.set()
    placement.memory.stop()
    receiver.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_goes_wrong_with_a_trajectory_the_stream_ends(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    placement, shared, hello = parts
    message = trajectory(placement, 1)
    peer = Peer(shared, hello)
    eventually(lambda: credits_of(peer) == WINDOW)
    monkeypatch.setattr(TrajectoryCodec, "decode", lambda *_: 1 / 0)
    peer.stream.send(message)
    eventually(lambda: peer.ended)
    store = placement.memory.policies[0].trajectories
    assert None not in [store.acquire(9, 1) for _ in range(store.num_slots)]  # and no slot is lost


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
    for wrong in (hello | {"arrays": []}, hello | {"weights": 1}, hello | {"state": None}, hello | {"policy": 1}, {}):
        peer = Peer(shared, wrong)
        eventually(lambda peer=peer: peer.ended)
        assert b"refused" in peer.received[0]
    stranger = Peer(shared, hello, Credentials(token="another-token"))
    eventually(lambda: stranger.ended)
    assert "token" in stranger.stream.ended


def test_a_node_with_other_arrays_ends_with_an_error_and_the_learner_says_so() -> None:
    here, there = (
        make_placement(whole(config), describe_run(config), make_agent)
        for config in [make_config("gym/CartPole-v1", "appo", **STATIC, **{"policy.mlp": [width]}) for width in (8, 16)]
    )
    said: list[str] = []
    with receiving(here, said.append) as (shared, _):
        uplink = Uplink(Link("127.0.0.1:0", OWN, 1.0), shared.port.load(0), 7)
        for _ in range(2):
            with pytest.raises(ConfigError, match="have other arrays than the learner's"):
                for _ in uplink(there, 0):
                    pass
    there.kill()
    (text,) = said  # once
    assert text.startswith("A stream of trajectories from node 0 was refused: the node's trajectories or weights")


def test_a_node_that_leaves_before_it_has_said_hello_is_not_reported() -> None:
    said: list[str] = []
    receiver: Any = SimpleNamespace(note=said.append)
    assert not [*Receiver._answer(receiver, Stream(iter(()), lambda: None))]
    assert not said


def test_each_policy_has_its_own_stream() -> None:
    config = make_config("gym/CartPole-v1", "appo", **STATIC, **{"population.size": 2})
    placement = make_placement(whole(config), describe_run(config), make_agent)
    stores = [policy.trajectories for policy in placement.memory.policies]
    messages = [trajectory_of(store) for store in stores]
    with receiving(placement) as (shared, hello):
        peers = [Peer(shared, own) for own in hello]
        for peer, policy in zip(peers, placement.memory.policies, strict=True):
            eventually(lambda peer=peer: credits_of(peer) == WINDOW)
            policy.weights.publish(np.zeros(policy.weights.nbytes, np.uint8), 5)
            peer.stream.send(HEADER.pack(WANT, 0))
            eventually(lambda peer=peer: peer.kinds(WEIGHTS))
        for sent in range(stores[0].num_slots + WINDOW):  # nobody takes them
            eventually(lambda sent=sent: credits_of(peers[0]) > sent)
            peers[0].stream.send(messages[0])
        eventually(lambda: stores[0].qsize() == stores[0].num_slots)
        peers[1].stream.send(messages[1])  # the other policy goes on
        assert stores[1].take(timeout=10) is not None
        eventually(lambda: credits_of(peers[1]) == WINDOW + 1)
        third = Peer(shared, hello[0] | {"policy": 2})
        eventually(lambda: third.ended)


def test_past_versions_and_results(tmp_path: Path) -> None:
    """A version is sent before it may be played, and its place is used until the node, or another in its place, has closed it."""
    duel = str(Path(__file__).parents[1] / "faults" / "duel.py")
    import_files((duel,))
    settings = {"population.size": 2, "matches.matchmaker": "league", "envs.kwargs": {"ledger": str(tmp_path / "ledger")}}
    config = make_config("duel", "ppo", imports=[duel], **STATIC, **settings)
    config = for_agents(config, spec := describe_run(config))
    placement = make_placement(whole(config), spec, make_agent, make_members(config, spec))
    memory, here = placement.memory, placement.memory.standings
    place, there = here.past(1)[0], Standings(1, here.P, here.V, 0, 0.0)
    here.add_result(0, 0, 1, 1.0)  # of an earlier node
    with receiving(placement) as (shared, hello):
        first, second = (Peer(shared, own) for own in hello)
        (counted,) = eventually(lambda: first.kinds(COUNTED))
        ResultsCodec(there).count_on(counted, 0)
        assert there.counts[0, 0, 1].tolist() == [1, 1]
        eventually(lambda: second.kinds(STATE))
        memory.policies[place].weights.publish(np.full(memory.policies[place].weights.nbytes, 3, np.uint8), 9)
        here.admit(place, 100, 1300.0)
        time.sleep(0.5)
        assert not second.kinds(VERSION)  # the state before is not written yet
        second.stream.send(HEADER.pack(STATE_WRITTEN, 0))
        (version,) = eventually(lambda: second.kinds(VERSION))
        assert (header(version)[1], set(version[8:])) == (place, {3})
        state = eventually(lambda: second.kinds(STATE)[1:])[0]
        assert second.received.index(version) < second.received.index(state)
        StateCodec(SimpleNamespace(standings=there, population=None), 1).apply(state)
        assert (there.open[place], there.step[place], there.rating[place]) == (1, 100, 1300.0)
        assert here.users[0, place]
        there.add_result(0, 0, place, 0.0)
        first.stream.send(ResultsCodec(there).results())
        eventually(lambda: here.counts[0, place, 0].tolist() == [1, 1])
        assert here.counts[0, 0, 1].tolist() == [1, 1]
        here.close(place)
        shared.generation.store(0, 8)
        eventually(lambda: not here.users[0].any())
        there.add_result(0, 0, place, 0.0)
        first.stream.send(ResultsCodec(there).results())
        eventually(lambda: first.ended)
        assert here.counts[0, place, 0].tolist() == [1, 1]


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

    port = shared.port.load(0)
    shared.port.store(0, 0)
    assert dial()[:2] == ("busy", "it is starting")
    shared.port.store(0, port)
    kind, place, stream = dial()
    assert (kind, place["node"], place["generation"]) == ("welcome", 0, 8)
    assert place["port"] == port
    assert dial()[:2] == ("busy", "all of the 1 nodes of the run are there (cluster.nodes)")
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
    found = membership.metrics(0)
    assert {f"cluster/node-0/{name}" for name in OF_NODE} | {"cluster/nodes"} == found.keys()
    shared.counts[0, COUNTS.index("bytes")] += 90
    shared.counts[0, COUNTS.index("steps")] += 30
    for policy in (0, 1):  # each has those since its own last report
        assert membership.metrics(policy)["cluster/node-0/bytes_per_step"] == 3
    assert np.isnan(membership.metrics(0)["cluster/node-0/bytes_per_step"])
    stream.close()
    eventually(lambda: not membership.nodes)
    assert shared.generation.load(0) == 9
    assert dial()[1]["generation"] == 10
    membership.close()


def test_what_a_lost_rank_has_received_stays_counted(parts: Any) -> None:
    placement, _, _ = parts
    shared = Shared(2, "127.0.0.1:0", OWN, learners=2)
    endpoint = Endpoint(protocol.MEMBERSHIP, "127.0.0.1:0", OWN, LARGEST_MESSAGE)
    membership = Membership(endpoint, shared, placement.memory.control, lambda role, node: slice(None), {"config": {}}, b"")
    unused: Any = None
    lost, again = Rank(1, "there", unused), Rank(1, "there", unused)  # another process, which counts from the beginning
    for rank, steps, total in ((lost, 100.0, 100), (lost, 150.0, 150), (again, 10.0, 160)):
        membership._note_receivers(rank, {"host": "there", "ports": [7], "counts": [[steps, *[0.0] * (len(COUNTS) - 1)]]})
        assert shared.counts[:, 0].tolist() == [0, total]
    membership.close()


def test_a_rank_that_is_done_need_not_report_and_is_given_up_when_the_first_one_begins_again(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may write the last checkpoint for long."""
    placement, _, _ = parts
    monkeypatch.setattr(membership_module, "SILENCE", 0.3)
    endpoint = Endpoint(protocol.MEMBERSHIP, "127.0.0.1:0", OWN, LARGEST_MESSAGE)
    shared = Shared(3, "127.0.0.1:0", OWN, learners=3)
    membership = Membership(endpoint, shared, placement.memory.control, lambda role, node: slice(None), {"config": {}}, b"")
    for number, kinds in ((1, ("message", "done", "message")), (2, ("message",))):
        stream = Caller(replace(endpoint, address=f"127.0.0.1:{membership.port}"), protocol.FLAGS).open()
        stream.send(protocol.to_bytes("hello", {"host": "there", "versions": protocol.versions(), "rank": number}))
        told = iter(stream)
        assert protocol.from_bytes(next(told))[0] == "welcome"
        assert protocol.from_bytes(next(told)) == ("ranks", number + 1)
        for kind in kinds:
            stream.send(protocol.to_bytes(kind, ""))
        if number == 1:
            eventually(lambda: len(membership.notices) == 3)  # that it takes part, and what it said
            began = time.perf_counter()
            assert not membership.rank_lost
    eventually(lambda: membership.rank_lost)  # the other one, which has said nothing for as long
    assert [*membership.ranks] == [1]
    membership.rank_lost = 0.0
    membership.begin_again(membership.ranks[1].done - 1)
    assert [*membership.ranks] == [1]
    membership.begin_again(began)
    eventually(lambda: not membership.ranks)
    assert not membership.rank_lost
    membership.close()


def test_a_node_that_is_admitted_while_the_run_ends_is_told(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    placement, shared, _ = parts
    endpoint = Endpoint(protocol.MEMBERSHIP, "127.0.0.1:0", OWN, LARGEST_MESSAGE)
    membership = Membership(endpoint, shared, placement.memory.control, lambda role, node: slice(None), {"config": {}}, b"")
    admitted, ends, end = threading.Event(), threading.Event(), threading.Thread(target=membership.end)

    def slowly(node: int) -> None:
        admitted.set()
        assert ends.wait(60)
        end.join(0.3)

    monkeypatch.setattr(membership, "_next_generation", slowly)
    stream = Caller(replace(endpoint, address=f"127.0.0.1:{membership.port}"), protocol.FLAGS).open()
    stream.send(protocol.to_bytes("hello", {"host": "there", "versions": protocol.versions()}))
    assert admitted.wait(60)
    end.start()
    ends.set()
    messages = iter(stream)
    assert protocol.from_bytes(next(messages))[0] == "welcome"
    stream.expect(20, "it was not told")
    assert protocol.from_bytes(next(messages, b'{"": ""}'))[0] == "end"
    end.join()
    membership.close()
