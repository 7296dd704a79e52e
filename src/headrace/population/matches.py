"""The matches of one rollout worker: who acts for whom, and how they ended.

A matchmaker (`headrace.population.matchmaking`) is asked before every match. Its choice stands until the match has ended,
whatever happens in the population meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, takewhile
from typing import Any

import numpy as np

from headrace.config import MatchesConfig
from headrace.envs.core.contract import EnvSpec, Script
from headrace.population.matchmaking import Matchmaker, NextMatch, Population
from headrace.shm.population import Standings

TRIES = 100  # most times that the matchmaker is asked for one match: a member that it chooses may just have been closed


class WorkerMatches:
    """See `headrace.sampling.match_protocols.Matches`.

    Args:
        worker: index of the rollout worker.
        choose: the matchmaker.
        scripts: scripted opponents by member.
        seed: of the matchmaker's and the scripted opponents' random numbers.
    """

    def __init__(
        self, worker: int, standings: Standings, choose: Matchmaker, scripts: Mapping[int, Script], settings: MatchesConfig,
        spec: EnvSpec, seed: int,
    ) -> None:  # fmt: skip
        self._worker, self._standings, self._choose, self._scripts = worker, standings, choose, scripts
        self._agents, self._population = spec.agents, Population(standings, settings, spec)
        self._generator = np.random.default_rng(seed)
        self._matches: dict[int, NextMatch] = {}
        self._playing: dict[int, list[int]] = {}  # the members in each match, by its number
        standings.users[worker] = 0  # of a worker that has died

    def begin(self, number: int, outcomes: Callable[[], np.ndarray]) -> Sequence[int]:
        """See `Matches.begin`. Raises `ValueError` where the matchmaker chooses what cannot be."""
        previous = self._playing.get(number)
        match = self._matches.setdefault(number, NextMatch(number, 0, self._agents))
        if previous is not None:
            self._count(previous, outcomes())
            match.played += 1
        members = self._choose_members(match)
        for member in previous or ():  # only now: a member that goes on playing is never without a match
            self._standings.leave(self._worker, member)
        self._playing[number] = members
        return members

    def _choose_members(self, match: NextMatch) -> list[int]:
        """The members that the matchmaker chooses, who count as users of their places from now on."""
        for _ in range(TRIES):
            chosen = [int(member) for member in self._choose(match, self._population, self._generator)]
            if len(chosen) != len(match.agents) or not all(0 <= member < self._standings.N for member in chosen):
                raise ValueError(
                    f"the matchmaker chose {chosen} for the {len(match.agents)} agents of match {match.number}; it must give "
                    f"each one of the {self._standings.N} members"
                )
            for agent, member in enumerate(chosen):
                if not self._population.fits(member, agent):
                    raise ValueError(
                        f"the matchmaker chose member {member} for {match.agents[agent]}, which observes or acts otherwise than "
                        "the policy does"
                    )
            entered = list(takewhile(partial(self._standings.enter, self._worker), chosen))
            if len(entered) == len(chosen):
                return chosen
            for member in entered:
                self._standings.leave(self._worker, member)
        raise ValueError(f"the matchmaker chose members that may not be matched, {TRIES} times: {chosen}")

    def _count(self, members: list[int], outcomes: np.ndarray) -> None:
        """Count the result of each of these members, the agents of a match, against each other."""
        for i, j in combinations(range(len(members)), 2):
            difference = outcomes[i] - outcomes[j]
            if not np.isnan(difference):  # else the match was lost with its environment server
                self._standings.add_result(self._worker, members[i], members[j], 0.5 + 0.5 * float(np.sign(difference)))

    def act(self, member: int, observation: dict[str, np.ndarray], action: np.ndarray) -> None:
        action[0] = self._scripts[member]({name: array[0] for name, array in observation.items()}, self._generator)

    def get_state(self) -> dict[str, Any]:
        matches = [[m.number, m.played, list(m.agents), m.memory, self._playing[m.number]] for m in self._matches.values()]
        generator = dict(self._generator.bit_generator.state)
        generator["state"] = {name: str(number) for name, number in generator["state"].items()}  # too large for a checkpoint
        return {"generator": generator, "matches": matches}

    def set_state(self, state: dict[str, Any]) -> None:
        generator = state["generator"]
        self._generator.bit_generator.state = generator | {"state": {k: int(v) for k, v in generator["state"].items()}}
        for number, played, agents, memory, members in state["matches"]:
            self._matches[number] = NextMatch(number, played, tuple(agents), dict(memory))
            self._playing[number] = [int(member) for member in members]
            for member in self._playing[number]:
                self._standings.users[self._worker, member] += 1
