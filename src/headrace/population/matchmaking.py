"""Matchmaking: which member of the population acts for which agent of a match.

A matchmaker is one function, called before every match by the rollout worker that plays it:

    @register_matchmaker("strongest")
    def strongest(match, population, generator):
        past = population.past(0)
        rival = max(past, key=population.rating) if past else 0
        return [0, rival]

It returns a member for every agent: 0 to P - 1 are the policies that learn, `population.past(p)` past versions of policy p, and
`population.opponents` those that never learn. The choice stands until the match is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import ConfigError, MatchesConfig
from headrace.envs.core.contract import MASK_KEY, Categorical, EnvSpec, Script
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD, without_last_step
from headrace.shm.population import GAMES, Standings


@dataclass
class NextMatch:
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
    """What a matchmaker may know of the population. Members are numbers; `settings` is the configuration's `matches`."""

    def __init__(self, standings: Standings, settings: MatchesConfig, spec: EnvSpec | None = None) -> None:
        self._standings, self.settings, self._spec = standings, settings, spec

    @property
    def learners(self) -> range:
        """The policies that learn."""
        return range(self._standings.P)

    def fits(self, member: int, agent: int) -> bool:
        """Whether the member can act for this agent (its number in the match): it observes and does the same."""
        return self._spec is None or self._spec.fits(self._standings.policy_of(member), agent)

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
        ones count, as they were at its last update, with the weights of `headrace.shm.population.DECAY`."""
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


Matchmaker = Callable[[NextMatch, Population, np.random.Generator], Sequence[int]]
"""The member that acts for each agent of a match."""


def fixed(match: NextMatch, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """Agent a is policy a modulo the number of policies, for ever."""
    return [a % len(population.learners) for a in range(len(match.agents))]


def uniform(match: NextMatch, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """Every agent is a policy drawn uniformly, for every match anew (Petrenko et al. 2020, section 4.3), among those that
    observe and do what the agent does."""
    agents = range(len(match.agents))
    fitting = [[p for p in population.learners if population.fits(p, a)] for a in agents]
    return [own[generator.integers(len(own))] for own in fitting]


def self_play(match: NextMatch, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """One agent learns. All others are one opponent: the newest version of the same policy, a past one drawn uniformly from the
    window, or one that never learns. The opponent stays for `swap_steps` steps. The settings are those of Unity's ML-Agents.

    Where the opponent is the newest version, its experience is learned from, too.
    """
    s = population.settings
    p = match.number % len(population.learners)
    learning = population.steps(p) // s.team_change % len(match.agents)
    opponent: Any = match.memory.get("opponent")
    there = opponent is not None and (opponent == p or opponent in population.past(p) or opponent in population.opponents)
    if not there or population.steps(p) >= match.memory["until"]:
        opponent = _draw_opponent(p, population, generator)
        match.memory.update(opponent=opponent, until=population.steps(p) + s.swap_steps)
    return [p if a == learning else opponent for a in range(len(match.agents))]


def _draw_opponent(p: int, population: Population, generator: np.random.Generator) -> int:
    s, past = population.settings, population.past(p)
    if len(population.opponents) and generator.random() < s.opponent_share:
        return int(generator.choice(population.opponents))
    if not past or generator.random() < s.play_against_latest_model_ratio:
        return p
    return int(generator.choice(past))


def league(match: NextMatch, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """One agent, drawn anew for every match, learns. All others are one opponent: the newest version of any policy, or one drawn
    from the past versions of all policies and those that never learn, with a weight of (1 - win rate)^hardness: prioritized
    fictitious self-play (Vinyals et al. 2019, AlphaStar, Methods)."""
    s = population.settings
    p = match.number % len(population.learners)
    learning = int(generator.integers(len(match.agents)))
    static = [m for q in population.learners for m in population.past(q)] + list(population.opponents)
    if not static or generator.random() < s.play_against_latest_model_ratio:
        opponent = int(generator.choice(population.learners))
    else:
        opponent = int(generator.choice(static, p=priorities(p, static, population)))
    return [p if a == learning else opponent for a in range(len(match.agents))]


def priorities(p: int, members: Sequence[int], population: Population) -> np.ndarray:
    """float64 [n]: probabilities with which the league draws these opponents of policy p."""
    losses = np.array([1 - population.win_rate(p, member) for member in members])
    weights = losses**population.settings.hardness  # above 0: a win rate is of 100 games at most and one draw
    return weights / weights.sum()  # type: ignore[no-any-return]


_matchmakers: dict[str, Matchmaker] = {"fixed": fixed, "uniform": uniform, "self-play": self_play, "league": league}
_BUILTIN = tuple(_matchmakers)


def register_matchmaker(name: str) -> Callable[[Matchmaker], Matchmaker]:
    """Decorator: `matches.matchmaker` may be this name. Raises `ValueError` for the names of the built-in ones."""
    if name in _BUILTIN:
        raise ValueError(f"{name!r} is a built-in matchmaker; choose another name")

    def add(function: Matchmaker) -> Matchmaker:
        _matchmakers[name] = function
        return function

    return add


def find_matchmaker(name: str) -> Matchmaker:
    """Raises `ConfigError` with the known names if there is none."""
    if name not in _matchmakers:
        raise ConfigError(f"matches.matchmaker {name!r} is unknown; there are: {', '.join(_matchmakers)}")
    return _matchmakers[name]


# -- scripted opponents -----------------------------------------------------------------------------------------------

MakeScript = Callable[[EnvSpec], Script]
"""Makes a scripted opponent for an environment."""
_scripts: dict[str, MakeScript] = {}


def register_opponent(name: str) -> Callable[[MakeScript], MakeScript]:
    """Decorator for a function that makes a scripted opponent for an environment's specification; `matches.opponents` may have
    this name."""

    def add(make: MakeScript) -> MakeScript:
        _scripts[name] = make
        return make

    return add


@register_opponent("random")
def random_opponent(spec: EnvSpec) -> Script:
    """Allowed choices with equal probability; numbers between two bounds uniformly, others normally distributed."""

    def act(observation: dict[str, np.ndarray], generator: np.random.Generator) -> Any:
        mask, at, action = observation.get(MASK_KEY), 0, []
        for part in spec.action.parts:
            if isinstance(part, Categorical):
                allowed = np.arange(part.n) if mask is None else np.flatnonzero(mask[at : at + part.n])
                action.append(generator.choice(allowed if len(allowed) else part.n))  # none: as for a policy, all
                at += part.n
            else:
                action += [_number(low, high, generator) for low, high in zip(part.low, part.high, strict=True)]
        return action

    return act


def _number(low: float, high: float, generator: np.random.Generator) -> float:
    if np.isfinite(high - low):
        return generator.uniform(low, high)
    return float(np.clip(generator.normal(), low, high))


def is_script(opponent: str) -> bool:
    """Whether an entry of `matches.opponents` is a scripted opponent; else it is a run folder."""
    return opponent in _scripts


def make_script(name: str, spec: EnvSpec) -> Script:
    """The scripted opponent of this name, for this environment."""
    return _scripts[name](spec)


def load_player(name: str, spec: EnvSpec, which: Any = "newest", policy: int = 0, imports: Sequence[str] = ()) -> Any:
    """An opponent by its name, for `headrace.evaluation.matches.play`: a scripted one, or the policy of a run folder.

    Raises `ConfigError` where it is neither, or its policy observes or acts otherwise.
    """
    if is_script(name):
        return make_script(name, spec)
    from headrace.evaluation.policy import load_policy

    if not (Path(name) / "config.json").is_file():
        known = ", ".join(_scripts)
        raise ConfigError(f"{name!r} is neither a run folder nor a scripted opponent; of those there are: {known}")
    player = load_policy(name, which=which, policy=policy, imports=imports)
    own, here = (without_last_step(each, (PREVIOUS_ACTION, PREVIOUS_REWARD)) for each in (player.spec, spec))
    if (own.observation, own.action) != (here.observation, here.action):
        raise ConfigError(
            f"the policy of {name} was trained in {player.config.env} and observes or acts otherwise than {spec.name} does; it "
            "can only play where the spaces are the same"
        )
    return player
