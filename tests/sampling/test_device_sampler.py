"""Sampling in one process: which rows a batch holds, and that a stopped run goes on where it was."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import counting
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from test_serial import assert_resumed_is_straight, run

from headrace import config as configs
from headrace.cli.flags import parse_config
from headrace.config import Config, ConfigError
from headrace.config.validation import validate
from headrace.envs.core.registry import register_vector
from headrace.envs.make import describe_here, make_group
from headrace.experience.on_device import DeviceExperience
from headrace.learning.algorithm import make_agent
from headrace.make_config import check_config, make_config
from headrace.runs.bottleneck import find
from headrace.runs.metrics import read_jsonl
from headrace.sampling.device_sampler import KEPT, DeviceSampler

T, B = 8, 12


@register_vector("counting/same-step")
def same_step(options: configs.EnvConfig, num_envs: int) -> SyncVectorEnv:
    """The counting world, whose ended episodes are reset in the same step."""
    return SyncVectorEnv([counting.CountingEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def make_sampler(parts: int, env: str = "counting") -> DeviceSampler:
    config = configs.override(
        Config(env=env),
        **{
            "sampling.placement": "device", "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": B,
            "sampling.rollout": T, "learning.batch_size": T * B // parts, "learning.algorithm": "counting",
            "learning.device": "cpu",
        },
    )  # fmt: skip
    validate(config)
    spec = describe_here(env, config.envs)
    algorithm, model = make_agent(config, spec)
    return DeviceSampler(config, spec, algorithm, model, make_group(env, config.envs, B), seed=0)


def collected(sampler: DeviceSampler) -> tuple[dict[str, np.ndarray], range]:
    """A copy of the next batch."""
    fields, envs = sampler.collect()
    return {name: x.numpy().copy() for name, x in fields.items()}, envs


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_end_one_after_the_other_and_every_row_is_learned_from_once(parts: int) -> None:
    sampler = make_sampler(parts)
    sampler.start(seed=0)
    batches = [collected(sampler) for _ in range(parts * (3 * KEPT))]  # the memory is used up several times
    sampler.close()
    width = B // parts
    for n, (batch, envs) in enumerate(batches):
        assert envs == range(n % parts * width, (n % parts + 1) * width)
        assert batch["reward"].shape == (T, width)
        assert batch["first"].shape == (T + 1, width)
        assert (batch["obs/obs"][..., 0] == np.arange(B)[envs.start : envs.stop]).all()
        counting.check(batch)  # rows, core states and flags, against the world's formulas
    for part in range(parts):
        own = [batch for batch, _ in batches[part::parts]]
        for one, after in pairwise(own):  # the last observation of a trajectory is the first of the next: no row lost or repeated
            np.testing.assert_array_equal(one["obs/obs"][-1], after["obs/obs"][0])
            np.testing.assert_array_equal(one["first"][-1], after["first"][0])
        # All of a part's first trajectory but the T/G steps of each part before it is from the beginning of the world.
        late = part * T // parts
        steps = np.stack([batch["obs/obs"][:-1, 0] for batch in own]).reshape(-1, 4)
        assert tuple(steps[0, 1:3]) == _position(envs_of(part, width)[0], late)


def envs_of(part: int, width: int) -> range:
    return range(part * width, (part + 1) * width)


def _position(env: int, row: int) -> tuple[int, int]:
    """Episode and step of an environment's row since the start."""
    episode = 0
    while row > (length := counting.episode_length(env, episode)):
        row -= length + 1  # an episode has one row more than steps: its last observation
        episode += 1
    return episode, row


def test_the_weights_that_choose_are_the_newest_given() -> None:
    sampler = make_sampler(parts=4)
    sampler.start(seed=0)
    versions = []
    for version in range(1, 9):
        batch, _ = collected(sampler)
        versions.append([*dict.fromkeys(batch["version"][:, 0].tolist())])
        assert (batch["weights"] == batch["version"]).all()
        sampler.model.updates.data.fill_(version)  # type: ignore[operator,union-attr]
        sampler.take_weights(sampler.model, version)
    sampler.close()
    assert versions[:5] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]


