"""An algorithm's name promises its mathematics and its numbers, on every environment family, end to end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import published
import pytest

from headrace import cli
from headrace.config import Config, ConfigError, load, policy_configs
from headrace.learning import policy_gradient
from headrace.learning.algorithm import make_algorithm
from headrace.learning.presets import policy_gradient as presets
from headrace.learning.r2d2 import R2D2
from headrace.make_config import check_config, make_config
from headrace.train import train

FAMILIES = {
    "gym/CartPole-v1": "gymnasium",
    "gym/Pendulum-v1": "gymnasium",
    "atari/pong": "ale_py",
    "vizdoom/basic": "vizdoom",
    "dm_control/cartpole-swingup": "dm_control",
}
TARGETS = {"appo": "vtrace", "impala": "vtrace", "ppo": "gae", "a2c": "gae"}


def setting(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("preset", ["small", "paper"])
@pytest.mark.parametrize("algorithm", TARGETS)
@pytest.mark.parametrize("env", FAMILIES)
def test_what_an_algorithms_name_promises_holds_in_its_runs(env: str, algorithm: str, preset: str) -> None:
    pytest.importorskip(FAMILIES[env])
    config = make_config(env, algorithm, **{"learning.preset": preset})
    check_config(config)
    assert config.learning.algorithm == algorithm
    promised = presets.PROMISED[algorithm]
    assert {name: setting(config, name) for name in promised} == promised
    if algorithm in ("appo", "ppo"):
        assert config.learning.ppo_clip is not None, "what makes it PPO"
    else:
        assert (config.learning.num_epochs, config.learning.num_minibatches, config.learning.ppo_clip) == (1, 1, None)


@pytest.mark.parametrize("algorithm", TARGETS)
@pytest.mark.parametrize("env", FAMILIES)
def test_every_number_of_a_paper_reaches_its_runs(env: str, algorithm: str) -> None:
    """Of the environment's own numbers for PPO, on images and on vectors, none is left."""
    pytest.importorskip(FAMILIES[env])
    config = make_config(env, algorithm, **{"learning.preset": "paper"})
    numbers = presets.PAPER[algorithm]["images" if env in ("atari/pong", "vizdoom/basic") else "vectors"]
    lists = {name: list(x) if isinstance(x, tuple) else x for name in numbers for x in [setting(config, name)]}
    assert lists == {name: list(x) if isinstance(x, tuple) else x for name, x in numbers.items()}


