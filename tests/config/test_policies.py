"""The settings of each policy of a population: what may differ, and what is refused with which reason."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import Config, ConfigError, from_dict, override, policy_config, policy_configs, to_dict
from headrace.make_config import check_config, make_config
from headrace.runs.changed_settings import compare


def population(size: int, **overrides: Any) -> Config:
    settings = {number.removeprefix("p"): own for number, own in overrides.items()}
    given = {"population.size": size, "population.overrides": settings, "sampling.num_workers": 4}
    return make_config("gym/CartPole-v1", **given)


def test_one_policy_has_the_settings_of_the_run_itself() -> None:
    config = population(1)
    assert policy_config(config, 0) is config


def test_a_policy_has_its_own_settings_and_the_runs_others() -> None:
    config = population(3, p1={"learning.learning_rate": 0.5, "policy.mlp": [7]})
    first, second, third = policy_configs(config)
    assert first is config
    assert (second.learning.learning_rate, second.policy.mlp) == (0.5, (7,))
    assert second.learning.gamma == config.learning.gamma
    assert (third.learning.learning_rate, third.policy.mlp) == (config.learning.learning_rate, config.policy.mlp)
    check_config(config)


def test_policies_start_with_different_weights() -> None:
    seeds = {own.seed for run in range(20) for own in policy_configs(override(population(4), seed=run))}
    assert len(seeds) == 80, "those of other runs, too"


def test_all_policies_are_in_the_run_folder_also_where_its_name_follows_from_the_seed() -> None:
    config = population(3)
    assert config.run.folder is None
    assert [own.policy_folder(p) for p, own in enumerate(policy_configs(config))] == [config.policy_folder(p) for p in range(3)]


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"sampling.rollout": 4}, "sampling.rollout of policy 1 must be that of the run, since policies share rollout workers"),
        ({"env": "gym/Acrobot-v1"}, "env of policy 1 .* same environments"),
        ({"envs.frameskip": 2}, "before it is known which policy acts"),
        ({"run.name": "x"}, "share the run folder"),
        ({"seed": 3}, "follows from the run's seed"),
        ({"cluster.window": 3}, "the same machines"),
        ({"learning.experience": "replay"}, "divide the processor"),
        ({"learning.learning_rat": 1.0}, "policy 1: there is no setting 'learning.learning_rat'"),
        ({"learning": {"learning_rate": 1.0}}, "policy 1: learning is a group of settings: .*'learning.learning_rate'"),
        ({"learning.learning_rate": -1.0}, "policy 1: learning.learning_rate is -1.0; it must be at least 0"),
        ({"learning.batch_size": 100}, "must be a multiple of"),
        ({"learning.algorithm": "apex-dqn"}, "cannot work with learning.experience trajectories"),
        ([], "must be a JSON object"),
    ],
)
def test_what_cannot_differ_is_refused_with_the_reason(own: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_config(population(2, p1=own))


@pytest.mark.parametrize("number", ["2", "-1", "x", "01"])
def test_settings_of_a_policy_that_there_is_not_are_refused(number: str) -> None:
    config = make_config("gym/CartPole-v1", **{"population.size": 2, "population.overrides": {number: {}}})
    with pytest.raises(ConfigError, match="there are policies 0 to 1"):
        check_config(config)


def test_they_survive_json() -> None:
    config = population(2, p1={"policy.mlp": [7, 8]})
    assert from_dict(to_dict(config)) == config


def test_a_resumed_run_keeps_the_networks_of_its_policies(tmp_path: Any) -> None:
    config = population(2, p1={"policy.mlp": [7], "learning.learning_rate": 0.1})
    rate = override(config, **{"population.overrides": {"1": {"policy.mlp": [7], "learning.learning_rate": 0.2}}})
    assert compare(config, rate, tmp_path) == ["population.overrides.1.learning.learning_rate: 0.1 -> 0.2"]
    network = override(config, **{"population.overrides": {"1": {"policy.mlp": [8], "learning.learning_rate": 0.1}}})
    with pytest.raises(ConfigError, match=r"overrides.1.policy.mlp: .* \(it describes the network"):
        compare(config, network, tmp_path)
    with pytest.raises(ConfigError, match=r"population\.size: 2 -> 3"):
        compare(config, override(config, **{"population.size": 3}), tmp_path)
