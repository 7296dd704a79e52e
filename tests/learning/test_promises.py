"""An algorithm's name promises its mathematics and its numbers, on every environment family, end to end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.learning import builtin, policy_gradient
from headrace.make_config import make_config
from headrace.train import train

FAMILIES = {
    "gym/CartPole-v1": "gymnasium",
    "gym/Pendulum-v1": "gymnasium",
    "atari/pong": "ale_py",
    "vizdoom/basic": "vizdoom",
    "dm_control/cartpole-swingup": "dm_control",
}
TARGETS = {"appo": "vtrace", "impala": "vtrace", "ppo": "gae", "a2c": "gae"}
TABLES = {"appo": builtin.APPO, "impala": builtin.IMPALA, "ppo": builtin.PPO, "a2c": builtin.A2C}


def setting(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("algorithm", TARGETS)
@pytest.mark.parametrize("env", FAMILIES)
def test_every_number_of_an_algorithm_reaches_its_runs(env: str, algorithm: str) -> None:
    pytest.importorskip(FAMILIES[env])
    config = make_config(env, algorithm)
    assert config.learning.algorithm == algorithm
    assert {name: setting(config, name) for name in TABLES[algorithm]} == TABLES[algorithm]
    if algorithm in ("appo", "ppo"):
        assert config.learning.ppo_clip is not None, "what makes it PPO"


@pytest.mark.parametrize("algorithm", TARGETS)
@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/pong", "vizdoom/basic", "dm_control/cartpole-swingup"])
def test_the_targets_that_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, algorithm: str) -> None:
    """Counted in a real run of `train`."""
    pytest.importorskip(FAMILIES[env])
    calls: Counter[str] = Counter()

    def counted(name: str) -> Any:
        function = getattr(policy_gradient, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("vtrace", "gae"):
        monkeypatch.setattr(policy_gradient, name, counted(name))
    small = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "sampling.rollout": 4, "learning.batch_size": 8}
    quiet = {"run.video": False, "run.dashboard": False, "run.folder": str(tmp_path), "learning.device": "cpu"}
    settings = {"sampling.placement": "serial", "learning.num_minibatches": 1, "learning.num_threads": 1, "policy.hidden": 16}
    config = make_config(env, algorithm, **small, **quiet, **settings, **{"learning.total_steps": 24})
    assert train(config).reason == "total_steps"
    assert set(calls) == {TARGETS[algorithm]}
    assert calls[TARGETS[algorithm]] >= 3


def test_families_name_the_algorithm_that_they_run() -> None:
    """Their defaults were tuned for PPO with GAE, and say so."""
    for env, package in FAMILIES.items():
        pytest.importorskip(package)
        config = make_config(env)
        assert (config.learning.algorithm, config.learning.returns) == ("ppo", "gae")
