"""Recorded learning and acting, and observations that stay on the device: the logic of the GPU's path, on the CPU."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replayer import Replayer

from headrace import config as configs
from headrace.accelerator.device_observations import DeviceObservations
from headrace.accelerator.graphs import WARM_UPS
from headrace.accelerator.weights import FlatWeights, Publisher
from headrace.config import Config, hardware
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.imports import import_files
from headrace.envs.make import describe
from headrace.experience.on_policy import BatchMemory, OnPolicyExperience
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner, Progress, _Report
from headrace.runs.metrics import read_jsonl
from headrace.runs.training_state import load_optimizer
from headrace.sampling.actor import Actor
from headrace.sampling.placements import make_placement
from headrace.sampling.placements.serial import Serial, SerialSampler
from headrace.shm.trajectory_store import TrajectoryStore
from headrace.train import train

pytestmark = pytest.mark.process

HERE = Path(__file__).parent


def walk_config(**settings: Any) -> Config:
    defaults = {
        "sampling.placement": "serial", "sampling.num_workers": 3, "sampling.envs_per_worker": 4, "sampling.rollout": 8,
        "learning.batch_size": 8 * 2 * 4, "learning.num_minibatches": 2, "learning.num_epochs": 2, "learning.device": "cpu",
        "policy.mlp": (16,), "policy.normalize_observations": True, "policy.normalize_returns": True,
    }  # fmt: skip
    return configs.override(Config(env="walk", imports=(str(HERE / "walk.py"),)), **{**defaults, **settings})


def start(config: Config) -> tuple[EnvSpec, Any, Any, Serial]:
    import_files(config.imports)
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    placement = make_placement(config, spec, make_agent)
    assert isinstance(placement, Serial)
    return spec, algorithm, model, placement


def batches_of(placement: Serial) -> tuple[SerialSampler, OnPolicyExperience]:
    sampler, config = SerialSampler(placement), placement.config
    store = placement.memory.policies[0].trajectories
    return sampler, OnPolicyExperience(store, config.slots_per_batch, "cpu", lambda n: sampler.collect(0, n))


def test_who_acts_on_the_cpu_has_its_precision_whatever_the_learner_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "native_bf16", lambda device: device != "cpu")
    config = walk_config(**{"sampling.placement": "inline", "learning.device": "cuda", "learning.precision": "auto"})
    import_files(config.imports)
    placement = make_placement(config, describe(config.env, config.envs), make_agent)
    assert config.precision == "bf16"
    for device, precision in (("cpu", "float32"), ("cuda", "bf16")):
        model: Any = placement.make_member(0, device)[1]
        assert model.trunk.precision == precision


# -- recorded work --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy.core": "gru", "policy.core_size": 8},
        {"learning.returns": "gae", "learning.value_clip": 0.2},
        {"learning.optimizer": "rmsprop", "learning.ppo_clip": None, "learning.num_minibatches": 1},
    ],
    ids=["appo", "gru", "gae-single-rows", "impala"],
)
def test_recorded_learning_gives_the_same_weights(settings: dict[str, Any]) -> None:
    config = walk_config(**settings, **{"learning.lr_schedule": "linear", "learning.total_steps": 10_000})
    spec, algorithm, model, placement = start(config)
    recorder = Replayer()
    plain = Learner(model, algorithm, config)
    recorded = Learner(make_agent(config, spec)[1], algorithm, config, recorder)
    sampler, batches = batches_of(placement)
    weights = placement.memory.policies[0].weights
    FlatWeights(plain.model).publish(weights, 0)
    for _ in range(WARM_UPS + 4):
        batch = batches.next()
        assert batch is not None
        expected, found = plain.learn(batch).statistics, recorded.learn(batch).statistics
        for name, number in expected.items():
            torch.testing.assert_close(found[name], number, rtol=0, atol=0, equal_nan=True, msg=name)
        FlatWeights(plain.model).publish(weights, plain.progress.updates)
        batches.release()
    sampler.close()
    for a, b in zip(plain.model.state_dict().values(), recorded.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert plain.progress == recorded.progress
    steps = config.learning.num_epochs * config.learning.num_minibatches
    assert recorder.replays == 4 + (WARM_UPS + 4) * steps - WARM_UPS


def test_a_gradient_that_is_not_finite_is_stopped_with_the_numbers() -> None:
    config = walk_config(**{"policy.normalize_returns": False})
    _, algorithm, model, placement = start(config)
    learner, (sampler, batches) = Learner(model, algorithm, config), batches_of(placement)
    FlatWeights(learner.model).publish(placement.memory.policies[0].weights, 0)
    batch = batches.next()
    sampler.close()
    assert batch is not None
    before = {name: x.clone() for name, x in learner.model.state_dict().items() if "weight" in name}
    batch.data["reward"][:] = torch.inf
    with pytest.raises(FloatingPointError, match=r"update 0, step 0: the gradient is not finite \(losses/loss .*grad_norm nan\)"):
        learner.learn(batch)
    assert all(torch.equal(learner.model.state_dict()[name], x) for name, x in before.items())


def test_a_report_is_checked_when_it_has_arrived() -> None:
    report, names = _Report("cpu"), ("losses/loss", "losses/grad_norm")
    report.check(names)  # nothing was sent
    report.send(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), Progress(updates=6))
    report.check(names)
    report.send(torch.tensor([[1.0, 2.0], [0.5, torch.inf]]), Progress(updates=7, global_step=900))
    with pytest.raises(FloatingPointError, match=r"update 7, step 900: .*\(losses/loss 0.5, losses/grad_norm inf\)"):
        report.check(names)


# -- acting --------------------------------------------------------------------------------------------------------------


def test_padding_and_recording_do_not_change_what_is_computed() -> None:
    config = walk_config(**{"policy.core": "gru", "policy.core_size": 8})
    spec, algorithm, model, placement = start(config)
    rng, memory = np.random.default_rng(0), placement.memory
    requests, store = memory.requests, memory.policies[0].trajectories
    arrays = store.arrays
    arrays["obs/obs"][:] = rng.random(arrays["obs/obs"].shape)
    arrays["first"][:] = rng.random(arrays["first"].shape) < 0.3
    requests.cursor[:] = np.stack([np.arange(requests.L), rng.integers(store.T, size=requests.L)], 1)
    cores = rng.random(requests.cores[0].shape, np.float32)
    FlatWeights(model).publish(memory.policies[0].weights, 1)
    recorder = Replayer()
    actors = [Actor(make_agent(config, spec)[1], algorithm.act, memory, 0, "cpu", recorder=r) for r in (None, recorder)]
    for n in (3, 1, 6, 5, 3, 4, 3, 3, 5, 2, 6, 6):
        lanes = rng.permutation(requests.L)[:n]
        slots, rows = requests.cursor[lanes].T
        seen = []
        for actor in actors:
            requests.cores[0][:] = cores
            actor.refresh()
            actor.act(lanes)
            seen.append({name: arrays[name][slots, rows].copy() for name in ("action", "value", "log_prob", "version")})
            seen[-1]["core"] = requests.next_cores[0].copy()
            # log-probabilities are of the actions beside them, though padding makes them other actions
            obs = torch.from_numpy(arrays["obs/obs"][slots, rows]).flatten(0, 1)
            first = torch.from_numpy(arrays["first"][slots, rows]).flatten()
            with torch.no_grad():
                out = actor.model.act({"obs": obs}, torch.from_numpy(cores[lanes]).flatten(0, 1), first)
            log_prob = out.distribution.log_prob(torch.from_numpy(seen[-1]["action"]).flatten(0, 1))
            np.testing.assert_allclose(seen[-1]["log_prob"].reshape(-1), log_prob.numpy(), rtol=1e-5)
        for name in ("value", "version", "core"):
            np.testing.assert_allclose(seen[0][name], seen[1][name], rtol=1e-6, atol=1e-7)
    assert recorder.replays > 0


def test_an_answer_computed_twice_is_the_same_answer() -> None:
    """A policy worker that dies before it has said that it is done leaves its work to another: core states go on by one row."""
    config = walk_config(**{"policy.core": "gru", "policy.core_size": 8})
    spec, algorithm, model, placement = start(config)
    rng, memory = np.random.default_rng(0), placement.memory
    requests, arrays = memory.requests, memory.policies[0].trajectories.arrays
    arrays["obs/obs"][:] = rng.random(arrays["obs/obs"].shape)
    arrays["first"][:] = False
    requests.cursor[:] = np.stack([np.arange(requests.L), np.zeros(requests.L)], 1)
    requests.cores[0][:] = before = rng.random(requests.cores[0].shape, np.float32)
    FlatWeights(model).publish(memory.policies[0].weights, 1)
    actor = Actor(make_agent(config, spec)[1], algorithm.act, memory, 0, "cpu")
    actor.refresh()
    seen = []
    for _ in range(2):
        actor.act(np.arange(requests.L))
        seen.append([arrays["value"][:, 0].copy(), arrays["core"].copy(), requests.next_cores[0].copy()])
    for once, again in zip(*seen, strict=True):
        np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(requests.cores[0], before)
    assert not np.array_equal(requests.next_cores[0], before)


def test_the_publisher_publishes_the_newest_weights() -> None:
    config = walk_config()
    spec, _, model, placement = start(config)
    weights = placement.memory.policies[0].weights
    publisher = Publisher(model, weights, "cpu")
    for version in (1, 2, 3):
        with torch.no_grad():
            next(model.parameters()).fill_(version)
        publisher.publish(version)
    publisher.wait()
    other = make_agent(config, spec)[1]
    assert FlatWeights(other).read(weights) == 3
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_an_optimizer_is_restored_where_it_is() -> None:
    """The state of one that kept its learning rate on a device, to one that does not, and back."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    recorded = torch.optim.Adam([weight], lr=torch.tensor(0.5), fused=True)
    recorded.step()
    plain = torch.optim.Adam([weight], lr=0.1, foreach=True)
    load_optimizer(plain, recorded.state_dict())
    assert plain.param_groups[0]["lr"] == 0.5
    assert isinstance(plain.param_groups[0]["lr"], float)
    assert (plain.param_groups[0]["foreach"], plain.param_groups[0]["fused"]) == (True, None)
    back = torch.optim.Adam([weight], lr=torch.tensor(0.1), fused=True)
    load_optimizer(back, plain.state_dict())
    assert torch.equal(back.param_groups[0]["lr"], torch.tensor(0.5))
    assert back.param_groups[0]["fused"] is True


