"""What the policies of a population share: `Standings`, of their matches, and `PopulationMemory`, for population-based training.

A *member* is whoever can act for an agent in a match: the policies that learn, 0 to P - 1; past versions of them, V each; and
opponents, which never learn. The memory of a past version is used for a newer one when no match plays it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.shm.primitives import Words
from headrace.shm.segment import Tables
from headrace.shm.weight_store import WeightStore

SCORE, GAMES = 0, 1
DECAY = 0.99
"""Weight of a game among the recent ones of a pair, per game of that pair since (Vinyals et al. 2019, AlphaStar, pseudocode)."""


class Standings(Tables):
    """Who may be matched, who plays whom, results and ratings. Made by the parent, passed to every child.

    Args:
        num_workers: rollout workers, W; each writes only rows of its own.
        num_policies: policies that learn, P.
        num_past: V, the number of past versions of each for which there is memory.
        num_opponents: members that never learn.
        rating: of every member at the start.
    """

    PURPOSE = "the population"

    counts: np.ndarray
    """float64 [W, N, N, 2]: score (1 a win, 1/2 a draw) and number of games of the first member against the second, by worker."""
    baseline: np.ndarray
    """float64 [N, N, 2]: what to subtract from the sum of `counts` over all workers: the games of earlier past versions in the
    same place. Negative where a resumed run adds its earlier games."""
    rating: np.ndarray  # float64 [N]: Elo ratings; of opponents those with which they begin, see `elo`
    moved: np.ndarray
    """float64 [P, N]: by how much the games of each policy have moved the ratings of opponents. Each learner writes its own row,
    so that none undoes what another writes at the same moment."""
    step: np.ndarray  # int64 [N]: the global step at which a past version was copied; -1: the place has none
    now: np.ndarray  # int64 [N]: global steps of the policies
    done: np.ndarray
    """int32 [N]: whether the policy has learned enough. It goes on acting, but its trajectories are not learned from any more."""
    rated: np.ndarray  # float64 [P, N, 2]: the part of each policy's counts that has moved its rating
    recent: np.ndarray
    """float64 [P, N, 2]: score and number of the recent games of each policy against each member, as weighted by `DECAY`. Row p
    is written by p's learner."""
    saved: np.ndarray  # int64 [P]: global step of each policy's newest past version
    begun: np.ndarray
    """int32 [P]: whether the policy's learner has begun to keep its standings in this run. A learner that takes the place of one
    that has died finds them as they are."""
    open: np.ndarray  # int32 [N]: whether the member may be matched
    users: np.ndarray  # int32 [W, N]: agents for whom the member acts, by worker

    def __init__(self, num_workers: int, num_policies: int, num_past: int, num_opponents: int, rating: float):
        self.W, self.P, self.V = num_workers, num_policies, num_past
        self.N = num_policies * (1 + num_past) + num_opponents
        self._fence = Words(1)
        W, N, P = self.W, self.N, self.P
        self._allocate(
            counts=((W, N, N, 2), np.float64), baseline=((N, N, 2), np.float64), rating=((N,), np.float64),
            moved=((P, N), np.float64), step=((N,), np.int64), now=((N,), np.int64), done=((N,), np.int32),
            rated=((P, N, 2), np.float64), recent=((P, N, 2), np.float64), saved=((P,), np.int64), begun=((P,), np.int32),
            open=((N,), np.int32), users=((W, N), np.int32),
        )  # fmt: skip
        self.rating[:] = rating
        self.step[:] = -1
        self.open[:] = 1
        self.open[P : P * (1 + num_past)] = 0

    def past(self, p: int) -> range:
        """The places of policy p's past versions."""
        first = self.P + p * self.V
        return range(first, first + self.V)

    @property
    def opponents(self) -> range:
        """Members that never learn."""
        return range(self.P * (1 + self.V), self.N)

    def policy_of(self, member: int) -> int:
        """The policy of which this member is a version; 0 for opponents, which policy 0's policy workers serve."""
        if member < self.P:
            return member
        return 0 if member in self.opponents else (member - self.P) // self.V

    def elo(self, member: int) -> float:
        """The member's Elo rating now."""
        return float(self.rating[member] + self.moved[:, member].sum())

    def record(self) -> np.ndarray:
        """float64 [N, N, 2]: score and games of the first against the second."""
        return self.counts.sum(0) - self.baseline

    # -- rollout workers --------------------------------------------------------------------------------------------------

    def add_result(self, worker: int, one: int, other: int, score: float) -> None:
        """Count a game that has ended; the `score` of `one` is 1, 1/2 or 0. A game against oneself is not counted."""
        if one == other:
            return
        counts = self.counts[worker]
        counts[one, other] += score, 1
        counts[other, one] += 1 - score, 1

    def enter(self, worker: int, member: int) -> bool:
        """Count one more agent for whom the member acts. False, and nothing changes, if it may not be matched any more."""
        self.users[worker, member] += 1
        self._fence.fetch_or(0, 0)  # seen by everybody before `open` is read: see `close`
        if self.open[member]:
            return True
        self.users[worker, member] -= 1
        return False

    def leave(self, worker: int, member: int) -> None:
        """Count one agent less for whom the member acts."""
        self.users[worker, member] -= 1

    # -- the learner of the policy ----------------------------------------------------------------------------------------

    def free_place(self, p: int) -> int | None:
        """A place of policy p whose past version is closed and in no match any more; None if there is none at the moment."""
        return next((m for m in self.past(p) if not self.open[m] and not self.users[:, m].any()), None)

    def versions(self, p: int) -> list[int]:
        """Past versions of policy p that may be matched, the oldest first."""
        return sorted((m for m in self.past(p) if self.open[m]), key=lambda m: int(self.step[m]))

    def rated_or_old(self, p: int) -> np.ndarray:
        """float64 [N, 2]: the score and the games of policy p that must not move its rating any more: those that have moved it,
        and those against earlier past versions in the same place."""
        rated, old = self.rated[p], self.baseline[p]
        return np.where(old[:, GAMES:] > rated[:, GAMES:], old, rated)

    def take_unrated(self, p: int) -> np.ndarray:
        """float64 [N, 2]: score and games of policy p against each member since the last call."""
        counts = self.counts[:, p].sum(0)
        new = counts - self.rated_or_old(p)
        played = new[:, GAMES] >= 1
        self.rated[p, played] = counts[played]
        return np.where(played[:, None], new, 0)

    def remember(self, p: int, new: np.ndarray) -> None:
        """Add games, float64 [N, 2] from `take_unrated`, to the recent ones. Games of one pair count as played one after the
        other, each with their mean score."""
        played = new[:, GAMES] >= 1
        n = new[played, GAMES:]
        kept = DECAY**n
        self.recent[p, played] = self.recent[p, played] * kept + new[played] / n * (1 - kept) / (1 - DECAY)

    def take_over(self, p: int, donor: int) -> None:
        """Policy p has become a copy of the donor: it gets the donor's rating and recent games."""
        self.rating[p], self.recent[p] = self.rating[donor], self.recent[donor]
        self.recent[p, p] = 0

    def close(self, member: int) -> None:
        """Exclude this member from new matches. Those that it plays go on."""
        self.open[member] = 0
        self._fence.fetch_or(0, 0)

    def admit(self, member: int, step: int, rating: float) -> None:
        """Open a place to matches in which a newer past version, without games so far, was stored."""
        old = self.counts.sum(0)
        self.baseline[member], self.baseline[:, member] = old[member], old[:, member]
        self.recent[:, member] = 0
        self.step[member], self.rating[member] = step, rating
        self._fence.fetch_or(0, 0)
        self.open[member] = 1


