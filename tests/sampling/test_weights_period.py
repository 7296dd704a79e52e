"""`sampling.weights_period` means the same wherever a policy acts: steps of a group between two looks at the weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.config import Config, ConfigError
from headrace.config import override as overridden
from headrace.config.validation import validate
from headrace.sampling.placements import inline
from headrace.sampling.placements.inline import refreshing
from headrace.sampling.policy_worker import PolicyWorker

pytestmark = pytest.mark.process

GROUPS = 4


class Counting:
    """An actor that counts."""

    policy = 0

    def __init__(self) -> None:
        self.looks: list[int] = []
        self.acted = 0

    def refresh(self) -> None:
        self.looks.append(self.acted)

    def act(self, lanes: np.ndarray) -> None:
        self.acted += len(lanes)


def looks_of_served(period: int, per_batch: int, workers: int = 1, batches: int = 24) -> list[int]:
    config = overridden(Config(env="x"), **{
        "sampling.weights_period": period, "sampling.num_workers": 2, "sampling.num_policy_workers": workers,
    })  # fmt: skip
    requests: Any = SimpleNamespace(L=GROUPS, claim=lambda lanes, index: lanes, answer=lambda lanes, index: None)
    actor: Any = Counting()
    worker = PolicyWorker(0, requests, actor, config)
    for _ in range(batches):
        worker.answer(np.arange(per_batch, dtype=np.int32))
    return actor.looks


def test_a_policy_worker_looks_when_its_groups_have_made_so_many_steps() -> None:
    assert looks_of_served(1, 2) == [*range(0, 48, 2)], "a period of 1: before every batch"
    assert looks_of_served(3, 4) == [*range(0, 96, 12)], "all four groups at once: every third batch"
    assert looks_of_served(3, 1) == [0, 12], "one group at a time"
    assert looks_of_served(3, 1, workers=2) == [0, 6, 12, 18], "two workers answer half of the groups each"


def test_a_rollout_worker_looks_as_often() -> None:
    actor: Any = Counting()
    act = refreshing([actor], {0: 3 * 2})  # two groups
    for step in range(24):
        act(0, [step % 2])
    assert actor.looks == [0, 6, 12, 18]


def test_a_rollout_worker_with_several_policies_looks_as_often_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "make_actor", lambda placement, m, device: Counting())
    monkeypatch.setattr(inline, "rollout_main", lambda start, act, seed: None)
    looked: list[dict[int, int]] = []
    monkeypatch.setattr(inline, "refreshing", lambda actors, periods, static: looked.append(periods))
    cases = ((1, 4, 1, [{0: 12}]), (2, 4, 1, [{0: 6, 1: 6}]), (4, 2, 2, [{0: 3, 1: 3}, {2: 3, 3: 3}]))
    for policies, groups, workers, expected in cases:
        config = overridden(Config(env="x"), **{
            "sampling.weights_period": 3, "sampling.num_groups": groups, "sampling.envs_per_worker": groups,
            "sampling.num_workers": workers, "population.size": policies,
        })  # fmt: skip
        looked.clear()
        policy: Any = SimpleNamespace(acts=True, learns=True)
        placement: Any = SimpleNamespace(config=config, memory=SimpleNamespace(policies=[policy] * policies))
        for index in range(workers):
            inline.inline_main(SimpleNamespace(placement=placement, index=index, restarts=0))  # type: ignore[arg-type]
        assert looked == expected


def test_the_device_placement_refuses_a_period() -> None:
    config = overridden(Config(env="x"), **{"sampling.weights_period": 2, "sampling.placement": "device"})
    with pytest.raises(ConfigError, match=r"weights_period \(2\) must be 1"):
        validate(config)