def test_ppo_of_the_paper_on_vectors() -> None:
    """Schulman et al. 2017, Table 3: horizon 2048, Adam 3e-4, 10 epochs of minibatches of 64, 0.99, 0.95, clip 0.2."""
    config = make_config("gym/Pendulum-v1", "ppo", **{"learning.preset": "paper"})
    c = config.learning
    assert (config.num_envs, config.sampling.rollout, c.batch_size // c.num_minibatches, c.num_epochs) == (1, 2048, 64, 10)
    assert (c.optimizer, c.learning_rate, c.lr_schedule, c.gamma, c.gae_lambda, c.ppo_clip) == (
        "adam", 3e-4, "constant", 0.99, 0.95, 0.2,
    )  # fmt: skip
    assert config.policy.separate_critic
    assert config.policy.mlp == (64, 64)


TASKS = ["gym/CartPole-v1", "gym/Acrobot-v1", "gym/MountainCar-v0"]


@pytest.mark.parametrize(("algorithm", "preset", "share", "tasks", "sizes"), [
    ("ppo", "paper", "compute", 2, (2, 2048, 2048, 32)),
    ("ppo", "paper", "samples", 3, (3, 2048, 3 * 2048, 32)),
    ("pqn", "paper", "samples", 3, (33, 64, 33 * 64, 16)),
    ("ppo", "small", "samples", 3, (36, 64, 36 * 64, 16)),
])  # fmt: skip
def test_several_tasks_have_the_sizes_of_one_where_minibatches_hold_single_steps(
    algorithm: str, preset: str, share: str, tasks: int, sizes: tuple[int, int, int, int]
) -> None:
    """Rounded to trajectories. As if minibatches held whole ones, PPO's batches of the paper had 65,536 steps."""
    config = make_config(TASKS[:tasks], algorithm, **{"learning.preset": preset, "envs.task_share": share})
    check_config(config)
    c = config.learning
    assert (config.num_envs, config.sampling.rollout, c.batch_size, c.num_minibatches) == sizes


def test_several_tasks_in_one_process_have_little_more_environments_than_one() -> None:
    games = ["atari/pong", "atari/boxing", "atari/breakout"]
    config = make_config(games, "pqn", **{"learning.preset": "paper", "sampling.placement": "device"})
    check_config(config)
    assert (config.num_envs, config.learning.batch_size, config.learning.num_minibatches) == (129, 129 * 32, 32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of targets was computed."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Any:
        function = getattr(policy_gradient, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("vtrace", "gae"):
        monkeypatch.setattr(policy_gradient, name, counted(name))
    return counts


@pytest.mark.parametrize("algorithm", TARGETS)
@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/pong", "vizdoom/basic", "dm_control/cartpole-swingup"])
def test_the_targets_that_are_computed(tmp_path: Path, calls: Counter[str], env: str, algorithm: str) -> None:
    """Counted in a real run of `train`."""
    pytest.importorskip(FAMILIES[env])
    small = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "sampling.rollout": 4, "learning.batch_size": 8}
    quiet = {"run.video": False, "run.dashboard": False, "run.folder": str(tmp_path), "learning.device": "cpu"}
    settings = {"sampling.placement": "serial", "learning.num_minibatches": 1, "learning.num_threads": 1, "policy.hidden": 16}
    config = make_config(env, algorithm, **small, **quiet, **settings, **{"learning.total_steps": 24})
    assert train(config).reason == "total_steps"
    assert set(calls) == {TARGETS[algorithm]}
    assert calls[TARGETS[algorithm]] >= 3


@pytest.mark.parametrize("algorithm", TARGETS)
def test_the_targets_that_the_command_line_computes(tmp_path: Path, calls: Counter[str], algorithm: str) -> None:
    """Of an environment whose own defaults are of another algorithm."""
    flags = "--placement serial --num-workers 1 --envs-per-worker 2 --rollout 4 --batch-size 8 --learning.num-minibatches 1"
    more = f"--total-steps 24 --run.no-video --run.no-dashboard --run.folder {tmp_path} --learning.device cpu"
    command = f"train --env gym/CartPole-v1 --learning.algorithm {algorithm} {flags} {more}"
    assert cli.main(command.split()) == 0
    assert set(calls) == {TARGETS[algorithm]}


def test_a_policy_with_an_algorithm_of_its_own_begins_with_its_settings(tmp_path: Path, calls: Counter[str]) -> None:
    """It had those of the run's algorithm: PPO with GAE under the name of IMPALA."""
    settings: dict[str, Any] = {
        "sampling.num_workers": 1, "sampling.envs_per_worker": 2, "sampling.rollout": 4, "sampling.placement": "serial",
        "run.video": False, "run.dashboard": False, "run.folder": str(tmp_path), "learning.device": "cpu",
        "learning.num_threads": 1, "learning.total_steps": 24, "learning.learning_rate": 0.01,
        "population.size": 2, "population.overrides": {"1": {"learning.algorithm": "impala"}},
    }  # fmt: skip
    config = make_config("gym/CartPole-v1", **settings)
    first, second = policy_configs(config)
    assert (first.learning.algorithm, first.learning.returns) == ("ppo", "gae")
    assert {name: setting(second, name) for name in presets.IMPALA} == presets.IMPALA
    assert (second.learning.learning_rate, second.sampling.rollout, second.learning.batch_size) == (0.01, 4, 160)
    assert train(config).reason == "total_steps"
    assert set(calls) == {"gae", "vtrace"}
    assert train(make_config("gym/CartPole-v1", **settings | {"learning.total_steps": 300})).reason == "total_steps", "resumed"


def test_a_policy_with_a_preset_of_its_own_has_its_numbers() -> None:
    own = {"1": {"learning.preset": "paper", "learning.gamma": 0.9}}
    c = policy_configs(make_config("gym/CartPole-v1", **{"population.size": 2, "population.overrides": own}))[1].learning
    assert (c.algorithm, c.num_epochs, c.batch_size, c.gamma) == ("ppo", 10, 2048, 0.9)
    with pytest.raises(ConfigError, match=r"of policy 1: .* 'imapla' is unknown"):
        make_config("gym/CartPole-v1", **{"population.size": 2, "population.overrides": {"1": {"learning.algorithm": "imapla"}}})


def test_an_algorithm_that_is_set_after_make_config_begins_with_its_settings(tmp_path: Path, calls: Counter[str]) -> None:
    """As the page says: a change of what `make_config` gave counts as a flag. It was PPO with GAE under IMPALA's name."""
    small = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "sampling.rollout": 4, "learning.num_threads": 1}
    quiet = {"run.video": False, "run.dashboard": False, "run.folder": str(tmp_path), "learning.device": "cpu"}
    config = make_config("gym/CartPole-v1", "ppo", **small, **quiet, **{"sampling.placement": "serial"})
    config.learning.algorithm, config.learning.total_steps = "impala", 24
    assert train(config).reason == "total_steps"
    assert set(calls) == {"vtrace"}
    ran = load(tmp_path / "config.json")
    assert {name: setting(ran, name) for name in presets.IMPALA} == presets.IMPALA
    assert (ran.sampling.rollout, ran.learning.total_steps) == (4, 24)


@pytest.mark.parametrize(("env", "rollout"), [("atari/pong", 32), ("vizdoom/basic", 32), ("dm_control/cartpole-swingup", 64)])
def test_appos_trajectories_are_short_where_its_minibatches_would_have_few(env: str, rollout: int) -> None:
    """Pong's 128 steps, of which a minibatch of 256 had two trajectories, learned nothing."""
    pytest.importorskip(FAMILIES[env])
    config = make_config(env, "appo")
    check_config(config)
    assert (config.sampling.rollout, config.learning.gae_lambda) == (rollout, make_config(env, "ppo").learning.gae_lambda)


def test_families_name_the_algorithm_that_they_run() -> None:
    """Their defaults were tuned for PPO with GAE, and say so; Pong's own are for PQN."""
    for env, package in FAMILIES.items():
        pytest.importorskip(package)
        config = make_config(env)
        assert (config.learning.algorithm, config.learning.returns) == ("pqn" if env == "atari/pong" else "ppo", "gae")


# -- the papers' tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "env"), [(t, e) for t in published.TABLES for e in (t.env, *t.families)],
                         ids=lambda x: getattr(x, "algorithm", x))  # fmt: skip
