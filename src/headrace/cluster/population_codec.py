"""Messages with the state of the population, for sampling nodes, and with the match results of a node.

On the node, the uplink of policy p writes to the tables of `headrace.shm.population` what p's learner writes to them on its own
machine: the state of p and its past versions, and for p = 0 of the opponents. So matchmakers and workers read the same tables on
both sides.

On the learner's machine the receiver of node k is rollout worker k. It writes the results of all of the node's matches as row k
of `Standings.counts`. The node starts from the row as it was when it joined, adds its results and reports the whole row, so that
no result counts twice, however often it is sent. In `Standings.users` the receiver is a user of each past version that was sent
to its node, until the node reports that it no longer plays it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import specs
from headrace.cluster.protocol import COUNTED, RESULTS, STATE
from headrace.sampling.run_memory import RunMemory
from headrace.shm.population import Standings
from headrace.transport.messages import MessageLayout, ProtocolError

NUMBER, REAL, FLAG = np.int64, np.float64, np.int32


class StateCodec:
    """Messages to nodes about policy p. `memory`: of the learner's machine, or of a node."""

    def __init__(self, memory: RunMemory, p: int) -> None:
        self._p, self._population, self._standings = p, memory.population, memory.standings
        arrays: dict[str, Any] = {}
        if (population := memory.population) is not None and population.reward_names:
            arrays["reward_weights"] = ((len(population.reward_names),), REAL)
        if (s := memory.standings) is not None:
            self._members = [m for m in range(s.N) if s.policy_of(m) == p]
            M, N = len(self._members), s.N
            arrays |= {"baseline": ((M, N, 2), REAL), "rating": ((M,), REAL), "step": ((M,), NUMBER), "open": ((M,), FLAG)}
            arrays |= {"moved": ((N,), REAL), "recent": ((N, 2), REAL), "now": ((), NUMBER), "done": ((), FLAG)}
        self._layout = MessageLayout(specs(**arrays))
        self.needed = bool(arrays)  # whether there is anything to tell

    def schema(self) -> list[list[Any]]:
        """What both sides must agree about."""
        return self._layout.schema()

    # -- the learner's machine --------------------------------------------------------------------------------------------

    def state(self, node: int) -> tuple[bytes, dict[int, int]]:
        """The message to a node, and the past versions that it may play: their places, and the steps they were copied at. From
        now on the receiver is a user of them."""
        arrays: dict[str, Any] = {}
        playable: dict[int, int] = {}
        if self._population is not None and self._population.reward_names:
            arrays["reward_weights"] = self._population.reward_weights[self._p]
        if (s := self._standings) is not None:
            p, members = self._p, self._members
            past = s.past(p)
            # First, since `Standings.admit` opens a place last: what is read below is of the version that is open, or newer.
            is_open = [s.open[m] and (m not in past or s.users[node, m] or s.enter(node, m)) for m in members]
            playable = {m: int(s.step[m]) for m, may in zip(members, is_open, strict=True) if may and m in past}
            others = s.counts[:, members].sum(0) - s.counts[node, members]
            arrays |= {"open": is_open, "step": s.step[members], "rating": s.rating[members], "now": s.now[p], "done": s.done[p]}
            # On the node its own games are added to this.
            arrays |= {"baseline": s.baseline[members] - others, "moved": s.moved[p], "recent": s.recent[p]}
        return self._layout.write(STATE, 0, arrays), playable

    # -- a node -----------------------------------------------------------------------------------------------------------

    def may_replace(self, member: int) -> bool:
        """Whether the learner may send another version to this place."""
        return self._standings is not None and member in self._standings.past(self._p)

    def apply(self, message: bytes) -> None:
        """Write what the learner's machine has sent. Raises `ProtocolError` for a message of another size."""
        state = self._layout.read(message)
        if "reward_weights" in state and self._population is not None:
            weights = state["reward_weights"].tolist()
            if weights != self._population.reward_weights[self._p].tolist():
                self._population.set_reward_weights(self._p, weights)
        if (s := self._standings) is None:
            return
        p, members = self._p, self._members
        s.now[p], s.done[p], s.moved[p], s.recent[p] = state["now"], state["done"], state["moved"], state["recent"]
        s.baseline[members], s.rating[members] = state["baseline"], state["rating"]
        for m, step, is_open in zip(members, state["step"].tolist(), state["open"].tolist(), strict=True):
            if is_open:
                s.open[m] = 1
            elif s.open[m]:
                s.close(m)
            s.step[m] = step  # last: `ResultsCodec.results` must not see a version's step before its place is open


class ResultsCodec:
    """Messages with the results of a node's matches. The uplink of policy 0 sends them for all policies."""

    def __init__(self, standings: Standings) -> None:
        self._standings, N = standings, standings.N
        counts = specs(counts=((N, N, 2), REAL))
        self._layout = MessageLayout(specs(step=((N,), NUMBER), open=((N,), FLAG), users=((N,), NUMBER)) | counts)
        self._counts = MessageLayout(counts)

    # -- the learner's machine --------------------------------------------------------------------------------------------

    def counted(self, node: int) -> bytes:
        """The message with the results that nodes with this number have reported so far."""
        return self._counts.write(COUNTED, 0, {"counts": self._standings.counts[node]})

    def take(self, message: bytes, node: int) -> None:
        """Write what the node has reported. Raises `ProtocolError` for a message of another size."""
        s, report = self._standings, self._layout.read(message)
        s.counts[node] = report["counts"]
        over = (report["open"] == 0) & (report["users"] == 0) & (report["step"] == s.step)
        s.users[node, over] = 0  # behind the counts: no result of this version comes any more

    # -- a node -----------------------------------------------------------------------------------------------------------

    def count_on(self, message: bytes, worker: int) -> None:
        """Count on from what was counted, in the row of the node's first `worker`, unless an earlier uplink has begun to. Raises
        `ProtocolError` for a message of another size."""
        counts, s = self._counts.read(message)["counts"], self._standings
        if not np.isfinite(counts).all():
            raise ProtocolError("results that are no numbers")
        if not s.begun[0]:
            s.counts[worker], s.begun[0] = counts, 1

    def results(self) -> bytes | None:
        """The message to the learner's machine; None before `count_on`. It is read in this order: a version whose place is
        closed, and that nobody plays, gets no more results."""
        s = self._standings
        if not s.begun[0]:
            return None
        step, is_open = s.step.copy(), s.open.copy()
        users = s.users.sum(0)
        return self._layout.write(RESULTS, 0, {"step": step, "open": is_open, "users": users, "counts": s.counts.sum(0)})
