"""The rules of population-based training: who is replaced by whom, and how hyperparameters mutate. Numbers in, numbers out.

Every policy is decided about on its own, each time it has learned from `pbt.period` frames. The population is ordered by
objective. With N policies and the fractions of the settings:

    the best      ceil(replace_fraction N) policies: they are left alone
    the worst     ceil(replace_fraction N) policies: each takes the weights and hyperparameters of one of the best, drawn at
                  random, unless the difference of their objectives is too small
    mutated       the last mutate_fraction of the population (but none of the best); the replaced ones after they were replaced

Sources: Petrenko et al. 2020, "Sample Factory: Egocentric 3D Control from Pixels at 100000 FPS with Asynchronous Reinforcement
Learning", section 4.3 and appendix A.3.1; the code published with version 2 of Sample Factory (`sample-factory`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from headrace.config import Config, ConfigError, override, policy_configs
from headrace.config.population import CHOSEN, KINDS, REWARD, Kind, PbtConfig

Value = float | int | bool


@dataclass(frozen=True)
class Mutable:
    """How one hyperparameter is mutated."""

    kind: Kind
    factor: tuple[float, float]


@dataclass(frozen=True)
class Decision:
    """The decision about one policy: whether it is replaced, and whether it is mutated."""

    rank: int  # its place in the population; 0 is the best
    donor: int | None  # the policy whose weights and hyperparameters it takes over; None: it keeps its own
    mutate: bool


def decide(pbt: PbtConfig, policy: int, objectives: Sequence[float], rng: np.random.Generator) -> Decision | None:
    """Decide whether a policy is replaced and whether it is mutated. None while the objective of any policy is not known yet.

    `objectives`: of every policy; NaN: not known yet; -inf: the policy has stopped learning and never had one.
    """
    N = len(objectives)
    if any(math.isnan(value) for value in objectives):
        return None
    order = sorted(range(N), key=lambda q: (-objectives[q], q))
    rank = order.index(policy)
    replaced = math.ceil(pbt.replace_fraction * N - 1e-9)  # 0.3 x 10 is a little more than 3
    best = order[:replaced]
    donor = None
    if pbt.below_best is not None:
        highest = objectives[order[0]]
        if highest - objectives[policy] > (1 - pbt.below_best) * abs(highest):  # below 0 an objective's fraction is above it
            donor = order[0]
    elif rank >= N - replaced and rank >= replaced:
        candidate = best[int(rng.integers(replaced))]
        gap = objectives[candidate] - objectives[policy]
        if gap > pbt.number("gap") and gap > pbt.number("relative_gap") * abs(objectives[candidate]):
            donor = candidate
    kept = replaced
    if (fraction := pbt.number("mutate_fraction")) is not None:
        kept = max(kept, N - math.floor(fraction * N + 1e-9))
    first = policy == 0 and pbt.number("keep_first")
    return Decision(rank, donor, rank >= kept and not first)


def mutate(
    pbt: PbtConfig,
    values: Mapping[str, Value],
    first: Mapping[str, Value],
    mutables: Mapping[str, Mutable],
    rng: np.random.Generator,
) -> dict[str, Value]:
    """The hyperparameters after one mutation; `first`: those that the policy started with."""
    reset_rate, new = pbt.number("reset_rate"), dict(values)
    for name, value in values.items():
        if rng.random() >= pbt.mutation_rate:
            continue
        if value != first[name] and reset_rate and rng.random() < reset_rate:
            new[name] = first[name]
            continue
        how = mutables[name]
        if how.kind == "flip":
            new[name] = not value
            continue
        factor = float(rng.uniform(*how.factor))
        factor = factor if rng.random() < 0.5 else 1 / factor
        if how.kind == "scale":
            new[name] = _scaled(value, factor) if isinstance(value, int) else value * factor
        else:
            new[name] = max(1e-6, 1 - (1 - value) * factor)
    return new


def _scaled(value: int, factor: float) -> int:
    """A whole number from 1 on. One that the factor would leave as it is moves by one in the factor's direction."""
    scaled = round(value * factor)
    return max(1, scaled if scaled != value else value + (factor > 1) - (factor < 1))


# -- what is mutated --------------------------------------------------------------------------------------------------


def check_pbt(config: Config) -> None:
    """Raise `ConfigError`, with the reason, for population-based training that cannot work."""
    pbt = config.pbt
    if not pbt.on:
        return
    if config.population.size < 2:
        raise ConfigError(f"pbt.rule {pbt.rule} needs several policies; population.size is {config.population.size}")
    if pbt.factor is not None and pbt.factor[0] > pbt.factor[1]:
        raise ConfigError(f"pbt.factor is {pbt.factor}; the smaller number comes first")
    policies = policy_configs(config)
    for p, own in enumerate(policies):
        for name in ("policy", "q", "learning.algorithm", "learning.optimizer"):
            if attrgetter(name)(own) != attrgetter(name)(policies[0]):
                raise ConfigError(
                    f"population.overrides: policy {p} has another {name} than policy 0; with pbt.rule {pbt.rule} policies "
                    "take over each other's weights and must be of one shape"
                )
        mutables(own, config.envs.reward_weights)