def test_the_numbers_of_a_paper_reach_the_runs_that_have_its_name(table: published.Table, env: str) -> None:
    """Every number that is not said to differ; what an environment's own defaults had is not left over."""
    pytest.importorskip(FAMILIES.get(env, "ale_py"))
    config = make_config(env, table.algorithm, **{"learning.preset": table.preset})
    check_config(config)
    for number in table.numbers:
        if number.value is published.DIFFERS:
            assert number.note, f"{number.what}: how ours differs is not said"
        elif not (env.startswith("gym/") and number.setting in OF_IMAGES):
            assert number.setting is not None
            assert setting(config, number.setting) == number.value, number.what


def test_the_settings_defaults_are_those_of_appo() -> None:
    """Petrenko et al. 2020, Table A.5: what `LearningConfig` says of itself. Lambda is not in the table."""
    paper = {n: x for n, x in presets.PAPER["appo"]["vectors"].items() if n != "learning.gae_lambda"}
    assert {n: setting(Config(), n) for n in paper if n.startswith("learning.")} == {
        n: x for n, x in paper.items() if n.startswith("learning.")
    }


OF_IMAGES = ("envs.protocol", "envs.max_episode_steps")


@pytest.mark.parametrize("preset", ["small", "paper"])
@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/pong"])
def test_r2d2_is_r2d2_in_both_presets(env: str, preset: str) -> None:
    """What makes the algorithm, and not its sizes."""
    pytest.importorskip(FAMILIES[env])
    config = make_config(env, "r2d2", **{"learning.preset": preset})
    check_config(config)
    assert isinstance(make_algorithm(config), R2D2)
    names = ("learning.gamma", "replay.n_step", "replay.alpha", "replay.beta", "q.rescale", "policy.core", "envs.reward_clip")
    assert [setting(config, name) for name in names] == [0.997, 5, 0.9, 0.6, True, "lstm", None]
    assert config.sampling.rollout * 2 == config.q.sequence, "sequences overlap by half"
    with pytest.raises(ConfigError, match="needs a recurrent core"):
        check_config(make_config(env, "r2d2", **{"policy.core": "none"}))


def test_r2d2_learns_from_sequences(tmp_path: Path) -> None:
    small = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "policy.core_size": 8, "policy.mlp": [8],
             "policy.hidden": 8, "learning.batch_size": 4, "replay.minimum": 100, "replay.capacity": 1000}  # fmt: skip
    quiet = {"run.video": False, "run.dashboard": False, "run.folder": str(tmp_path), "learning.device": "cpu"}
    settings = {"sampling.placement": "serial", "learning.num_threads": 1, "learning.total_steps": 600}
    result = train(make_config("gym/CartPole-v1", "r2d2", **small, **quiet, **settings))
    assert result.reason == "total_steps"


@pytest.mark.parametrize(("env", "preset", "noisy", "epsilon"), [
    ("atari/pong", "small", False, (1.0, 0.01)),
    ("gym/CartPole-v1", "small", True, (0.0, 0.0)),
    ("atari/pong", "paper", True, (0.0, 0.0)),
])  # fmt: skip
def test_rainbow_explores_by_noise_but_on_images(env: str, preset: str, noisy: bool, epsilon: tuple[float, float]) -> None:
    q = make_config(env, "rainbow", **{"learning.preset": preset}).q
    assert (q.noisy, (q.epsilon_first, q.epsilon_last)) == (noisy, epsilon)
    assert (q.double, q.dueling, q.atoms) == (True, True, 51)


def test_the_page_about_lag_has_the_slots_that_cartpole_has() -> None:
    config = make_config("gym/CartPole-v1")
    page = " ".join((Path(__file__).parents[2] / "docs" / "policy-lag.md").read_text().split())
    estimate = config.num_slots * config.sampling.rollout * config.envs_per_group // config.learning.batch_size + 1
    assert f"{config.num_slots} slots, {config.total_groups} for the groups" in page
    assert f"the estimate is {estimate}." in page
    assert f"batch {config.learning.batch_size})" in page