# -- observations that stay on the device ---------------------------------------------------------------------------------


def leave(observations: DeviceObservations, slots: list[int], row: int, value: int) -> None:
    """What a policy worker does for one row of each slot."""
    s, t = np.array(slots), np.full(len(slots), row)
    observations.mark(s, t, observations.leave(s, t, {"obs/obs": torch.full((len(s), 2, 6), float(value))}))


def leave_in_a_process(observations: DeviceObservations, rows: int) -> None:
    for row in range(rows):
        leave(observations, [1, 2], row, 10 + row)


def made() -> tuple[TrajectoryStore, DeviceObservations]:
    *_, placement = start(walk_config())
    store = placement.memory.policies[0].trajectories
    return store, DeviceObservations(store, "cpu")


def as_in_another_process(observations: DeviceObservations) -> DeviceObservations:
    """The same memory, nothing known of it."""
    other = DeviceObservations.__new__(DeviceObservations)
    other.__setstate__(observations.__getstate__())
    return other


def test_observations_are_found_where_another_process_left_them() -> None:
    _, learner = made()
    learner.allocate()
    process = multiprocessing.get_context("spawn").Process(target=leave_in_a_process, args=(learner, 8))
    process.start()
    process.join()
    assert learner.find(0) is None  # nobody left anything there
    found = learner.find(2)
    assert found is not None
    np.testing.assert_array_equal(found["obs/obs"][:, 1, 3], np.arange(10, 18))