def mutables(config: Config, reward_weights: Mapping[str, float]) -> dict[str, Mutable]:
    """What `config.pbt` mutates, by name. `reward_weights`: the environment's.

    Raises `ConfigError` for names that cannot be mutated and for rules that there are not.
    """
    pbt = config.pbt
    rewards = [REWARD + name for name in reward_weights]
    chosen = pbt.mutable or {name: KINDS.get(name, "scale") for name in (*_useful(config), *rewards)}
    found = {}
    for name, how in chosen.items():
        if name not in KINDS and name not in rewards:
            known = ", ".join([*KINDS, *rewards])
            raise ConfigError(f"pbt.mutable: {name} cannot be mutated. What can: {known}")
        if name in KINDS and not isinstance(get(config, name), float | int):
            raise ConfigError(f"pbt.mutable: {name} is None in this run; there is nothing to mutate")
        found[name] = _mutable(name, how, pbt)
    if config.uses_replay and "learning.gamma" in found:
        raise ConfigError("pbt.mutable: learning.gamma cannot be mutated with a replay, whose returns are computed beforehand")
    return found


def notes(config: Config) -> list[str]:
    """Sentences for the user about hyperparameters that no factor moves."""
    still: dict[str, list[str]] = {}
    for p, own in enumerate(policy_configs(config) if config.pbt.on else ()):
        for name, how in mutables(own, config.envs.reward_weights).items():
            value = config.envs.reward_weights[name.removeprefix(REWARD)] if name.startswith(REWARD) else get(own, name)
            if (how.kind, value) in (("scale", 0), ("complement", 1)):
                still.setdefault(f"{name} is {value}", []).append(str(p))
    return [
        f"Population: {what} in policies {', '.join(policies)}: no factor ever changes it. Give it another value to begin with"
        for what, policies in still.items()
    ]


def _useful(config: Config) -> list[str]:
    """The rule's own choice, without what has no value or no effect in this run."""
    names = [name for name in CHOSEN[config.pbt.rule] if get(config, name) is not None]
    return [name for name in names if config.learning.optimizer == "adam" or not name.startswith("learning.adam")]


def _mutable(name: str, how: object, pbt: PbtConfig) -> Mutable:
    given = how if isinstance(how, dict) else {"rule": how}
    kind, factor = given.get("rule", KINDS.get(name, "scale")), given.get("factor", pbt.number("factor"))
    if kind not in ("scale", "complement", "flip") or given.keys() - {"rule", "factor"}:
        raise ConfigError(
            f'pbt.mutable: {name} has the rule {how!r:.60}; it must be "scale", "complement" or "flip", or such as '
            '{"rule": "scale", "factor": [1.1, 1.5]}'
        )
    if not (isinstance(factor, list | tuple) and len(factor) == 2 and all(isinstance(f, float | int) for f in factor)):
        raise ConfigError(f"pbt.mutable: the factor of {name} is {factor!r:.60}; it must be two numbers, such as [1.1, 1.5]")
    low, high = factor
    if not 1 <= low <= high <= 100:
        raise ConfigError(f"pbt.mutable: the factor of {name} is {factor!r:.60}; it must be from 1 to 100, the smaller one first")
    return Mutable(kind, (float(low), float(high)))


def get(config: Config, name: str) -> Value | None:
    """The value of a setting; `learning.adam_betas.0` is the first of a list."""
    value: object = config
    for part in name.split("."):
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
    return value  # type: ignore[return-value]


def with_values(config: Config, values: Mapping[str, Value]) -> tuple[Config, dict[str, Value]]:
    """The configuration with these hyperparameters, and the values that it has then: of a value out of its setting's range the
    one before stays, and so do both limits of V-trace where rho would be below c. Weights of rewards are no settings, so they are
    only passed on."""
    before, kept = config, dict[str, Value]()
    for name, value in values.items():
        if name.startswith(REWARD):
            kept[name] = value
            continue
        setting, _, index = name.rpartition(".") if name[-1].isdigit() else (name, "", "")
        new: object = value
        if index:
            entries: list[object] = list(get(config, setting))  # type: ignore[call-overload]
            entries[int(index)] = value
            new = tuple(entries)
        try:
            config = override(config, **{setting: new})
            kept[name] = value
        except ConfigError:
            kept[name] = get(config, name)  # type: ignore[assignment]
    if config.learning.vtrace_rho < config.learning.vtrace_c:
        limits = {name: get(before, name) for name in ("learning.vtrace_rho", "learning.vtrace_c")}
        config = override(config, **limits)
        kept |= {name: value for name, value in limits.items() if name in kept and value is not None}
    return config, kept
