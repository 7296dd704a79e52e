"""A policy's past versions, its rating, and what a checkpoint keeps of both: the learner's side of matchmaking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace.accelerator.weights import FlatWeights, weights_nbytes
from headrace.learning.learner import Learner
from headrace.population.ratings import rate
from headrace.runs.messages import Message
from headrace.sampling.placements.base import Placement
from headrace.shm.population import GAMES, SCORE, Standings
from headrace.shm.primitives import Closed

LEFT_OUT_AFTER = 300.0
"""Seconds after which a policy for which no agent acts learns no more, once all others have learned enough."""
STEPPED_SHARE = 0.1
"""Least share of these seconds that all workers together must have spent stepping environments: nobody acts while environment
servers are away or an environment hangs, either."""


class PastVersions:
    """Keeps a copy of policy p every `matches.save_steps` steps, and rates p. In environments of one agent it does nothing.

    The first copy is made after so many steps, never of the weights that training starts with. The newest `matches.window` copies
    of a policy may be opponents in new matches. An older copy plays its matches to their end, and only then is its memory used
    for another copy; the policy's next copy is made when there is such memory.

    Ratings: p and opponents that never learn start with `matches.initial_elo`. A copy keeps the rating that p had.

    Everything is in the run's shared memory. A learner that was killed and goes back to its checkpoint leaves copies, results and
    ratings as they are: the other processes went on meanwhile, and nothing is counted twice.
    """

    def __init__(self, placement: Placement, p: int, learner: Learner) -> None:
        self._placement, self._p, self._learner = placement, p, learner
        self._settings = placement.config.matches
        self._standings = placement.memory.standings
        self._cursors = b""
        """The slots and rows of the lanes that p acts for, and the numbers of its trajectories, when they last changed."""
        self._acted_at = 0.0  # when that was (perf_counter); 0 before the first look
        self._stepped = 0.0  # seconds that all workers had spent stepping environments until then

    def after_update(self) -> None:
        """Call after every update."""
        s, step = self._standings, self._learner.progress.global_step
        if s is None:
            return
        s.now[self._p], s.begun[self._p] = step, 1
        self._rate(s)  # here, and not when metrics are due: what depends on the clock cannot be repeated
        if not s.V or step - s.saved[self._p] < self._settings.save_steps:
            return
        versions = s.versions(self._p)
        for member in versions[: max(0, len(versions) + 1 - self._settings.window)]:
            s.close(member)
        if (place := s.free_place(self._p)) is not None:
            weights = FlatWeights(self._learner.model)
            weights.publish(self._placement.memory.policies[place].weights, self._learner.progress.version)
            s.admit(place, step, float(s.rating[self._p]))
            s.saved[self._p] = step

    def _rate(self, s: Standings) -> None:
        """Let the games since the last call move the rating of p, and of the opponents that never learn."""
        new = s.take_unrated(self._p)
        s.remember(self._p, new)
        played = np.flatnonzero(new[:, GAMES]).tolist()
        before = float(s.rating[self._p])
        s.rating[self._p] = rate(before, [(s.elo(m), *new[m].tolist()) for m in played])
        for m in played:
            if m in s.opponents:
                score, n = new[m].tolist()
                now = s.elo(m)
                s.moved[self._p, m] += rate(now, [(before, n - score, n)]) - now

    def reason_to_stop(self, now: float) -> str | None:
        """ "no_samples" if nothing to learn from comes any more: the other policies have learned enough, and the matches have
        gone on for long without an action of p. Call it in every round; `now` is perf_counter()."""
        s, memory = self._standings, self._placement.memory
        if s is None or s.done[: s.P].sum() < s.P - 1:
            return None
        requests, stepped = memory.requests, memory.control.seconds("rollout", "step")
        # Of lanes on other machines only the trajectories are seen.
        cursors = requests.cursor[requests.policy == self._p].tobytes() + memory.policies[self._p].trajectories.order.tobytes()
        if cursors != self._cursors or not self._acted_at:
            self._cursors, self._acted_at, self._stepped = cursors, now, stepped
        long = now - self._acted_at > LEFT_OUT_AFTER and stepped - self._stepped > STEPPED_SHARE * LEFT_OUT_AFTER
        return "no_samples" if long else None

    def _why_no_samples(self) -> str:
        p, P, step = self._p, self._placement.config.population.size, self._learner.progress.global_step
        who = ", ".join(self._placement.spec.agents[p::P]) if self._settings.matchmaker == "fixed" else "any agent"
        others = ", and the other policies have learned enough" if P > 1 else ""
        return (
            f"Policy {p} ends at step {step:,}: in {LEFT_OUT_AFTER / 60:.0f} minutes of matches it never acted for {who}{others}."
            " Does the environment give it observations? If it is not to act, use fewer policies (population.size) or another "
            "matches.matchmaker"
        )

    def finish(self, reason: str) -> Iterator[Message]:
        """The policy learns no more, for this reason. It goes on acting in other policies' matches, so its trajectories are given
        back."""
        if self._standings is None:
            return
        if reason == "no_samples":
            yield Message("message", self._why_no_samples(), self._p)
        self._standings.done[self._p] = 1
        with suppress(Closed):  # the run is ending
            self._placement.memory.policies[self._p].trajectories.discard()

    def metrics(self) -> dict[str, float]:
        """Rating, and results so far."""
        s = self._standings
        if s is None:
            return {}
        record = s.record()[self._p]
        games = float(record[:, GAMES].sum())
        found = {"matches/elo": float(s.rating[self._p]), "matches/games": games}
        if s.V:
            found["matches/past_versions"] = float(len(s.versions(self._p)))
        if games:
            found["matches/win_rate"] = float(record[:, SCORE].sum()) / games
        for m in (*range(s.P), *s.opponents):
            if record[m, GAMES]:
                name = Path(self._name(s, m)).name.replace(" ", "-")
                found[f"matches/win_rate/{name}"] = float(record[m, SCORE] / record[m, GAMES])
        return found

    def table(self) -> dict[str, Any] | None:
        """What standings.json has (`headrace.population.records`); None in environments of one agent."""
        s = self._standings
        if s is None:
            return None
        copies = [m for p in range(s.P) for m in s.versions(p)]
        members = [*range(s.P), *copies, *s.opponents]
        record = s.record()[np.ix_(members, members)]
        return {
            "members": [self._name(s, m) for m in members],
            "elo": [round(s.elo(m), 1) for m in members],
            "step": [None if m < s.P or m in s.opponents else int(s.step[m]) for m in members],
            "score": record[..., SCORE].tolist(),
            "games": record[..., GAMES].astype(int).tolist(),
        }

    def _name(self, s: Standings, member: int) -> str:
        if member < s.P:
            return f"policy {member}"
        if member in s.opponents:
            return str(self._settings.opponents[member - s.opponents.start])
        return f"policy {s.policy_of(member)} at step {int(s.step[member])}"

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any] | None:
        """Copies, ratings and results."""
        s = self._standings
        if s is None:
            return None
        copies = []
        for m in s.past(self._p):
            if s.step[m] >= 0:
                weights = np.zeros(weights_nbytes(self._learner.model), np.uint8)
                version = self._placement.memory.policies[m].weights.read(weights)
                copies.append([m, version, weights, int(s.step[m]), float(s.rating[m]), int(s.open[m])])
        return {
            "saved": int(s.saved[self._p]), "copies": copies, "seen": s.rated_or_old(self._p) - s.baseline[self._p],
            "record": s.record(), "ratings": s.rating.copy(), "moved": s.moved[self._p].copy(),
            "members": [s.P, s.V, *self._settings.opponents], "recent": s.recent.copy(),
        }  # fmt: skip

    def set_state(self, state: dict[str, Any] | None, newest: bool | None = None) -> list[str]:
        """Go on from `get_state`, when a run begins; returns what the user should know.

        `newest`: where all policies go back to one moment, whether this state was saved at that moment. Then the results of all
        members are taken from it; else the policy had learned enough before, and the other policies' states have newer results.
        None: each policy goes back to a moment of its own, and takes the results of its own matches only.
        """
        s = self._standings
        if s is None or state is None:
            return []
        copies = len(state["copies"])
        state = self._renumbered(state, s)
        s.now[self._p] = self._learner.progress.global_step
        if s.begun[self._p]:
            return []
        mine = [self._p, *s.past(self._p), *(s.opponents if self._p == 0 else ())]
        s.rating[mine] = state["ratings"][mine]
        if newest:
            s.baseline[:], s.recent[:] = -state["record"], state["recent"]
        elif newest is None:
            for m in mine:
                s.baseline[m], s.baseline[:, m] = -state["record"][m], -state["record"][:, m]
            s.recent[self._p] = state["recent"][self._p]
        s.moved[self._p] = state["moved"]
        s.saved[self._p], s.rated[self._p] = state["saved"], state["seen"] - state["record"][self._p]
        for m, version, weights, step, rating, is_open in state["copies"]:
            self._placement.memory.policies[m].weights.publish(weights, version)
            s.step[m], s.rating[m], s.open[m] = step, rating, is_open
        s.begun[self._p] = 1
        if dropped := copies - len(state["copies"]):
            return [f"{dropped} past versions of policy {self._p} are dropped: matches.window leaves no room for them"]
        return []

    def _renumbered(self, state: dict[str, Any], s: Standings) -> dict[str, Any]:
        """The state with the members' numbers of this run, which may have other opponents and another window than the one that
        saved it. Whoever takes no part any more is left out. A past version keeps its place among those of its policy, since the
        states of all policies have to agree about it."""
        (P, V, *opponents), here = state["members"], self._settings.opponents
        origin = np.full(s.N, -1)  # the number of each member in the state; -1: it is new
        origin[:P] = range(P)
        for p in range(P):
            origin[s.past(p)[:V]] = range(P + p * V, P + p * V + min(V, s.V))
        for member, name in zip(s.opponents, here, strict=True):
            if name in opponents:
                origin[member] = P * (1 + V) + opponents.index(name)

        def renumbered(array: np.ndarray, axis: int = 0) -> np.ndarray:
            nothing = np.zeros_like(array.take([0], axis))
            return np.concatenate([array, nothing], axis).take(origin, axis)  # -1 is the last one: nothing

        number = {int(old): member for member, old in enumerate(origin)}
        return state | {
            "record": renumbered(renumbered(state["record"]), 1), "recent": renumbered(state["recent"], 1),
            "seen": renumbered(state["seen"]), "moved": renumbered(state["moved"]),
            "ratings": np.where(origin < 0, s.rating, renumbered(state["ratings"])),
            "copies": [[number[m], *rest] for m, *rest in state["copies"] if m in number],
        }  # fmt: skip
