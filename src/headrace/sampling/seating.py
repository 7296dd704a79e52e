"""Who acts for whom in the matches of one rollout worker, and how they ended.

A matchmaker (`headrace.population.matchmaking`) is asked before every match. The choice stands until the match has ended,
whatever happens in the population meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.envs.contract import EnvSpec
from headrace.shm.standings import GAMES, Standings

TRIES = 100
"""A member that was chosen may have been closed meanwhile; then somebody else is chosen, at most so many times."""


@dataclass
class Match:
    """A match that is about to begin."""

    number: int
    """Matches that are played at the same time have different numbers, 0, 1, ... over all workers; the next match in the same
    environment has the same one."""
    played: int
    """Matches that were played there before, since the worker started."""
    agents: tuple[str, ...]
    """Names of the agents."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Numbers and strings that a matchmaker keeps from match to match of this number."""


class Population:
    """What a matchmaker may know of the population. Members are numbers."""

    def __init__(self, standings: Standings, settings: Any, spec: EnvSpec | None = None) -> None:
        self._standings, self.settings, self._spec = standings, settings, spec
        """`settings`: the configuration's `matches`."""

    @property
    def learners(self) -> range:
        """The policies that learn."""
        return range(self._standings.P)

    def fits(self, member: int, agent: int) -> bool:
        """Whether the member can act for this agent (its number in the match): it observes and does the same."""
        return self._spec is None or self._spec.fits(self._standings.family(member), agent)

    def past(self, policy: int) -> list[int]:
        """Past versions of a policy, the oldest first."""
        return self._standings.versions(policy)

    @property
    def opponents(self) -> range:
        """Members that never learn, in the order of `matches.opponents`."""
        return self._standings.opponents

    def steps(self, policy: int) -> int:
        """Global steps that this policy has learned from."""
        return int(self._standings.now[policy])

    def rating(self, member: int) -> float:
        """Elo rating."""
        return self._standings.elo(member)

    def games(self, one: int, other: int) -> int:
        """Games of one against the other."""
        return int(self._record(one, other)[GAMES])

    def win_rate(self, one: int, other: int) -> float:
        """Share of the games that `one` won against `other`, a draw being half a win. One game that was a draw is added, so that
        it is 1/2 before the first. A policy that learns soon plays otherwise than in its first games, so of its games the recent
        ones count, as they were at its last update, with the weights of `headrace.shm.standings.DECAY`."""
        s = self._standings
        if one < s.P:
            score = s.recent[one, other]
        elif other < s.P:
            return 1 - self.win_rate(other, one)
        else:
            score = self._record(one, other)
        won, games = score.tolist()
        return float((won + 0.5) / (max(won, games) + 1))  # somebody may be writing: then the two are not of the same moment

    def _record(self, one: int, other: int) -> np.ndarray:
        s = self._standings
        return s.counts[:, one, other].sum(0) - s.baseline[one, other]  # type: ignore[no-any-return]


Matchmaker = Callable[[Match, Population, np.random.Generator], Sequence[int]]
"""The member that acts for each agent of a match."""
Script = Callable[[dict[str, np.ndarray], np.random.Generator], Any]
"""A scripted opponent: the action (a number, or a row of numbers as `ActionSpec` says) for one agent's observation, arrays by
name as `EnvSpec.observation` says; `action_mask` is among them where there is one."""


@dataclass
class Matchmaking:
    """What a run's rollout workers need to seat their agents."""

    choose: Matchmaker
    scripts: dict[int, Script]
    """By member."""
    settings: Any