def test_environments_that_reset_in_the_same_step_tell_the_last_observation() -> None:
    sampler = make_sampler(parts=2, env="counting/same-step")
    sampler.start(seed=0)
    ends = 0
    for _ in range(20):
        batch, _ = collected(sampler)
        ended = batch["terminated"] | batch["truncated"]
        env, episode, step, life = np.moveaxis(batch["obs/obs"], -1, 0)
        assert batch["valid"].all()
        np.testing.assert_array_equal(batch["first"], step == 0)
        np.testing.assert_array_equal(step[1:], np.where(ended, 0, step[:-1] + 1))
        np.testing.assert_array_equal(ended, step[:-1] + 1 == counting.episode_length(env, episode)[:-1])
        final = np.stack([env, episode, step + 1, life], -1)[:-1]
        np.testing.assert_array_equal(batch["final_obs/obs"][ended], final[ended])
        np.testing.assert_array_equal(batch["reward"], counting.reward_of(env, episode, step)[:-1])
        ends += int(ended.sum())
    sampler.close()
    assert ends > 20


def test_only_the_reported_environments_count_as_episodes() -> None:
    every, last = make_sampler(parts=2), make_sampler(parts=2)
    for sampler in (every, last):
        sampler.start(seed=0)
    for _ in range(6):
        all_of_them = DeviceExperience(every.collect, "cpu", range(B)).next().arrivals
        some = DeviceExperience(last.collect, "cpu", range(B - 3, B)).next()
        assert some.arrivals.steps == all_of_them.steps
        ended = ~some.data["episode_return"][:, -3:].isnan()
        in_second_part = int(some.data["obs/obs"][0, 0, 0]) == B // 2
        assert len(some.arrivals.returns) == (int(ended.sum()) if in_second_part else 0)
    every.close()
    last.close()


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_sampler_goes_on_where_another_stopped(stop: int) -> None:
    straight, stopped = make_sampler(parts=4), make_sampler(parts=4)
    for sampler in (straight, stopped):
        sampler.start(seed=0)
    for _ in range(stop):
        straight.collect()
        stopped.collect()
    resumed = make_sampler(parts=4)
    assert resumed.set_state(stopped.get_state()) is None
    for _ in range(30):
        (expected, envs), (found, found_envs) = collected(straight), collected(resumed)
        assert envs == found_envs
        for name, x in expected.items():
            np.testing.assert_array_equal(found[name], x, err_msg=name)
    for sampler in (straight, stopped, resumed):
        sampler.close()


DEVICE = {"sampling.placement": "device", "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 8}


@pytest.mark.parametrize("parts", [1, 4])
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, parts: int) -> None:
    settings: dict[str, Any] = {
        **DEVICE, "learning.batch_size": 8 * 8 // parts, "learning.num_minibatches": 2, "learning.lr_schedule": "constant"
    }  # fmt: skip
    straight = assert_resumed_is_straight(tmp_path, (700, 1300), 2000, **settings)
    assert straight["progress"]["updates"] > 20


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/pong"])
def test_real_environments_are_brought_back_to_where_they_were(tmp_path: Path, env: str) -> None:
    settings: dict[str, Any] = {
        **DEVICE, "learning.batch_size": 32, "learning.num_minibatches": 1, "learning.lr_schedule": "constant", "env": env,
        "policy.core": "none",
    }  # fmt: skip
    assert_resumed_is_straight(tmp_path, (300,), 700, **settings)
    assert "begin anew" not in (tmp_path / "stopped" / "log.txt").read_text()


@pytest.mark.process
def test_the_parts_take_turns_and_wait_for_their_turn_meanwhile(tmp_path: Path) -> None:
    """Else all of them would be busy all the time, and none the bottleneck."""
    settings: dict[str, Any] = {
        **DEVICE, "learning.batch_size": 64, "learning.num_minibatches": 2, "learning.num_epochs": 20, "run.log_interval": 0.0
    }  # fmt: skip
    run(tmp_path, 4000, **settings)
    rows = [row for row in read_jsonl(tmp_path / "metrics.jsonl") if "time/learner/train" in row][2:]
    busy = [row["time/rollout/step"] + row["time/policy/forward"] + row["time/learner/train"] for row in rows]
    assert len(busy) > 10
    assert 0.5 < np.median(busy) <= 1.05
    config = configs.override(Config(), **{"sampling.placement": "device"})
    assert find(rows[-1], config).part == "learner", rows[-1]


