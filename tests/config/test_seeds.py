"""Seeds: what is evaluated, watched or filmed is never what was trained on, and nothing is trained on twice."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.config import Config, ConfigError, override
from headrace.config.seeds import MOST, RANGE, Use, environment_seed, next_seed, random_seed
from headrace.envs.core.contract import ActionSpec, EnvSpec
from headrace.envs.groups.match import SEED_STEP, Match, MatchRules
from headrace.sampling.worker_process import actor_seed
from headrace.sampling.worker_process import environment_seed as worker_seed

RUNS = (*range(40), 1_000_000, 2**31 - 1)
WITH_ENVIRONMENTS = (Use.TRAINING, Use.EVALUATION, Use.BACKGROUND, Use.VIDEO)


def trained_on(config: Config, restarts: int = 0, version: int = 0) -> set[int]:
    """The seeds of all environments of a run, by worker, group and environment, as `RolloutWorker.start` counts them."""
    found: list[int] = []
    for worker, group in itertools.product(range(config.sampling.num_workers), range(config.sampling.num_groups)):
        first = worker_seed(config, worker, restarts, version) + group * config.envs_per_group
        found += range(first, first + config.envs_per_group)
    assert len(set(found)) == len(found) == config.num_envs
    return set(found)


def counted(first: int, environments: int = 64) -> set[int]:
    return set(range(first, first + environments))


def test_no_seed_has_two_uses() -> None:
    """Over run seeds, workers, groups, restarts, resumes, lost servers, background evaluation, `headrace eval`, videos."""
    config = override(Config(env="walk"), **{"sampling.num_workers": 4, "sampling.envs_per_worker": 16})
    training = [
        trained_on(override(config, seed=seed), restarts, version)
        for seed in RUNS
        for restarts, version in ((0, 0), (1, 0), (0, 1), (3, 500))
    ]
    training += [
        counted(next_seed(worker_seed(override(config, seed=seed), 0), number)) for seed in RUNS for number in range(1, 4)
    ]
    others = [counted(environment_seed(use, seed)) for use in WITH_ENVIRONMENTS[1:] for seed in RUNS]
    everything = training + others
    assert len(set().union(*everything)) == sum(map(len, everything))


@pytest.mark.parametrize("use", WITH_ENVIRONMENTS)
def test_a_use_keeps_to_its_range(use: Use) -> None:
    """So that two uses never meet, even in the largest run and in the most unfortunate draw."""
    seeds = [environment_seed(use, seed, key) for seed in RUNS for key in range(50)]
    seeds += [next_seed(seed, number) for seed in seeds for number in (0, 1, 7)]
    assert all(use * RANGE <= seed <= (use + 1) * RANGE - MOST for seed in seeds)
    assert len(WITH_ENVIRONMENTS) * RANGE == 2**31
    largest = override(Config(env="walk"), **{"sampling.num_workers": 4096, "sampling.envs_per_worker": 65_536})
    assert largest.num_envs <= MOST


@pytest.mark.parametrize("use", WITH_ENVIRONMENTS)
def test_no_match_is_one_of_another_use(use: Use) -> None:
    """However many matches are played."""
    env = SimpleNamespace(possible_agents=[])
    match = Match(0, env, MatchRules(EnvSpec({}, ActionSpec(())), np.array, None, False))  # type: ignore[arg-type]
    match.seed, seeds = environment_seed(use, 0), list[int]()
    for match.number in range(5000):
        seeds.append(match.reset_seed)
    assert all(use * RANGE <= seed < (use + 1) * RANGE for seed in seeds)
    assert len(set(seeds)) == len(seeds)
    assert seeds[:2] == [match.seed, match.seed + SEED_STEP]


def test_they_are_numpys() -> None:
    (word,) = np.random.SeedSequence(7, spawn_key=(4, 2, 1, 0, 0)).generate_state(1, np.uint64)
    assert actor_seed(override(Config(env="walk"), seed=7), 2, 1, 0) == random_seed(Use.ACTING, 7, 2, 1, 0, 0) == int(word) // 2


def test_actors_draw_differently() -> None:
    config = Config(env="walk")
    seeds = {actor_seed(config, *key) for key in itertools.product(range(20), range(3), range(3))}
    assert len(seeds) == 180


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="the seed is -1; it must be at least 0"):
        environment_seed(Use.EVALUATION, -1)
