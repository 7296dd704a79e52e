"""Settings that cannot work are refused before anything starts, with the numbers."""

import json
import typing

import pytest
import torch

from headrace import config as configs
from headrace.config import Config, ConfigError, override
from headrace.config.validation import RANGES, check_device, validate
from headrace.presets import make_config


def numbers(cls=Config, prefix=""):
    """Dotted names of all settings that are numbers or tuples of numbers."""
    for name, hint in typing.get_type_hints(cls).items():
        if hasattr(hint, "__dataclass_fields__"):
            yield from numbers(hint, f"{prefix}{name}.")
        kinds = {hint, *typing.get_args(hint)} | {inner for part in typing.get_args(hint) for inner in typing.get_args(part)}
        if kinds & {int, float}:
            yield prefix + name


def test_every_number_has_a_range():
    assert sorted(RANGES) == sorted(numbers())


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/pong", "vizdoom/basic"])
@pytest.mark.parametrize("algorithm", ["appo", "ppo", "impala", "a2c", "apex-dqn"])
def test_what_is_set_by_default_is_in_its_range(env, algorithm):
    validate(make_config(env, algorithm))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("run.milestone_steps", 0, "run.milestone_steps is 0; it must be at least 1"),
        ("run.eval_interval_steps", 0, "run.eval_interval_steps is 0; it must be at least 1"),
        ("run.keep_checkpoints", 0, "run.keep_checkpoints is 0; it must be at least 1"),
        ("run.eval_episodes", 0, "run.eval_episodes is 0"),
        ("learning.learning_rate", -1.0, "learning.learning_rate is -1.0; it must be at least 0"),
        ("learning.learning_rate", float("nan"), "learning.learning_rate is nan"),
        ("learning.learning_rate", "high", "learning.learning_rate is high"),
        ("learning.gamma", 1.5, "learning.gamma is 1.5; it must be in [0, 1]"),
        ("learning.adam_betas", (0.9, 1.0), "learning.adam_betas is (0.9, 1.0); each must be in"),
        ("policy.core_size", 0, "policy.core_size is 0"),
        ("policy.mlp", (64, 0), "policy.mlp is (64, 0); each must be at least 1"),
        ("envs.frame_stack", 0, "envs.frame_stack is 0"),
        ("sampling.patience", -1.0, "sampling.patience is -1.0; it must be at least 0"),
        ("sampling.num_groups", 33, "it must be in [1, 32]"),
        ("sampling.step_timeout", 0.0, "it must be above 0"),
        ("seed", -1, "seed is -1"),
    ],
)
def test_numbers_out_of_their_range(setting, value, words):
    with pytest.raises(ConfigError) as refused:
        validate(override(Config(), **{setting: value}))
    assert words in str(refused.value)


def test_a_policy_worker_cannot_wait_for_more_than_it_takes():
    both = {"sampling.min_request_groups": 3, "sampling.max_request_groups": 2}
    with pytest.raises(ConfigError, match=r"min_request_groups \(3\) is above sampling.max_request_groups \(2\)"):
        validate(override(Config(), **both))
    few = override(Config(), **{"sampling.num_workers": 30, "sampling.max_request_groups": 2})
    assert few.min_request_groups == 2


def test_devices_that_are_not_here():
    check_device("auto")
    check_device("cpu")
    with pytest.raises(ConfigError, match="there is no device 'gpu'"):
        check_device("gpu")
    words = "cuda:0 to cuda:" if torch.cuda.is_available() else "there is no CUDA device here; use --learning.device cpu"
    with pytest.raises(ConfigError, match=words):
        check_device("cuda:99")


@pytest.mark.parametrize("text", ["[]", "{", '{"run": []}', '{"gama": 1}', '"x"'])
def test_a_file_that_holds_no_configuration(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json is no configuration"):
        configs.load(tmp_path / "config.json")


def test_what_is_saved_is_loaded(tmp_path):
    configs.save(Config(), tmp_path / "config.json")
    assert configs.load(tmp_path / "config.json") == Config()
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0
