"""Defaults fit the environment that they are for: CartPole's are CartPole's, images get an image network, a user's own scenario
keeps its rewards."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gymnasium
import pytest

from headrace.config import EnvConfig
from headrace.envs.core import registry
from headrace.envs.core.settings import defaults
from headrace.envs.make import describe_here
from headrace.make_config import check_config, make_config

CARTPOLE = defaults("gym/CartPole-v1")


@pytest.mark.parametrize("env_id", registry.list_ids("gym"))
def test_only_cartpole_has_the_settings_of_cartpole(env_id: str) -> None:
    """A discount of 0.98 looks 50 steps ahead: MountainCar's goal is 100 steps away, a lap of CarRacing 1,000."""
    config = make_config(env_id)
    if env_id.startswith("gym/CartPole-v"):
        assert defaults(env_id) == CARTPOLE
        assert (config.learning.gamma, config.learning.total_steps) == (0.98, 500_000)
        return
    assert config.learning.gamma == 0.99
    assert config.learning.gae_lambda == 0.95
    assert config.learning.num_epochs > 1
    assert config.learning.algorithm == "ppo"
    spec = gymnasium.spec(env_id.removeprefix("gym/"))
    assert config.learning.total_steps == (1_000_000 if "gymnasium.envs.mujoco" in str(spec.entry_point) else 10_000_000)
    one_hot = "toy_text" in str(spec.entry_point)
    assert config.policy.normalize_observations == (not one_hot and registry.observes(env_id) == "vectors")


@pytest.mark.parametrize(
    ("env_id", "shape"),
    [("gym/ALE/Pong-v5", (4, 84, 84)), ("gym/CarRacing-v3", (4, 84, 84)), ("gym/headrace/Breakout-v5", (4, 84, 84))],
)
def test_environments_of_images_are_known_by_their_ids(env_id: str, shape: tuple[int, ...]) -> None:
    import headrace_atari  # noqa: F401 - registers headrace/Breakout-v5

    config = make_config(env_id)
    assert registry.observes(env_id) == "images"
    assert config.policy.encoder == "nature-cnn"
    if "CarRacing" not in env_id or importlib.util.find_spec("Box2D"):
        assert describe_here(env_id, config.envs).observation["obs"].shape == shape
    assert config.envs.reward_clip == (None if "CarRacing" in env_id else 1.0)
    replay = make_config(env_id, "apex-dqn")
    assert replay.policy.encoder == "nature-conv"
    assert replay.replay.codec != "none"


def test_mujoco_has_settings_of_its_own_and_algorithms_keep_theirs() -> None:
    config = make_config("gym/Hopper-v5")
    assert (config.sampling.placement, config.num_envs, config.learning.batch_size) == ("inline", 16, 2048)
    assert (config.learning.num_epochs, config.learning.num_minibatches, config.learning.lr_schedule) == (10, 8, "linear")
    assert config.policy.normalize_observations
    assert config.policy.normalize_returns
    assert config.policy.separate_critic
    assert config.policy.initial_std == 0.6
    for algorithm in ("ppo", "appo", "impala", "a2c"):
        assert make_config("gym/Hopper-v5", algorithm, **{"learning.preset": "paper"}).policy.initial_std == 1.0
    check_config(make_config("gym/Hopper-v5", "apex-dpg"))
    impala = make_config("gym/Hopper-v5", "impala").learning
    assert (impala.num_epochs, impala.num_minibatches, impala.returns) == (1, 1, "vtrace")


def test_other_environments_observe_vectors() -> None:
    assert registry.observes("gym/Acrobot-v1") == "vectors"
    assert registry.observes("gym/some_package:Thing-v0") is None, "one must be made to see"
    config = make_config("gym/some_package:Thing-v0")  # which cannot be made
    assert config.learning.learning_rate == 5e-4
    assert config.policy.encoder == "auto"  # which takes a convolutional network for images


def test_rewards_of_a_users_own_scenario_are_not_scaled(tmp_path: Path) -> None:
    pytest.importorskip("vizdoom")
    assert make_config("vizdoom/basic").envs.reward_scale == 0.01
    for name in ("mine.cfg", "basic.cfg"):
        (tmp_path / name).write_text("living_reward = -1\n")
        assert make_config(f"vizdoom/{tmp_path / name}").envs.reward_scale == EnvConfig().reward_scale == 1.0