class Seating:
    """The matches of one worker. `RolloutWorker` calls it before every match."""

    def __init__(self, worker: int, standings: Standings, making: Matchmaking, spec: EnvSpec, seed: int) -> None:
        self._worker, self._standings, self.making, self._agents = worker, standings, making, spec.agents
        self._population = Population(standings, making.settings, spec)
        self.generator = np.random.default_rng(seed)
        self._matches: dict[int, Match] = {}
        self._seated: dict[int, list[int]] = {}
        standings.users[worker] = 0  # of a worker that has died

    def __call__(self, number: int, group: Any, m: int, lanes: list[int]) -> Sequence[int]:
        """See `headrace.sampling.rollout_worker.Seat`."""
        previous = self._seated.get(number)
        match = self._matches.setdefault(number, Match(number, 0, self._agents))
        if previous is not None:
            self._report(previous, group.outcomes(m))
            match.played += 1
        chosen = self._choose(match)
        for member in previous or ():  # only now: who plays on never leaves
            self._standings.leave(self._worker, member)
        self._seated[number] = chosen
        return chosen

    def _choose(self, match: Match) -> list[int]:
        """The members that the matchmaker chooses, which count as users of their places from now on. Raises `ValueError` for a
        choice that cannot be."""
        for _ in range(TRIES):
            chosen = [int(member) for member in self.making.choose(match, self._population, self.generator)]
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
            entered = []
            for member in chosen:
                if not self._standings.enter(self._worker, member):
                    break
                entered.append(member)
            if len(entered) == len(chosen):
                return chosen
            for member in entered:
                self._standings.leave(self._worker, member)
        raise ValueError(f"the matchmaker chose members that may not be matched, {TRIES} times: {chosen}")

    def _report(self, members: list[int], outcomes: np.ndarray) -> None:
        """Count the result of each of these members, the agents of a match, against each other."""
        for i, one in enumerate(members):
            for j in range(i + 1, len(members)):
                difference = outcomes[i] - outcomes[j]
                if np.isnan(difference):
                    continue  # the match was lost with its environment server
                self._standings.add_result(self._worker, one, members[j], 0.5 + 0.5 * float(np.sign(difference)))

    def act(self, member: int, observation: dict[str, np.ndarray], action: np.ndarray) -> None:
        """Let a scripted member choose; `observation` [1, ...] by name, `action` [1, A] is written."""
        action[0] = self.making.scripts[member]({name: array[0] for name, array in observation.items()}, self.generator)

    def get_state(self) -> dict[str, Any]:
        """For an exact resume."""
        matches = [[m.number, m.played, list(m.agents), m.memory, self._seated[m.number]] for m in self._matches.values()]
        return {"generator": _plain(self.generator.bit_generator.state), "matches": matches}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`."""
        generator = state["generator"]
        self.generator.bit_generator.state = generator | {"state": {k: int(v) for k, v in generator["state"].items()}}
        for number, played, agents, memory, seated in state["matches"]:
            self._matches[number] = Match(number, played, tuple(agents), dict(memory))
            self._seated[number] = [int(member) for member in seated]
            for member in self._seated[number]:
                self._standings.users[self._worker, member] += 1


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """A generator's state without numbers that are too large for a checkpoint: those as text."""
    return {**state, "state": {name: str(number) for name, number in state["state"].items()}}


# -- members that do not learn ----------------------------------------------------------------------------------------


@dataclass
class Frozen:
    """A member that acts and never learns."""

    family: int
    """The policy whose policy workers act for it."""
    config: Any = None
    """Its `Config`; None: a scripted opponent."""
    weights: dict[str, Any] | None = None
    """The state of its model. None: a past version, which gets its weights later."""


@dataclass
class Crew:
    """Everybody in a multi-agent run but the policies that learn, and who seats them."""

    frozen: list[Frozen]
    """Past versions, V of each policy, and then opponents."""
    num_past: int
    """V."""
    make_matchmaking: Callable[[Any, Any, int], Matchmaking]
    """From the run's `Config`, its `EnvSpec` and the first opponent's number; a module's function."""


def make_seating(worker: int, memory: Any, config: Any, spec: Any, crew: Crew | None, seed: int) -> Seating | None:
    """The seating of a rollout worker; None in environments of one agent."""
    if crew is None:
        return None
    standings = memory.standings
    return Seating(worker, standings, crew.make_matchmaking(config, spec, standings.opponents.start), spec, seed)
