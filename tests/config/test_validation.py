"""Settings that cannot work are refused before anything starts, with the numbers."""

import pytest
import torch

from headrace.config import Config, ConfigError, override
from headrace.config.validation import check_device, validate
from headrace.envs.core import registry
from headrace.make_config import check_config, make_config


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/pong", "vizdoom/basic"])
@pytest.mark.parametrize("algorithm", ["appo", "ppo", "impala", "a2c", "apex-dqn"])
def test_the_defaults_are_valid(env, algorithm):
    validate(make_config(env, algorithm))


def test_a_configuration_built_by_hand_is_checked_too():
    config = Config()
    config.learning.gamma = 1.5
    with pytest.raises(ConfigError, match=r"learning\.gamma is 1\.5; it must be at most 1"):
        validate(config)


def test_a_policy_lag_that_the_numbers_of_versions_cannot_hold_is_refused():
    """Versions are int32: a limit of 2^31 masked every sample, and the run had no end."""
    validate(override(make_config("gym/CartPole-v1"), **{"learning.max_policy_lag": 10**6}))
    for lag in (10**6 + 1, 2**31):
        with pytest.raises(ConfigError, match=r"learning\.max_policy_lag is \d+; it must be at most 1000000"):
            validate(override(Config(), **{"learning.max_policy_lag": lag}))


def test_a_lag_at_which_every_sample_is_masked_is_refused():
    own = {"sampling.placement": "serial", "learning.max_policy_lag": 3}
    validate(make_config("gym/CartPole-v1", "appo", **own, **{"sampling.policy_lag": 3}))
    with pytest.raises(ConfigError, match=r"policy_lag \(4\) is above learning.max_policy_lag \(3\): nothing would be learned"):
        validate(make_config("gym/CartPole-v1", "appo", **own, **{"sampling.policy_lag": 4}))


def test_the_workers_of_all_nodes_are_counted():
    many = {"cluster.nodes": "1-1024", "sampling.num_workers": 96, "sampling.placement": "served"}
    with pytest.raises(ConfigError, match=r"num_workers \(96\) on each of 1024 nodes .* are 98,304; 4,096 are possible"):
        validate(make_config("gym/CartPole-v1", "appo", **many))


def test_a_policy_worker_cannot_wait_for_more_than_it_takes():
    both = {"sampling.min_request_groups": 3, "sampling.max_request_groups": 2}
    with pytest.raises(ConfigError, match=r"min_request_groups \(3\) is above sampling.max_request_groups \(2\)"):
        validate(override(Config(), **both))
    few = override(Config(), **{"sampling.num_workers": 30, "sampling.max_request_groups": 2})
    assert few.min_request_groups == 2


def test_slots_that_a_ticket_cannot_number():
    many = override(Config(), **{"sampling.num_workers": 4096, "sampling.num_groups": 16})
    with pytest.raises(ConfigError, match=r"need 65,6\d\d trajectory slots, and 32,768 are possible: .*num_workers \(4096\)"):
        validate(many)


def test_eviction_at_random_is_asked_for_by_another_number():
    config = make_config("gym/CartPole-v1", **{"learning.algorithm": "dqn"})
    with pytest.raises(ConfigError, match="evict_alpha must not be 0"):
        check_config(override(config, **{"replay.evict_alpha": 0.0}))


def test_sequences_have_no_rows_between_them_that_nothing_is_learned_from():
    """Those that warm up the core of one are learned from by the one before."""
    check_config(make_config("gym/CartPole-v1", "r2d2", **{"sampling.rollout": 20, "q.sequence": 20, "q.burn_in": 40}))
    with pytest.raises(ConfigError, match=r"sampling\.rollout \(20\) must not be above q\.sequence \(19\)"):
        check_config(make_config("gym/CartPole-v1", "r2d2", **{"sampling.rollout": 20, "q.sequence": 19, "q.burn_in": 40}))


