"""The members of a run's matches that do not learn: past versions of policies, and opponents."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import Config, ConfigError, policy_configs
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.imports import import_files
from headrace.population.matches import WorkerMatches
from headrace.population.matchmaking import find_matchmaker, is_script, load_player, make_script
from headrace.sampling.match_protocols import StaticMember
from headrace.shm.population import Standings

SPARE = 2  # places for past versions beyond the window: those that have left it may be playing still


@dataclass
class Members:
    """See `headrace.sampling.match_protocols.Members`."""

    config: Config
    spec: EnvSpec
    static: list[StaticMember]
    num_past: int

    def matches(self, worker: int, standings: Standings, seed: int) -> WorkerMatches:
        settings = self.config.matches
        names = dict(enumerate(settings.opponents, standings.opponents.start))
        scripts = {member: make_script(name, self.spec) for member, name in names.items() if is_script(name)}
        choose = find_matchmaker(settings.matchmaker)
        return WorkerMatches(worker, standings, choose, scripts, settings, self.spec, seed)


def make_members(config: Config, spec: EnvSpec) -> Members | None:
    """Who takes part in a run beside the policies that learn; None in environments of one agent.

    Raises `ConfigError` for matchmakers and opponents that there are not, and for run folders whose policy does not fit.
    """
    if not spec.agents:
        if config.pbt.of_matches:
            objective = f"pbt.objective {config.pbt.objective}"
            raise ConfigError(f"{objective} is that of matches; {spec.name} is of one agent: use return or true_objective")
        return None
    import_files(config.imports)
    matches = config.matches
    find_matchmaker(matches.matchmaker)
    if spec.of_agents:
        _check_spaces(config, spec)
    num_past = 0 if matches.matchmaker in ("fixed", "uniform") else matches.window + SPARE
    past = [StaticMember(own) for own in policy_configs(config) for _ in range(num_past)]
    opponents = [_opponent(name, config, spec) for name in matches.opponents]
    if opponents and matches.matchmaker in ("fixed", "uniform"):
        raise ConfigError(f"matches.opponents never play with matches.matchmaker {matches.matchmaker}; use self-play or league")
    if opponents and matches.matchmaker == "self-play" and not matches.opponent_share:
        raise ConfigError("matches.opponents never play with matches.matchmaker self-play if matches.opponent_share is 0")
    return Members(config, spec, past + opponents, num_past)


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


def _opponent(name: str, config: Config, spec: EnvSpec) -> StaticMember:
    if is_script(name):
        return StaticMember()
    policy = load_player(name, spec, imports=config.imports)
    if missing := policy.spec.observation.keys() - spec.observation.keys():
        raise ConfigError(
            f"matches.opponents: the policy of {name} observes {', '.join(missing)}, which this run's policies do not"
        )
    return StaticMember(policy.config, {key: tensor.cpu() for key, tensor in policy.model.state_dict().items()})
