"""No tensor is on the wrong device: trainings, evaluation and resuming on a device that computes on the CPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stand_in_device import NAME, OnDevice, calls, stand_in_device
from test_replay_experience import SLOTS, Rig
from torch import nn

import headrace
from headrace.config import validation
from headrace.evaluation import policy as evaluation_policy
from headrace.learning import losses
from headrace.learning.learner import Learner
from headrace.sampling.device_sampler import DeviceSampler

SMALL: dict[str, Any] = {
    "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 4, "sampling.rollout": 8,
    "learning.batch_size": 32, "learning.total_steps": 80, "learning.num_minibatches": 1, "learning.num_epochs": 1,
    "learning.graphs": False, "learning.precision": "float32", "run.video": False, "run.dashboard": False, "policy.mlp": (8,),
}  # fmt: skip
REPLAY: dict[str, Any] = {
    "replay.minimum": 16, "replay.capacity": 256, "learning.batch_size": 8, "learning.num_minibatches": 1,
    "learning.num_epochs": 1,
}  # fmt: skip
IN_DEVICE: dict[str, Any] = {"sampling.placement": "device", "learning.algorithm": "ppo"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo, epochs": ("gym/CartPole-v1", {"learning.algorithm": "ppo", "learning.num_epochs": 2, "learning.num_minibatches": 2}),
    "appo, GRU": ("gym/CartPole-v1", {"policy.core": "gru", "policy.core_size": 8, "learning.returns": "vtrace"}),
    "appo, LSTM": ("gym/CartPole-v1", {"policy.core": "lstm", "policy.core_size": 8}),
    "impala, continuous": ("gym/Pendulum-v1", {"learning.algorithm": "impala"}),
    "ppo, normalised": (
        "gym/Pendulum-v1",
        {"learning.algorithm": "ppo", "policy.normalize_observations": True, "policy.normalize_returns": True},
    ),
    "a2c": ("gym/CartPole-v1", {"learning.algorithm": "a2c"}),
    "pqn": ("gym/CartPole-v1", {"learning.algorithm": "pqn"}),
    "dqn": ("gym/CartPole-v1", {"learning.algorithm": "dqn", **REPLAY}),
    "rainbow": ("gym/CartPole-v1", {"learning.algorithm": "rainbow", **REPLAY}),
    "apex-dqn": ("gym/CartPole-v1", {"learning.algorithm": "apex-dqn", **REPLAY}),
    "r2d2": (
        "gym/CartPole-v1",
        {"learning.algorithm": "r2d2", "policy.core": "lstm", "policy.core_size": 8, "q.burn_in": 4, "q.sequence": 8, **REPLAY},
    ),
    "apex-dpg": ("gym/Pendulum-v1", {"learning.algorithm": "apex-dpg", **REPLAY}),
    "ppo in the device placement": ("torch/CartPole-v1", IN_DEVICE),
    "ppo in the device placement, environments on the host": ("gym/CartPole-v1", IN_DEVICE),
    "dqn in the device placement": (
        "torch/CartPole-v1", {"sampling.placement": "device", "learning.algorithm": "dqn", **REPLAY},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(validation, "check_device", lambda device: None)
    monkeypatch.setattr(evaluation_policy, "check_device", lambda device: None)
    with stand_in_device():
        yield


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {**SMALL, "learning.device": NAME, "run.folder": str(folder), **more}


QUICK = ("ppo, epochs", "appo, LSTM", "dqn", "ppo in the device placement")


@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.process) for case in CASES])
def test_training_evaluation_and_resuming(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, more = CASES[case]
    places, waits = set(), list[list[str]]()
    learn = Learner.learn

    def noted(learner: Learner, batch: Any) -> Any:
        places.update(type(p.data) for p in learner.model.parameters())
        before = len(calls)
        update = learn(learner, batch)
        if learner.progress.updates > 1:  # the first makes the optimizer's state
            waits.append([call.what for call in calls[before:] if call.what != "copy"])
        return update

    monkeypatch.setattr(Learner, "learn", noted)
    config = headrace.make_config(env, **settings(tmp_path / "run", **more))
    first = headrace.train(config)
    assert first.global_step >= 80
    assert places == {OnDevice}, "the model is on the device"
    resumed = headrace.train(headrace.make_config(env, **settings(tmp_path / "run", **more, **{"learning.total_steps": 112})))
    assert resumed.global_step >= 112
    assert waits
    assert {tuple(each) for each in waits} <= {(), ("event",)}, "an update waits for the statistics of the one before, at most"
    if not env.startswith("torch/"):  # there is nothing to render or play there
        trained = headrace.load_policy(tmp_path / "run", device=NAME)
        assert all(isinstance(p.data, OnDevice) for p in trained.model.parameters())
        assert math.isfinite(headrace.evaluate(trained, episodes=1, max_episode_steps=20).mean)


def test_acting_for_environments_on_the_host_waits_once_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act, waits = DeviceSampler._act, list[list[str]]()

    def noted(sampler: DeviceSampler, t: int) -> None:
        before = len(calls)
        act(sampler, t)
        waits.append([call.what for call in calls[before:] if call.what != "copy"])

    monkeypatch.setattr(DeviceSampler, "_act", noted)
    more = IN_DEVICE | {"policy.core": "gru", "policy.core_size": 8}
    headrace.train(headrace.make_config("gym/CartPole-v1", **settings(tmp_path, **more)))
    assert len(waits) >= 80 // 4
    assert all(each == ["event"] for each in waits[1:]), "the first step makes constants on the device"


@pytest.mark.parametrize("algorithm", ["apex-dqn", "r2d2"])
def test_a_learner_on_replay_waits_for_no_batch_and_for_no_priorities(algorithm: str) -> None:
    """Batches are copied by a thread on another stream; priorities are entered when the next ones have been sent."""
    sequences = {"q.burn_in": 2, "q.sequence": 3, "policy.core": "lstm", "policy.core_size": 1}
    rig = Rig(**{"learning.device": NAME, "learning.algorithm": algorithm, **(sequences if algorithm == "r2d2" else {})})
    entered = list[np.ndarray]()
    update = rig.replay.update
    rig.replay.update = lambda keys, new: (entered.append(new), update(keys, new))[1]  # type: ignore[method-assign, func-returns-value]
    try:
        for _ in range(SLOTS):
            assert rig.finish()
        rig.next_batch()
        rig.experience.release()
        mine = threading.current_thread().name
        for number in range(1, 4):
            before = len(calls)
            batch = rig.next_batch()
            assert all(isinstance(x, OnDevice) for x in batch.data.values())
            assert batch.version.device.type == "cpu"
            rig.experience.update_priorities(batch.keys, torch.full((8,), float(number), device=NAME))
            rig.experience.release()
            here = [call.what for call in calls[before:] if call.thread == mine]
            assert here == (["copy"] if number == 1 else ["event", "copy"]), "waits at most for the priorities before"
            assert [float(new[0]) for new in entered] == list(range(1, number))
        copies = [call for call in calls if call.thread != mine]
        assert {call.what for call in copies} == {"copy", "event"}
        assert all(call.stream is not None for call in copies if call.what == "copy")
        rig.experience._enter_priorities()
        assert entered[-1][0] == 3
    finally:
        rig.close()


def test_a_tensor_on_the_wrong_device_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "masked_mean", lambda x, mask, count=None: (x * torch.ones(x.shape)).mean())
    config = headrace.make_config("gym/CartPole-v1", **settings(tmp_path / "run"))
    with pytest.raises(RuntimeError, match="tensors on two devices"):
        headrace.train(config)


def test_the_device_refuses_what_cuda_refuses() -> None:
    there, here = torch.zeros(3, device=NAME), torch.ones(3)
    assert there.device.type == NAME
    assert (there + torch.tensor(2.0)).sum().item() == 6
    assert here[there.cpu().long()].tolist() == [1, 1, 1]
    assert there[torch.tensor([0, 1])].device.type == NAME
    with pytest.raises(RuntimeError, match="two devices"):
        there + here
    with pytest.raises(RuntimeError, match="two devices"):
        here[there.long()]
    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()
    with pytest.raises(RuntimeError, match="generator is of another device"):
        torch.rand(2, device=NAME, generator=torch.Generator())
    here.copy_(there)
    assert here.tolist() == [0, 0, 0]
    layer = nn.Linear(3, 2).to(NAME)
    layer(torch.randn(4, 3, device=NAME)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device.type == NAME
