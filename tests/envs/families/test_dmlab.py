"""The adapter for DeepMind Lab, with a stand-in for the package: nothing here shows how it works with the package itself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace.config import ConfigError, EnvConfig
from headrace.config.errors import MissingExtra
from headrace.config.seeds import Use, environment_seed
from headrace.envs.core import registry
from headrace.envs.core.errors import EnvironmentFault, UnknownEnvironment
from headrace.envs.core.reference_scores import reference
from headrace.envs.families.level_cache import LevelCache
from headrace.envs.make import make_env
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.train import train

STAND_IN = Path(__file__).parents[1] / "lab_stand_in.py"
INSTALLED = importlib.util.find_spec("deepmind_lab") is not None
SHORT = {"config": {"episodeLengthSeconds": 1}}
"""60 frames: 15 steps."""


@pytest.fixture
def lab() -> Iterator[ModuleType]:
    """The stand-in, as the package."""
    before = {name: sys.modules.pop(name, None) for name in ("deepmind_lab", "headrace.envs.families.dmlab")}
    specification = importlib.util.spec_from_file_location("lab_stand_in", STAND_IN)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    yield module
    for name, was in before.items():
        sys.modules.pop(name, None)
        if was is not None:
            sys.modules[name] = was


def make(name: str = "rooms_watermaze", **settings: Any) -> Any:
    return make_env(f"dmlab/{name}", EnvConfig(**settings))


@pytest.mark.skipif(INSTALLED, reason="deepmind_lab is installed")
def test_without_the_package_it_is_said_how_to_build_it() -> None:
    with pytest.raises(MissingExtra, match=r"dmlab environments need .* build deepmind_lab as https://github.com/google"):
        registry.check_id("dmlab/rooms_watermaze")
    assert not any(name.startswith("dmlab/") for name in registry.list_ids())


def test_levels_are_known_by_name_and_by_path(lab: ModuleType) -> None:
    assert len(registry.list_ids("dmlab")) == 32
    assert all(reference(name) is not None for name in registry.list_ids("dmlab")), "each has a random and a human score"
    assert make().unwrapped.lab.level == "contributed/dmlab30/rooms_watermaze"
    assert make("contributed/dmlab30/rooms_watermaze").unwrapped.lab.level == "contributed/dmlab30/rooms_watermaze"
    assert make("tests/empty_room_test").unwrapped.lab.level == "tests/empty_room_test"
    assert make("lt_chasm").unwrapped.lab.level == "lt_chasm"
    with pytest.raises(UnknownEnvironment):
        registry.check_id("dmlab/no level")
    with pytest.raises(EnvironmentFault, match="Failed to load level no/such/level"):
        make("no/such/level")


def test_a_step_is_four_frames_of_one_of_fifteen_actions(lab: ModuleType) -> None:
    env = make(kwargs=SHORT)
    assert env.action_space.n == 15
    assert env.observation_space.shape == (72, 96, 3)
    assert (env.unwrapped.lab.config["width"], env.unwrapped.lab.config["height"]) == ("96", "72")
    first, _ = env.reset(seed=5)
    kept = first.copy()
    second, reward, terminated, truncated, _ = env.step(0)
    assert reward == 4.0, "forward, 4 frames"
    assert np.array_equal(first, kept), "the package's memory is not handed on"
    assert int(second[0, 0, 0]) - int(first[0, 0, 0]) in (4, -252)
    assert env.step(1)[1] == 0.0, "backward"
    for _ in range(12):
        _, _, terminated, truncated, _ = env.step(13)
        assert not terminated
    last, reward, terminated, truncated, _ = env.step(12)
    assert (reward, terminated, truncated) == (4.0, True, False)
    assert last.shape == (72, 96, 3)
    env.reset()
    assert make(frameskip=2, resize=(36, 48), kwargs={**SHORT, "actions": "impala"}).action_space.n == 9
    env.close()


def test_the_same_seed_has_the_same_levels(lab: ModuleType) -> None:
    def seeds(seed: int, **kwargs: Any) -> list[int]:
        env = make(kwargs={**SHORT, **kwargs})
        found = []
        for episode in range(40):
            env.reset(seed=seed if episode == 0 else None)
            found.append(env.unwrapped.lab.seed)
        return found

    assert seeds(3) == seeds(3) != seeds(4)
    assert len(set(seeds(3))) == 40
    training = environment_seed(Use.TRAINING, 0)
    evaluation = environment_seed(Use.EVALUATION, 0)
    assert set(seeds(training, level_seeds=5)) == set(range(5))
    assert not set(seeds(evaluation, level_seeds=5)) & set(range(5)), "no level of training is evaluated"


def test_levels_are_compiled_once(lab: ModuleType, tmp_path: Path) -> None:
    kwargs = {**SHORT, "level_cache": str(tmp_path / "levels"), "level_seeds": 3}
    for _ in range(2):
        env = make(kwargs=kwargs)
        for episode in range(20):
            env.reset(seed=1 if episode == 0 else None)
    assert len(lab.compiled) == 3
    assert len(list((tmp_path / "levels").iterdir())) == 3, "and nothing half written"
    cache = LevelCache(str(tmp_path / "levels"))
    (tmp_path / "new.pk3").write_bytes(b"level")
    for key in ("../outside", "/etc/passwd", "x" * 300, ".hidden", "maze-1_2.pk3"):
        assert cache.fetch(key, str(tmp_path / "out.pk3")) is False
        cache.write(key, str(tmp_path / "new.pk3"))
        assert cache.fetch(key, str(tmp_path / "out.pk3")) is True
        assert (tmp_path / "out.pk3").read_bytes() == b"level"
    assert (tmp_path / "levels" / "maze-1_2.pk3").is_file(), "plain keys are file names: folders of others can be used"
    assert {path.name for path in tmp_path.iterdir()} == {"levels", "new.pk3", "out.pk3"}


def test_words_are_hashed(lab: ModuleType) -> None:
    env = make(kwargs={**SHORT, "instructions": "buckets"})
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    words = observation["instruction"]
    assert words.shape == (16,)
    assert (words[:5] >= 1).all()
    assert (words[5:] == 0).all()
    later = env.step(0)[0]["instruction"]
    assert np.array_equal(later[:4], words[:4]), "the same words"
    assert later[4] != words[4], "another one"
    bag, _ = make(kwargs={**SHORT, "instructions": "bag"}).reset(seed=0)
    assert sorted(np.flatnonzero(bag["instruction"])) == sorted(set(words[:5].astype(int)))


def test_settings_that_there_are_not_are_refused(lab: ModuleType) -> None:
    for kwargs, message in (
        ({"actions": "all"}, "no actions 'all'; there are impala, extended"),
        ({"instructions": "lstm"}, "must be null, buckets or bag"),
        ({"level_seeds": 0}, "must be at least 1"),
        ({"speed": 3}, "dmlab/rooms_watermaze: .*'speed'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(kwargs=kwargs)


def test_it_trains_on_several_levels(lab: ModuleType, tmp_path: Path) -> None:
    settings = {
        "run.folder": str(tmp_path / "run"), "run.dashboard": False, "run.video": False, "run.log_interval": 0.0,
        "sampling.placement": "serial", "sampling.envs_per_worker": 2, "sampling.rollout": 8, "learning.batch_size": 16,
        "learning.total_steps": 192, "learning.num_threads": 1, "learning.device": "cpu", "policy.encoder": "nature-cnn",
        "policy.hidden": 16, "policy.core_size": 8, "envs.kwargs": SHORT,
    }  # fmt: skip
    config = make_config(["dmlab/rooms_watermaze", "dmlab/lasertag_one_opponent_small"], imports=[STAND_IN], **settings)
    train(config)
    last = read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["tasks/dmlab/rooms_watermaze/episodic_return"] <= 60
    assert "tasks/capped_mean_score" in last
