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
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import Config, ConfigError, policy_configs
from headrace.envs.contract import MASK_KEY, Categorical, EnvSpec
from headrace.envs.imports import import_files
from headrace.sampling.seating import Crew, Frozen, Match, Matchmaker, Matchmaking, Population, Script


def fixed(match: Match, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """Agent a is policy a modulo the number of policies, for ever."""
    return [a % len(population.learners) for a in range(len(match.agents))]


def uniform(match: Match, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """Every agent is a policy drawn uniformly, for every match anew (Petrenko et al. 2020, section 4.3), among those that
    observe and do what the agent does."""
    agents = range(len(match.agents))
    fitting = [[p for p in population.learners if population.fits(p, a)] for a in agents]
    return [own[generator.integers(len(own))] for own in fitting]


def self_play(match: Match, population: Population, generator: np.random.Generator) -> Sequence[int]:
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


def league(match: Match, population: Population, generator: np.random.Generator) -> Sequence[int]:
    """One agent, drawn anew for every match, learns. All others are one opponent: the newest version of any policy, or one drawn
    from the past versions of all policies and those that never learn, with a weight of (1 - win rate)^hardness: prioritized
    fictitious self-play (Vinyals et al. 2019, AlphaStar, Methods)."""
    s = population.settings
    p = match.number % len(population.learners)
    learning = int(generator.integers(len(match.agents)))
    frozen = [m for q in population.learners for m in population.past(q)] + list(population.opponents)
    if not frozen or generator.random() < s.play_against_latest_model_ratio:
        opponent = int(generator.choice(population.learners))
    else:
        opponent = int(generator.choice(frozen, p=priorities(p, frozen, population)))
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
    """Allowed choices with equal probability; bounded numbers uniformly."""

    def act(observation: dict[str, np.ndarray], generator: np.random.Generator) -> Any:
        mask, at, action = observation.get(MASK_KEY), 0, []
        for part in spec.action.parts:
            if isinstance(part, Categorical):
                allowed = np.arange(part.n) if mask is None else np.flatnonzero(mask[at : at + part.n])
                action.append(generator.choice(allowed))
                at += part.n
            else:
                action += [generator.uniform(low, high) for low, high in zip(part.low, part.high, strict=True)]
        return action

    return act


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
    if (player.spec.observation, player.spec.action) != (spec.observation, spec.action):
        raise ConfigError(
            f"the policy of {name} was trained in {player.config.env} and observes or acts otherwise than {spec.name} does; it "
            "can only play where the spaces are the same"
        )
    return player


# -- for a run --------------------------------------------------------------------------------------------------------


def find_matchmaker(name: str) -> Matchmaker:
    """Raises `ConfigError` with the known names if there is none."""
    if name not in _matchmakers:
        raise ConfigError(f"matches.matchmaker {name!r} is unknown; there are: {', '.join(_matchmakers)}")
    return _matchmakers[name]


def make_matchmaking(config: Config, spec: EnvSpec, first_opponent: int) -> Matchmaking:
    """What the rollout workers of a run need. `first_opponent`: the member that is the first of `matches.opponents`."""
    import_files(config.imports)
    choose = find_matchmaker(config.matches.matchmaker)
    names = dict(enumerate(config.matches.opponents, first_opponent))
    scripts = {member: make_script(name, spec) for member, name in names.items() if is_script(name)}
    return Matchmaking(choose, scripts, config.matches)


SPARE = 2
"""Places for past versions beyond the window: those that have left it may be playing still."""


def make_crew(config: Config, spec: EnvSpec) -> Crew | None:
    """Who takes part in a run beside the policies that learn; None in environments of one agent.

    Raises `ConfigError` for matchmakers and opponents that there are not, and for run folders whose policy does not fit.
    """
    if not spec.agents:
        if config.pbt.of_matches:
            objective = f"pbt.objective {config.pbt.objective}"
            raise ConfigError(f"{objective} is that of matches; {spec.name} is of one agent: use return or true_objective")
        return None
    import_files(config.imports)
    m = config.matches
    find_matchmaker(m.matchmaker)
    if spec.of_agents:
        _check_spaces(config, spec)
    past = 0 if m.matchmaker in ("fixed", "uniform") else m.window + SPARE
    frozen = [Frozen(p, own) for p, own in enumerate(policy_configs(config)) for _ in range(past)]
    return Crew(frozen + [_opponent(name, config, spec) for name in m.opponents], past, make_matchmaking)


def _check_spaces(config: Config, spec: EnvSpec) -> None:
    """Raise `ConfigError` for what cannot work where the spaces of agents differ."""
    m, P, why = config.matches, config.population.size, f"the agents of {spec.name} have different spaces"
    if m.matchmaker in ("self-play", "league"):
        raise ConfigError(f"matches.matchmaker {m.matchmaker}: {why}, so no policy can play against itself; use fixed or uniform")
    if m.opponents:
        raise ConfigError(f"matches.opponents: {why}; all of them are acted for by policies that learn")
    if config.envs.remote:
        raise ConfigError(f"envs.remote: {why}; they are stepped by the run itself")
    if config.pbt.on:
        raise ConfigError(f"pbt.rule {config.pbt.rule}: {why}, and so policies cannot take over each other's weights")
    if config.run.eval_interval_steps is not None:
        raise ConfigError(f"run.eval_interval_steps: {why}; a policy cannot be evaluated without the others")
    for a, agent in enumerate(spec.agents):
        if m.matchmaker == "fixed" and not spec.fits(a % P, a):
            raise ConfigError(f"{why}: policy {a % P} cannot act for {agent}, too; use --population.size {len(spec.agents)}")
        if not any(spec.fits(p, a) for p in range(P)):
            raise ConfigError(f"{why}: there is no policy for {agent}; policy p is like agent p. Use a larger population.size")


def _opponent(name: str, config: Config, spec: EnvSpec) -> Frozen:
    if is_script(name):
        return Frozen(0)
    policy = load_player(name, spec, imports=config.imports)
    return Frozen(0, policy.config, {key: tensor.cpu() for key, tensor in policy.model.state_dict().items()})