def test_devices_that_are_not_here():
    check_device("auto")
    check_device("cpu")
    with pytest.raises(ConfigError, match="there is no device 'gpu'"):
        check_device("gpu")
    words = "cuda:0 to cuda:" if torch.cuda.is_available() else "there is no CUDA device here; use --learning.device cpu"
    with pytest.raises(ConfigError, match=words):
        check_device("cuda:99")


def test_every_policy_learns_in_matches():
    small = {"sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 2, "learning.batch_size": 1024}
    of_two = make_config("gym/CartPole-v1", "ppo", **small, **{"envs.num_agents": 2, "sampling.rollout": 16})
    for matchmaker, as_many in (("fixed", "agents of a match, 2"), ("self-play", "environments, 2")):
        validate(override(of_two, **{"population.size": 2, "matches.matchmaker": matchmaker}))
        with pytest.raises(ConfigError, match=f"of 3 policies .* only as many can learn as there are {as_many}"):
            validate(override(of_two, **{"population.size": 3, "matches.matchmaker": matchmaker}))
    validate(override(of_two, **{"population.size": 3, "matches.matchmaker": "uniform"}))


def test_a_batch_of_matches_is_made_of_single_agents_slots():
    sizes = {"envs.num_agents": 2, "sampling.rollout": 16, "learning.batch_size": 1000}
    with pytest.raises(ConfigError, match=r"a multiple of sampling\.rollout \(16\), .*Nearest: 992 or 1008$"):
        validate(make_config("gym/CartPole-v1", "ppo", **sizes))
    of_one = {"sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 8}
    with pytest.raises(ConfigError, match=r"environments per group \(16 x 8 = 128\): .*Nearest: 896 or 1024$"):
        validate(make_config("gym/CartPole-v1", "ppo", **{**sizes, **of_one, "envs.num_agents": None}))


@pytest.mark.parametrize(
    ("given", "minibatches"),
    [
        ({}, 16),
        ({"learning.batch_size": 512}, 16),  # 512 steps; nothing ties the rows of a trajectory together
        ({"learning.batch_size": 512, "policy.core": "gru"}, 8),  # 8 trajectories of 64 steps
        ({"learning.batch_size": 64 * 16 * 3, "policy.core": "gru"}, 16),
        ({"learning.batch_size": 64 * 16 * 3, "policy.core": "gru", "learning.num_minibatches": 3}, 3),
    ],
)
def test_a_default_number_of_minibatches_divides_the_batch(given, minibatches):
    registry.register("test/vectors", observes="vectors")(lambda options, *, render_mode=None: None)
    config = make_config("test/vectors", "ppo", **given)
    assert config.learning.num_minibatches == minibatches
    validate(config)


@pytest.mark.parametrize("algorithm", ["appo", "ppo", "impala", "a2c", "pqn"])
@pytest.mark.parametrize(
    "given",
    [{}, {"sampling.envs_per_worker": 12}, {"sampling.envs_per_worker": 100}, {"sampling.rollout": 50}],
)
def test_a_default_batch_is_made_of_whole_trajectories(algorithm, given):
    before, config = make_config("gym/CartPole-v1", algorithm), make_config("gym/CartPole-v1", algorithm, **given)
    unit = config.sampling.rollout * config.lane_size
    assert config.learning.batch_size == -(-before.learning.batch_size // unit) * unit
    validate(config)


def test_a_batch_that_was_given_or_published_stays():
    with pytest.raises(ConfigError, match=r"learning\.batch_size \(160\) must be a multiple"):
        validate(make_config("gym/CartPole-v1", "impala", **{"sampling.envs_per_worker": 12, "learning.batch_size": 160}))
    many = {"sampling.num_workers": 16, "learning.preset": "paper"}
    assert make_config("gym/CartPole-v1", "impala", **many).learning.batch_size == 640
    assert make_config("gym/CartPole-v1", "impala", **{"sampling.num_workers": 16, "learning.batch_size": 160}).num_slots == 34
