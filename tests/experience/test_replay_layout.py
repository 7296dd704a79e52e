"""How a run's replay is laid out, and what is said where it has too little room."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from history_writer import HistoryWriter

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.experience.batch import Batch, Filling
from headrace.experience.replay.experience import ReplayExperience
from headrace.experience.replay.layout import make_replay, observation_fields, replay_layout
from headrace.sampling.trajectory_fields import trajectory_fields
from headrace.shm.run_control import RunControl
from headrace.shm.trajectory_store import TrajectoryStore

NUMBER, INTEGER = ArraySpec((), np.dtype(np.float32)), ArraySpec((), np.dtype(np.int32))
SPEC = EnvSpec({"obs": ArraySpec((2,), np.dtype(np.float32))}, ActionSpec((Categorical(3),)))
SMALL = {"replay.capacity": 500, "sampling.num_workers": 1, "sampling.envs_per_worker": 64, "sampling.rollout": 64}
NOT_A_SEQUENCE = {"policy.core": "lstm", "replay.capacity": 30, "sampling.rollout": 40, "q.sequence": 40}


@pytest.mark.parametrize(("env", "stack", "stored"), [("my/game", 4, (1, 84, 84)), ("atari/pong", 1, (4, 84, 84))])
def test_images_are_stored_as_frames_where_the_environment_says_so_and_not_by_its_name(
    env: str, stack: int, stored: tuple[int, ...]
) -> None:
    image = ArraySpec((4, 84, 84), np.dtype(np.uint8), 0, 255)
    spec = EnvSpec({"obs": image}, ActionSpec((Categorical(3),)), name=env, frame_stack=stack)
    (field,) = observation_fields(Config(env=env), spec).values()
    assert (field.shape, field.stack) == (stored, stack)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SMALL, r"capacity \(500\) is too small for 64 .* memory for \d+ steps, .* of 64 \(sampling.rollout\)"),
        (NOT_A_SEQUENCE, r"capacity \(30\) is too small"),
        ({"replay.capacity": 10**10}, r"capacity \(10,000,000,000\) and replay.slack \(1.1\) ask for memory of 11,0"),
    ],
)
def test_a_capacity_that_cannot_work_is_refused_with_its_numbers(settings: dict[str, Any], said: str) -> None:
    own = {"learning.algorithm": "dqn", "learning.experience": "replay", "replay.minimum": 20} | settings
    with pytest.raises(ConfigError, match=said):
        replay_layout(configs.override(Config(env="x"), **own), SPEC, 4, 1)


@pytest.mark.parametrize(("policies", "histories"), [(1, 24), (2, 12), (3, 9)])
def test_each_of_several_policies_has_histories_for_its_own_environments_alone(policies: int, histories: int) -> None:
    """With one for every environment of the run most would stay empty, and the rest would not hold the capacity."""
    sizes = {"sampling.num_workers": 4, "sampling.envs_per_worker": 6, "sampling.num_groups": 2, "sampling.rollout": 8}
    own = {"population.size": policies, "replay.capacity": 1000, "replay.minimum": 500, **sizes}
    laid_out, _ = replay_layout(configs.override(Config(env="x"), **own), SPEC, 0, 1)
    assert laid_out.histories == histories
    assert laid_out.rows * histories >= 1000


def test_an_observation_of_more_arrays_than_a_replay_holds_is_refused() -> None:
    array = ArraySpec((2,), np.dtype(np.float32))
    config = configs.override(Config(env="x"), **{"replay.minimum": 20})
    most = 30  # besides the action and the version
    for n in (most, most + 1):
        spec = EnvSpec({f"{i}": array for i in range(n)}, SPEC.action)
        with nullcontext() if n == most else pytest.raises(ConfigError, match=r"has 31 arrays in an observation.* at most 30"):
            make_replay(config, spec)


@pytest.mark.parametrize("noise", [True, False])
def test_images_that_pack_badly_are_warned_of_before_the_first_batch(noise: bool, recwarn: pytest.WarningsRecorder) -> None:
    """The colour frames of a game in three dimensions, say: for a capacity of 4,000 there is memory for 800 or so."""
    image = ArraySpec((3, 20, 30), np.dtype(np.uint8), 0, 255)
    spec = EnvSpec({"obs": image}, ActionSpec((Categorical(3),)))
    settings = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "learning.experience": "replay", "replay.codec": "lz4",
                "replay.capacity": 4_000, "replay.minimum": 50, "learning.batch_size": 8, "learning.device": "cpu"}  # fmt: skip
    config = configs.override(Config(env="none"), **settings)
    replay, rng = make_replay(config, spec), np.random.default_rng(0)
    writer = HistoryWriter(replay, 0)
    frames = rng.integers(0, 256 if noise else 1, (100, *image.shape)).astype(np.uint8)
    writer.append({"obs/obs": frames, "action": np.zeros((100, 1)), "version": np.zeros(100)}, np.zeros(100), np.ones(100),
                  np.zeros(100, bool))  # fmt: skip
    writer.ready(np.ones(90))
    fields = trajectory_fields(spec, 0, {"q": NUMBER, "env_index": INTEGER})
    experience = ReplayExperience(config, TrajectoryStore(fields, 2, 4, 1), RunControl({}), replay, lambda n: None)
    for _ in range(2):
        assert isinstance(experience.next(), Batch)
        experience.release()
    said = [str(w.message) for w in recwarn]
    assert len(said) == noise
    if noise:
        assert "room for 8" in said[0]
        assert "of 4,000 transitions" in said[0]


def test_a_minimum_that_cannot_be_reached_is_warned_of_once(recwarn: pytest.WarningsRecorder) -> None:
    image = ArraySpec((3, 20, 30), np.dtype(np.uint8), 0, 255)
    spec = EnvSpec({"obs": image}, ActionSpec((Categorical(3),)))
    settings = {"sampling.num_workers": 1, "sampling.envs_per_worker": 2, "learning.experience": "replay", "replay.codec": "lz4",
                "replay.capacity": 400, "replay.minimum": 300, "learning.batch_size": 8, "learning.device": "cpu"}  # fmt: skip
    config = configs.override(Config(env="none"), **settings)
    replay, rng = make_replay(config, spec), np.random.default_rng(0)
    writers = [HistoryWriter(replay, history) for history in range(2)]
    fields = trajectory_fields(spec, 0, {"q": NUMBER, "env_index": INTEGER})
    experience = ReplayExperience(config, TrajectoryStore(fields, 2, 4, 1), RunControl({}), replay, lambda n: None)
    for _ in range(40):
        for writer in writers:
            frames = rng.integers(0, 256, (8, *image.shape)).astype(np.uint8)
            writer.append({"obs/obs": frames, "action": np.zeros((8, 1)), "version": np.zeros(8)}, np.zeros(8), np.ones(8),
                          np.zeros(8, bool))  # fmt: skip
            writer.ready(np.ones(8))
        assert isinstance(experience.next(), Filling)
    (said,) = [str(w.message) for w in recwarn]
    assert "fewer than replay.minimum (300)" in said
    assert "replay.packed_share" in said