class PopulationMemory(Tables):
    """What policies in population-based training share: objectives, weights of rewards, and copies of policies. Made by the
    parent, passed to every child.

    Args:
        sizes: bytes that a copy of each policy may take; the number of policies is P.
        reward_weights: the K weights of a shaped reward by name, with which every policy starts.
    """

    PURPOSE = "the population"

    objectives: np.ndarray
    """float64 [P]: how well each policy does; NaN while that is not known, -inf where the policy has ended without an objective.
    Each is written by its policy's learner."""
    reward_weights: np.ndarray
    """float64 [P, K]: weights of the shaped reward that each policy learns with. Each learner writes its row; rollout workers
    read it."""
    reward_updates: np.ndarray  # int64 [P]: how often each policy's reward weights were set
    _finished: np.ndarray  # int64 [P]: whether the policy's newest copy is its last
    _wanted: np.ndarray
    """int64 [P, P]: how often the second policy has asked for a copy of the first. Each number has one writer, because additions
    of several processes to one number could be lost."""
    _served: np.ndarray  # int64 [P, P]: the numbers of `_wanted` that the newest copy of each policy answers

    def __init__(self, sizes: Sequence[int], reward_weights: Mapping[str, float] | None = None) -> None:
        self.reward_names = list(reward_weights or ())
        self.sizes = list(sizes)
        self.copies = [WeightStore(8 + size) for size in sizes]
        """The newest copy of each policy that was asked for: its length, then its bytes."""
        self._here: dict[int, Callable[[], bytes]] = {}
        """By policy whose learner runs in this process, what makes a copy of it."""
        P, K = len(self.sizes), len(self.reward_names)
        self._allocate(
            objectives=((P,), np.float64), reward_weights=((P, K), np.float64), reward_updates=((P,), np.int64),
            _finished=((P,), np.int64), _wanted=((P, P), np.int64), _served=((P, P), np.int64),
        )  # fmt: skip
        self.objectives[:] = np.nan
        self.reward_weights[:] = list((reward_weights or {}).values())

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_here": {}}

    def set_reward_weights(self, policy: int, weights: Sequence[float]) -> None:
        """New weights of a policy's reward; rollout workers see that `reward_updates` has changed."""
        self.reward_weights[policy] = weights
        self.reward_updates[policy] += 1

    def weights_of(self, policy: int) -> dict[str, float]:
        """The weights of a policy's reward by name."""
        return dict(zip(self.reward_names, self.reward_weights[policy].tolist(), strict=True))

    # -- copies ------------------------------------------------------------------------------------------------------------

    def offer(self, policy: int, make: Callable[[], bytes]) -> None:
        """The learner of this policy runs in this process, and `make` makes a copy of it."""
        self._here[policy] = make

    def want(self, policy: int, asker: int) -> int:
        """Ask for a copy of a policy; returns the argument `seen` of `read`. `asker`: the policy whose learner asks."""
        if policy in self._here:
            return 0
        seen = int(self.copies[policy].updates)  # before asking: whoever asks at the same moment gets the same copy
        self._wanted[policy, asker] += 1
        return seen

    def serve(self, policy: int, last: bool = False) -> None:
        """Write a copy of a policy, which is offered in this process, if other processes have asked for one since the last copy.
        `last`: the policy learns no more, so this copy stays valid. Requests count as served only when the copy is written,
        because the learner may die while it makes one."""
        if len(self._here) == len(self.sizes):
            return  # nobody is in another process
        asked = self._wanted[policy].copy()
        if last or (asked != self._served[policy]).any():
            self.write(policy, self._here[policy](), last)
            self._served[policy] = asked

    def write(self, policy: int, content: bytes, last: bool = False) -> None:
        """See `serve`. Raises `ValueError` for more than there is memory for."""
        if len(content) > self.sizes[policy]:
            raise ValueError(f"a copy of policy {policy} takes {len(content)} bytes; there is memory for {self.sizes[policy]}")
        memory = np.zeros(8 + self.sizes[policy], np.uint8)
        memory[:8].view(np.int64)[0] = len(content)
        memory[8 : 8 + len(content)] = np.frombuffer(content, np.uint8)
        self.copies[policy].publish(memory, 0)
        self._finished[policy] = last

    def read(self, policy: int, seen: int) -> bytes | None:
        """The copy of a policy that was made after `want` gave `seen`, or its last; made at once where its learner runs in this
        process. None: there is none yet."""
        if policy in self._here:
            return self._here[policy]()
        store = self.copies[policy]
        if store.updates <= seen and not (self._finished[policy] and store.updates):
            return None
        memory = np.zeros(8 + self.sizes[policy], np.uint8)
        store.read(memory)
        return memory[8 : 8 + int(memory[:8].view(np.int64)[0])].tobytes()