def test_where_that_is_not_possible_it_is_said(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        **DEVICE, "learning.batch_size": 64, "learning.num_minibatches": 1, "learning.lr_schedule": "constant",
        "env": "walk/astray",
    }  # fmt: skip
    run(tmp_path, 500, **settings)
    run(tmp_path, 1000, **settings)
    log = (tmp_path / "log.txt").read_text()
    assert "Episodes begin anew: walk/astray: the same actions" in log
    assert "Device placement on cpu: 8 environments in 1 part, trajectories of 8 steps" in log


ENVS = ("gym/CartPole-v1", "gym/HalfCheetah-v5", "atari/pong", "atari/breakout", "vizdoom/basic", "dm_control/cartpole-swingup")


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("algorithm", ["appo", "ppo", "impala", "a2c"])
def test_the_placement_alone_is_enough(env: str, algorithm: str) -> None:
    config = make_config(env, algorithm, **{"sampling.placement": "device"})
    check_config(config)
    assert config.parts == 1
    assert config.num_envs * config.sampling.rollout == config.learning.batch_size
    assert config.learning.batch_size == make_config(env, algorithm).learning.batch_size


def test_a_default_placement_gives_way_to_what_it_cannot_do() -> None:
    """Pong takes turns in one process where there is no GPU: a default, which gives way to what the user asks for."""
    pytest.importorskip("ale_py")
    config = make_config("atari/pong")
    assert (config.sampling.placement, config.num_envs, config.parts, config.learning.batch_size) == ("device", 32, 1, 1024)
    check_config(config)
    asked: list[dict[str, Any]] = [
        {"learning.algorithm": "apex-dqn"}, {"population.size": 2}, {"sampling.placement": "served"},
        {"sampling.placement": "serial"},
    ]  # fmt: skip
    for settings in asked:
        config = make_config("atari/pong", **settings)
        assert config.sampling.placement == settings.get("sampling.placement", "served")
        assert (config.sampling.num_groups, config.num_envs) == (2, 16 if "learning.algorithm" in settings else 8)
        check_config(config)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ("device", 1, 32, 1024)),
        ("--placement served", ("served", 2, 8, 1024)),
        ("--population.size 2", ("served", 2, 8, 1024)),
        ("--num-groups 1 --envs-per-worker 64", ("device", 1, 64, 2048)),
        ("--learning.algorithm ppo", ("device", 1, 8, 1024)),
        ("--placement served --envs-per-worker 16", ("served", 2, 16, 1024)),
    ],
)
def test_the_command_line_asks_for_the_same(flags: str, expected: tuple[str, int, int, int]) -> None:
    pytest.importorskip("ale_py")
    config = parse_config(["--env", "atari/pong", "--run.folder", os.devnull, *flags.split()], tuned=False)
    s = config.sampling
    assert (s.placement, s.num_groups, s.envs_per_worker, config.learning.batch_size) == expected
    check_config(config)


def test_sizes_that_the_user_gave_are_kept() -> None:
    device = {"sampling.placement": "device", "learning.algorithm": "ppo"}
    config = make_config("atari/pong", **device, **{"sampling.envs_per_worker": 64})
    assert (config.num_envs, config.learning.batch_size, config.parts) == (64, 8192, 1)
    config = make_config("atari/pong", **device, **{"sampling.envs_per_worker": 64, "learning.batch_size": 512})
    assert (config.num_envs, config.learning.batch_size, config.parts) == (64, 512, 16)
    check_config(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning.batch_size": 1000}, r"batch_size \(1000\) must be sampling.rollout x environments \(32 x 32 = 1024\)"),
        ({"population.size": 2}, "device trains one policy; population.size is 2"),
        ({"envs.remote": "localhost:1"}, "envs.remote cannot be used"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, Any], message: str) -> None:
    config = make_config("atari/pong", **{"sampling.placement": "device", "sampling.envs_per_worker": 32})
    with pytest.raises(ConfigError, match=message):
        check_config(configs.override(config, **{"learning.num_minibatches": 1, "sampling.num_groups": 2, **settings}))


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
