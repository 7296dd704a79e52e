"""The protocol between the learner's machine and its nodes: two streams for each node, which the node opens.

The membership stream, between the main processes, is JSON:

    node                              learner
    hello, versions, host     ->
                              <-      welcome: settings, specification, number, generation, receiver; or busy; or refused
                              <-      the user's code, if hello asked for it: a zip file in parts, as many as welcome says
    status: clocks, restarts  ->      every second
    message, failed           ->
                              <-      end

Learner ranks but the first join in the same way, and have the receivers of every R-th node:

    rank                              first rank
    hello, versions, host, rank ->
                              <-      welcome: settings, specification, ports of receivers, where ranks meet; or busy; or refused
                              <-      the user's code, as above
    receivers: host, and of each its port and counts    ->      every second
    message, failed           ->
    done: its learner is      ->      no more reports; it waits for the end
                              <-      generations: of all nodes, whenever one changes
                              <-      ranks: how many take part, whenever that changes
                              <-      rank lost: another one, for which this rank's learner must not wait
                              <-      end

The trajectory streams, one for each policy, between the node's uplink of the policy and the learner's receiver of that node:

    hello: policy, generation, arrays ->
                              <-      welcome; or busy: another node has this place; or refused: the node never fits
                              <-      CREDIT: so many trajectories may be sent
    TRAJECTORY                ->      as `headrace.cluster.trajectory_codec` writes it
    WANT                      ->      the weights got last are in use
                              <-      WEIGHTS: the newest, with their version

and where the node has a shard of the replay (trajectories are then without observations, which the shard keeps):

    SHARD                     ->      what it holds
                              <-      DRAW: new priorities, and where to draw samples; see `headrace.cluster.shard_table.Request`
    SAMPLES                   ->      as `headrace.cluster.sample_codec` writes them

and where there is a population with something in common (`headrace.cluster.population_codec`):

                              <-      COUNTED: results of matches in this place until now (policy 0)
                              <-      VERSION: weights of a past version, and its place
                              <-      STATE: ratings, who may be matched, weights of shaped rewards
    STATE_WRITTEN             ->      the state got last was written
    RESULTS                   ->      of all matches in this place, and who is played (policy 0), once a second

A trajectory uses a credit, which comes back when the trajectory is in a slot. So at most `cluster.window` trajectories are under
way or wait for a slot. A few draws, one version of the weights and one state are under way at a time: no queue is unbounded. The
generation numbers the nodes that have had this place: a receiver takes no message of an older one.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from headrace.transport.credentials import Credentials
from headrace.transport.failures import TlsFlags
from headrace.transport.messages import LARGEST_MESSAGE, ProtocolError, Refused, read_json
from headrace.transport.streams import Endpoint, Service

PROTOCOL = 7  # version of this protocol. Both sides must have the same.
MEMBERSHIP = Service("/headrace.Cluster/Membership", "learner of a cluster")
TRAJECTORIES = Service("/headrace.Cluster/Trajectories", "learner of a cluster")
FLAGS = TlsFlags("--cluster.ca", "--cluster.tls-cert and --cluster.tls-key")
TRAJECTORY, WANT, SHARD, SAMPLES, STATE_WRITTEN, RESULTS = 1, 2, 3, 4, 5, 6  # kinds of messages from a node
CREDIT, WEIGHTS, DRAW, COUNTED, VERSION, STATE = 1, 2, 3, 4, 5, 6  # kinds of messages from the learner
HELLO_TIMEOUT = 30.0  # seconds that a handshake message may take


@dataclass(frozen=True)
class Link:
    """Where the learner is, and the credentials to connect to it."""

    address: str  # of the membership stream, HOST:PORT
    own: Credentials
    wait: float  # seconds for which the node tries to reach the learner at its start

    def endpoint(self, service: Service, port: int | None = None) -> Endpoint:
        """The node's side of a service, at another port of the same host if one is given."""
        address = self.address if port is None else f"{self.address.rpartition(':')[0]}:{port}"
        return Endpoint(service, address, self.own, LARGEST_MESSAGE)


def to_bytes(kind: str, content: Any) -> bytes:
    """A JSON message."""
    return json.dumps({kind: content}).encode()


def from_bytes(message: bytes) -> tuple[str, Any]:
    """Kind and content of a JSON message. Raises `ProtocolError` for anything else, `Refused` with the other side's reason."""
    found = read_json(message)
    if len(found) != 1:
        raise ProtocolError("a message that is no entry of this protocol")
    ((kind, content),) = found.items()
    if kind == "refused":
        raise Refused(str(content))
    return kind, content


def versions() -> dict[str, Any]:
    """What both sides must have in common."""
    return {"protocol": PROTOCOL, "headrace": version("headrace"), "python": ".".join(platform.python_version_tuple()[:2])}


def check_versions(theirs: Any, host: str, here: str = "the learner's machine") -> None:
    """Raise `Refused` for a node that has other versions than this machine, which the message calls `here`."""
    if theirs != (own := versions()):
        named = theirs if isinstance(theirs, dict) else {}
        unlike = [f"{name} {named.get(name)!s:.40} instead of {own[name]}" for name in own if named.get(name) != own[name]]
        raise Refused(f"{host} has other versions than {here}: {', '.join(unlike)}")
