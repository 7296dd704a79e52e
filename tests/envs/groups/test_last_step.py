"""The last action and the last reward as observations, whoever steps the environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from remote_servers import Stepper, counting, finish, remote_group, serving
from worlds import CountingEnv

from headrace.config import Config, ConfigError, EnvConfig, override
from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.core.last_step import (
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    last_step_names,
    remember_last_step,
    with_last_step,
    without_last_step,
)
from headrace.envs.groups.vector import VectorGroup
from headrace.envs.make import make_group

NAMES = (PREVIOUS_ACTION, PREVIOUS_REWARD)
N = 5


def check_row(row: LaneRow) -> int:
    """How many episodes began."""
    first, goes_on = np.asarray(row.after.first), ~np.asarray(row.after.first)
    for name, last in ((PREVIOUS_ACTION, row.actions), (PREVIOUS_REWARD, row.step.reward)):
        found, last = np.asarray(row.after.obs[name]), np.asarray(last)
        np.testing.assert_array_equal(found[goes_on], last[goes_on])
        assert not found[first].any()
        if row.step.final_obs:
            np.testing.assert_array_equal(np.asarray(row.step.final_obs[name]), last)
    return int(first.sum())


def same_step() -> EnvGroup:
    envs = SyncVectorEnv([CountingEnv] * N, autoreset_mode=AutoresetMode.SAME_STEP)
    return VectorGroup(envs, EnvConfig(), "test/counting")


def check_steps(group: EnvGroup) -> None:
    stepper = Stepper(group, group)
    begun = stepper.reset()
    assert set(group.spec.observation) == {"obs", *NAMES}
    assert not any(begun.obs[name].any() for name in NAMES)
    steps = [stepper.step() for _ in range(60)]
    assert sum(map(check_row, steps)) > 10
    assert any(row.after.obs[PREVIOUS_REWARD].any() for row in steps)
    group.close()


@pytest.mark.parametrize("make", [lambda: counting(N), same_step], ids=["next-step", "same-step"])
def test_of_environments_in_this_process(make: Any) -> None:
    check_steps(remember_last_step(make(), NAMES))


def test_of_environments_at_a_server_which_need_not_know() -> None:
    with serving() as address:
        check_steps(remember_last_step(remote_group(address, N), NAMES))


def test_of_tensors() -> None:
    group = remember_last_step(make_group("torch/CartPole-v1", EnvConfig(), N, device="cpu"), NAMES)

    def rows() -> LaneRow:
        now = StepRow.zeros(N)
        now.final_obs = ObsRow.zeros(group.spec, N).obs
        row = LaneRow(np.random.default_rng(0).integers(0, 2, (N, 1)).astype(np.int32), now, ObsRow.zeros(group.spec, N))
        return row.map(torch.from_numpy)

    begun = rows().after
    group.reset(0, [begun])
    finish(group)
    made = 0
    for _ in range(40):
        row = rows()
        group.send([row])
        finish(group)
        made += check_row(row)
    assert made >= N
    group.close()


def test_names_and_specifications() -> None:
    config = override(Config(env="none"), **{"policy.previous_action": True})
    assert last_step_names(config) == (), "there is no core"
    config = override(config, **{"policy.core": "gru"})
    assert last_step_names(config) == (PREVIOUS_ACTION,)
    two = override(config, **{"population.size": 2, "population.overrides": {"1": {"policy.previous_reward": True}}})
    assert last_step_names(two) == NAMES
    spec: EnvSpec = counting(1).spec
    assert with_last_step(spec, ()) is spec
    both = with_last_step(spec, NAMES)
    assert without_last_step(both, NAMES) == spec
    with pytest.raises(ConfigError, match="an observation 'previous_"):
        with_last_step(both, NAMES)
