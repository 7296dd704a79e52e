"""CartPole in a batch: the episodes of single environments, bit for bit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformReward

from headrace.config import EnvConfig
from headrace.envs.core.contract import LaneRow, ObsRow, StepRow
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.families.gym_cartpole import CartPoles
from headrace.envs.groups.local import LocalGroup
from headrace.envs.groups.vector import VectorGroup
from headrace.envs.make import make_group, make_vec

N = 8


def choose(observations: np.ndarray, t: int) -> np.ndarray:
    """Actions [N] that keep some poles up for long and let others fall."""
    good = observations[:, 2] + observations[:, 3] > 0
    return np.where(np.arange(len(good)) % 3 <= t % 2, good, t % 3 == 0).astype(np.int64)


@pytest.mark.parametrize(("env_id", "limit"), [("CartPole-v0", 200), ("CartPole-v1", 500)])
def test_every_environment_is_a_single_one_with_its_seed(env_id: str, limit: int) -> None:
    envs = make_vec(f"gym/{env_id}", N)
    assert isinstance(envs, CartPoles)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    single = SyncVectorEnv([lambda: gymnasium.make(env_id)] * N, autoreset_mode=AutoresetMode.NEXT_STEP)
    ends = np.zeros(2, int)
    for seed in (3, [40, 7, 7, 0, 1, 2, 3, 4], None):  # later resets go on with the same generators
        observations, expected = envs.reset(seed=seed)[0], single.reset(seed=seed)[0]
        assert observations.dtype == expected.dtype == np.float32
        np.testing.assert_array_equal(observations, expected)
        for t in range(2000):
            actions = choose(expected, t)
            (observations, *flags, _), (expected, *theirs, _) = envs.step(actions), single.step(actions)
            np.testing.assert_array_equal(observations, expected)
            for mine, other in zip(flags, theirs, strict=True):
                np.testing.assert_array_equal(mine, other)
            ends += theirs[1].sum(), theirs[2].sum()
    assert (ends > 10).all(), f"terminated and truncated episodes of {limit} steps: {ends}"


def trace(group: Any, steps: int, row: LaneRow) -> list[bytes]:
    """What `steps` steps write to `row`."""
    written = []
    for t in range(steps):
        row.actions[:, 0] = choose(row.after.obs["obs"], t)
        group.send([row])
        for part in (row.step, row.after):
            written += [array.tobytes() for array in vars(part).values() if isinstance(array, np.ndarray)]
        written.append(row.after.obs["obs"].tobytes())
    return written


def test_the_group_writes_what_single_environments_write_and_goes_on_from_its_state() -> None:
    options = EnvConfig(max_episode_steps=60)
    group, other = make_group("gym/CartPole-v1", options, N), make_group("gym/CartPole-v1", options, N)
    assert isinstance(group, VectorGroup)
    local = LocalGroup([gymnasium.make("CartPole-v1", max_episode_steps=60) for _ in range(N)], group.spec, lambda raw: raw)
    rows = [LaneRow(np.zeros((N, 1), np.int32), StepRow.zeros(N), ObsRow.zeros(group.spec, N)) for _ in range(3)]
    local.remember()
    group.reset(9, [rows[0].after])
    local.reset(9, [rows[1].after])
    assert trace(group, 700, rows[0]) == trace(local, 700, rows[1])
    with pytest.raises(EnvironmentFault, match="saved one by one"):
        other.set_state(local.get_state())
    other.set_state(group.get_state())
    rows[2].after.copy_from(rows[0].after)
    assert trace(group, 300, rows[0]) == trace(other, 300, rows[2])


@pytest.mark.parametrize(
    "options",
    [EnvConfig(frameskip=2), EnvConfig(frame_stack=2), EnvConfig(kwargs={"sutton_barto_reward": True})],
    ids=["frameskip", "frame_stack", "kwargs"],
)
def test_settings_that_the_batch_does_not_have_are_applied_to_single_environments(options: EnvConfig) -> None:
    group = make_group("gym/CartPole-v1", options, N)
    assert isinstance(group, LocalGroup)
    group.close()


@pytest.mark.parametrize(
    ("arguments", "first_return"),
    [
        ({}, 8.0),  # no limit of steps, which the batch needs
        ({"max_episode_steps": 50, "kwargs": {"sutton_barto_reward": True}}, -1.0),
        ({"max_episode_steps": 50, "additional_wrappers": (TransformReward.wrapper_spec(func=lambda reward: 2 * reward),)}, 16.0),
    ],
    ids=["no limit", "kwargs", "wrappers"],
)
def test_an_id_of_the_users_own_keeps_what_it_was_registered_with(
    arguments: dict[str, Any], first_return: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("OwnCartPole-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv", **arguments)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    envs = make_vec(f"gym/{spec.id}", N)
    envs.reset(seed=0)
    total, over = 0.0, False
    while not over:
        _, reward, terminated, _, _ = envs.step(np.ones(N, np.int64))
        total, over = total + reward[0], terminated[0]
    assert total == first_return