@pytest.mark.filterwarnings("error")
def test_trajectories_of_another_generation_are_not_found() -> None:
    _, learner = made()
    worker = as_in_another_process(learner)
    leave(worker, [0], 0, 1)
    assert learner.find(0) is None  # before there is any memory
    learner.allocate()
    for row in range(8):
        leave(worker, [0], row, 1)
    assert learner.find(0) is not None
    learner.mark(np.array([0]), np.array([5]), 0)  # a policy worker that could not reach the memory
    assert learner.find(0) is None
    leave(worker, [0], 5, 1)
    again = as_in_another_process(learner)  # the learner was restarted
    assert again.find(0) is None
    again.allocate()
    assert again.find(0) is None  # left in the memory of the one before
    for row in range(8):
        leave(worker, [0], row, 2)
    found = again.find(0)
    assert found is not None
    assert (found["obs/obs"] == 2).all()


@pytest.mark.parametrize("apart", [False, True], ids=["in-place", "apart"])
@pytest.mark.parametrize("stayed", [(), (0, 1, 2, 3), (1, 2)], ids=["none", "all", "some"])
def test_a_batch_takes_what_stayed_from_the_device_and_the_rest_from_the_host(apart: bool, stayed: tuple[int, ...]) -> None:
    store, observations = made()
    observations.allocate()
    for name, array in store.arrays.items():
        array[:] = (np.random.default_rng(len(name)).random(array.shape) * 100).astype(array.dtype)
    memory, slots, T, C = BatchMemory(store, 4, "cpu", apart), (5, 0, 3, 2), store.T, store.C
    for place in stayed:
        for row in range(T):
            leave(observations, [slots[place]], row, 1000 + place)
    lefts = [observations.find(slot) for slot in slots]
    for place, (slot, left) in enumerate(zip(slots, lefts, strict=True)):
        memory.copy_slot(place, slot, left)
    memory.copy_to_device([place for place, left in enumerate(lefts) if left is None])
    fields = memory.batch.data
    for place, slot in enumerate(slots):
        columns = slice(place * C, (place + 1) * C)
        for name, array in store.arrays.items():
            expected = array[slot].copy()
            if name == "obs/obs" and place in stayed:
                expected[:T] = 1000 + place  # row T always comes from the host
            part = fields[name][columns] if name == "core" else fields[name][:, columns]
            np.testing.assert_array_equal(part.numpy(), expected, err_msg=name)


@pytest.mark.parametrize("policy_workers", [1, 2])
def test_every_row_is_where_it_belongs_when_observations_stay(tmp_path: Path, policy_workers: int) -> None:
    """The real engine against the world in which every number is known."""
    settings = {
        "run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "run.log_interval": 0.2,
        "sampling.num_workers": 2, "sampling.envs_per_worker": 6, "sampling.rollout": 7, "sampling.one_transfer": "on",
        "sampling.num_policy_workers": policy_workers, "learning.batch_size": 7 * 3 * 4, "learning.total_steps": 6000,
        "learning.algorithm": "counting", "learning.device": "cpu",
    }  # fmt: skip
    config = configs.override(Config(env="counting", imports=(str(HERE / "counting.py"),)), **settings)
    assert config.one_transfer
    assert train(config).global_step >= 6000
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["losses/rows_checked"] > 0
    assert rows[-1].get("sampling/faults", 0) == 0
