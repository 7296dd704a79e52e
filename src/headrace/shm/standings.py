"""Standings of a population: who may be matched, who plays whom, results and ratings, shared by all processes of a run.

A *member* is whoever can act for an agent: the policies that learn, 0 to P - 1; past versions of them, V each; and opponents that
never learn. A past version's place is used again for a newer one, when nobody plays it any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.shm.primitives import Words
from headrace.shm.segment import Mapped, Segment, align

SCORE, GAMES = 0, 1
DECAY = 0.99
"""Weight of a game among the recent ones of a pair, per game of that pair since (Vinyals et al. 2019, AlphaStar, pseudocode)."""


class Standings(Mapped):
    """Made by the parent, passed to every child.

    Args:
        num_workers: rollout workers, W; each writes only rows of its own.
        num_learners: P.
        num_past: V, places for past versions of each.
        num_opponents: members that never learn.
        rating: with which everybody begins.
    """

    def __init__(self, num_workers: int, num_learners: int, num_past: int, num_opponents: int, rating: float):
        self.W, self.P, self.V = num_workers, num_learners, num_past
        self.N = num_learners * (1 + num_past) + num_opponents
        self._segment = Segment(sum(self._sizes()))
        self._fence = Words(1)
        self._map()
        self.rating[:] = rating
        self.step[:] = -1
        self.open[:] = 1
        self.open[num_learners : num_learners * (1 + num_past)] = 0

    def _shapes(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        W, N = self.W, self.N
        return {
            "counts": (np.float64, (W, N, N, 2)), "baseline": (np.float64, (N, N, 2)), "rating": (np.float64, (N,)),
            "step": (np.int64, (N,)), "now": (np.int64, (N,)), "open": (np.int32, (N,)), "users": (np.int32, (W, N)),
            "done": (np.int32, (N,)), "rated": (np.float64, (self.P, N, 2)), "saved": (np.int64, (self.P,)),
            "begun": (np.int32, (self.P,)), "moved": (np.float64, (self.P, N)), "recent": (np.float64, (self.P, N, 2)),
        }  # fmt: skip

    def _sizes(self) -> list[int]:
        return [align(int(np.prod(shape)) * np.dtype(kind).itemsize) for kind, shape in self._shapes().values()]

    def _map(self) -> None:
        offset, found = 0, {}
        for (name, (kind, shape)), size in zip(self._shapes().items(), self._sizes(), strict=True):
            found[name] = self._segment.ndarray(kind, shape, offset)
            offset += size
        self.counts, self.baseline = found["counts"], found["baseline"]
        """Score (1 a win, 1/2 a draw) and number of games of the first against the second, by worker; and what of it is old."""
        self.rating, self.step = found["rating"], found["step"]
        """float64 [N]: Elo ratings; of opponents that never learn those with which they begin, see `elo`. int64 [N]: global step
        of which a past version is; -1: of none."""
        self.moved = found["moved"]
        """float64 [P, N]: by how much the games of each policy that learns have moved the ratings of opponents that never do.
        Each learner writes its own row, so that none undoes what another writes at the same moment."""
        self.now = found["now"]
        """int64 [N]: global steps of the policies that learn."""
        self.done = found["done"]
        """int32 [N]: whether the policy has learned enough. It goes on acting, and nobody takes its trajectories any more."""
        self.rated, self.saved, self.begun = found["rated"], found["saved"], found["begun"]
        """By policy that learns: what of its `counts` has moved its rating; global step of its newest past version; whether this
        run has begun to keep its standings. A learner that takes the place of one that has died finds them as they are."""
        self.recent = found["recent"]
        """float64 [P, N, 2]: score and number of the recent games of each policy that learns against each member, as weighted by
        `DECAY`. Row p is written by p's learner."""
        self.open, self.users = found["open"], found["users"]
        """int32 [N]: whether the member may be matched. int32 [W, N]: agents for whom it acts, by worker."""

    def past(self, p: int) -> range:
        """The places of policy p's past versions."""
        first = self.P + p * self.V
        return range(first, first + self.V)

    @property
    def opponents(self) -> range:
        """Members that never learn."""
        return range(self.P * (1 + self.V), self.N)

    def family(self, member: int) -> int:
        """The policy that learns of which this is a version; 0 for opponents."""
        if member < self.P:
            return member
        return (member - self.P) // self.V if member < self.P * (1 + self.V) else 0

    def elo(self, member: int) -> float:
        """The member's Elo rating now."""
        return float(self.rating[member] + self.moved[:, member].sum())

    def record(self) -> np.ndarray:
        """float64 [N, N, 2]: score and games of the first against the second."""
        return self.counts.sum(0) - self.baseline

    # -- rollout workers --------------------------------------------------------------------------------------------------

    def add_result(self, worker: int, one: int, other: int, score: float) -> None:
        """A game has ended: `score` of `one` is 1, 1/2 or 0. A game against oneself says nothing and counts for nothing."""
        if one == other:
            return
        counts = self.counts[worker]
        counts[one, other] += score, 1
        counts[other, one] += 1 - score, 1

    def enter(self, worker: int, member: int) -> bool:
        """The member is about to act for an agent. False, and nothing has changed, if it may not be matched any more."""
        self.users[worker, member] += 1
        self._fence.fetch_or(0, 0)  # seen by everybody before `open` is read: see `close`
        if self.open[member]:
            return True
        self.users[worker, member] -= 1
        return False

    def leave(self, worker: int, member: int) -> None:
        """The member acts for one agent less."""
        self.users[worker, member] -= 1

    # -- the learner of the policy ----------------------------------------------------------------------------------------

    def free_place(self, p: int) -> int | None:
        """A place for a past version of policy p that nobody plays; None if there is none at the moment."""
        return next((m for m in self.past(p) if not self.open[m] and not self.users[:, m].any()), None)

    def versions(self, p: int) -> list[int]:
        """Past versions of policy p that may be matched, the oldest first."""
        return sorted((m for m in self.past(p) if self.open[m]), key=lambda m: int(self.step[m]))

    def rated_or_old(self, p: int) -> np.ndarray:
        """float64 [N, 2]: what of the counts of policy p has moved its rating, or is of versions whose place is another's now."""
        rated, old = self.rated[p], self.baseline[p]
        return np.where(old[:, GAMES:] > rated[:, GAMES:], old, rated)

    def take_unrated(self, p: int) -> np.ndarray:
        """float64 [N, 2]: score and games of policy p against each, of which each is given once."""
        counts = self.counts[:, p].sum(0)
        new = counts - self.rated_or_old(p)
        played = new[:, GAMES] >= 1
        self.rated[p, played] = counts[played]
        return np.where(played[:, None], new, 0)

    def remember(self, p: int, new: np.ndarray) -> None:
        """Let games that ended, float64 [N, 2] from `take_unrated`, be the newest of the recent ones. Those of one pair count as
        one after the other with the same score."""
        played = new[:, GAMES] >= 1
        n = new[played, GAMES:]
        kept = DECAY**n
        self.recent[p, played] = self.recent[p, played] * kept + new[played] / n * (1 - kept) / (1 - DECAY)

    def take_over(self, p: int, donor: int) -> None:
        """Policy p has become a copy of another one: the donor's rating and recent games are now its own, too."""
        self.rating[p], self.recent[p] = self.rating[donor], self.recent[donor]
        self.recent[p, p] = 0

    def close(self, member: int) -> None:
        """No new match gets this member. Those that are being played go on."""
        self.open[member] = 0
        self._fence.fetch_or(0, 0)

    def admit(self, member: int, step: int, rating: float) -> None:
        """A newer past version is in this place: it has played nobody yet."""
        old = self.counts.sum(0)
        self.baseline[member], self.baseline[:, member] = old[member], old[:, member]
        self.recent[:, member] = 0
        self.step[member], self.rating[member] = step, rating
        self._fence.fetch_or(0, 0)
        self.open[member] = 1
