"""The path that only a GPU can show: `pytest -m gpu` where there is one."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.accelerator.device_observations import DeviceObservations
from headrace.accelerator.graphs import WARM_UPS, set_up
from headrace.accelerator.weights import FlatWeights, Publisher
from headrace.config import Config
from headrace.envs.groups.vector import VectorGroup
from headrace.envs.make import describe
from headrace.experience.on_policy import OnPolicyExperience
from headrace.experience.replay.buffer import ReplayField
from headrace.experience.transition_ring import TransitionRing
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.sampling.actor import Actor
from headrace.sampling.placements.serial import Serial, SerialSampler
from headrace.train import train

FALLBACK = ".*(without a CUDA graph|cross the bus twice)"
"""How the warnings begin that say that the fast path could not be taken."""
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings(f"error:{FALLBACK}"),
]


def cuda_config(env: str, **settings: Any) -> Config:
    defaults = {
        "learning.device": "cuda", "sampling.num_workers": 2, "sampling.envs_per_worker": 8, "sampling.rollout": 16,
        "learning.batch_size": 16 * 16, "learning.num_minibatches": 2, "learning.num_epochs": 1, "run.video": False,
        "run.dashboard": False, "learning.algorithm": "ppo",
    }  # fmt: skip
    return make_config(env, **{**defaults, **settings})


def start(config: Config) -> tuple[Any, Any, Serial]:
    set_up(config.device)
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    return algorithm, model, Serial(config, spec, make_agent)


@contextmanager
def no_waiting() -> Iterator[None]:
    """An error wherever the host waits for the device without having asked for it by an event."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("atari/breakout", {"learning.precision": "bf16"}),
        ("atari/breakout", {"learning.returns": "vtrace", "policy.core": "lstm", "policy.core_size": 64}),
        ("gym/CartPole-v1", {"learning.returns": "gae"}),
        ("gym/Pendulum-v1", {"learning.algorithm": "impala"}),
    ],
)
def test_learning_does_not_wait_and_graphs_learn_the_same(env: str, settings: dict[str, Any], graphs: bool) -> None:
    config = cuda_config(env, **{"sampling.placement": "serial", "learning.graphs": graphs, **settings})
    algorithm, model, placement = start(config)
    memory = placement.memory.policies[0]
    plain = Learner(make_agent(config, placement.spec)[1], algorithm, config)
    plain._step._recorder = plain._prepare._recorder = None
    learner = Learner(model, algorithm, config)
    sampler, publisher = SerialSampler(placement), Publisher(learner.model, memory.weights, "cuda")
    publisher.publish(0)
    publisher.wait()
    batches = OnPolicyExperience(memory.trajectories, config.slots_per_batch, "cuda", lambda slots: sampler.collect(0, slots))
    for update in range(WARM_UPS + 4):
        batch = batches.next()
        assert batch is not None
        expected = plain.learn(batch).statistics
        if update in (0, 1, 2, WARM_UPS, WARM_UPS + 1):  # kernels are chosen, optimizers begin, graphs are recorded
            found = learner.learn(batch).statistics
        else:
            with no_waiting():
                found = learner.learn(batch).statistics
        batches.release()
        publisher.publish(learner.progress.updates)
        publisher.wait()
        assert found["losses/loss"].item() == pytest.approx(expected["losses/loss"].item(), rel=0.1, abs=0.05)
        with torch.no_grad():  # both go on from the same weights, so that rounding does not grow
            for a, b in zip(plain.model.state_dict().values(), learner.model.state_dict().values(), strict=True):
                assert torch.allclose(a.float(), b.float(), rtol=0.05, atol=2e-3)
                a.copy_(b)
    learner.settle()
    sampler.close()


def test_a_graph_acts_like_the_policy_and_draws_new_numbers() -> None:
    config = cuda_config("atari/breakout", **{"learning.precision": "float32"})
    algorithm, model, placement = start(config)
    memory, requests = placement.memory.policies[0], placement.memory.requests
    arrays, lanes = memory.trajectories.arrays, np.arange(requests.L)
    arrays["obs/obs"][:] = np.random.default_rng(0).integers(0, 256, arrays["obs/obs"].shape, np.uint8)
    requests.cursor[:] = np.stack([lanes, np.zeros(requests.L)], 1)
    FlatWeights(model.to("cuda")).publish(memory.weights, 1)
    actors = [
        Actor(make_agent(config, placement.spec)[1], algorithm.act, placement.memory, 0, "cuda", graphs=graphs)
        for graphs in (False, True)
    ]
    actions = []
    for _ in range(WARM_UPS + 4):
        seen = []
        for actor in actors:
            actor.refresh()
            actor.act(lanes)
            seen.append({n: arrays[n][lanes, 0].copy() for n in ("value", "log_prob", "action")})
        np.testing.assert_allclose(seen[0]["value"], seen[1]["value"], rtol=1e-2, atol=1e-2)
        actions.append(seen[1]["action"])
    assert any((a != actions[-1]).any() for a in actions[WARM_UPS:-1])  # a replay does not repeat its random numbers


def leave(observations: DeviceObservations) -> None:
    """What a policy worker's process does: rows 0 to 15 of slots 1 and 3."""
    warnings.filterwarnings("error", message=FALLBACK)
    for row in range(16):
        rows, slots = np.full(2, row), np.array([1, 3])
        stamp = observations.leave(slots, rows, {"obs/obs": torch.full((2, 4, 4), float(row), device="cuda")})
        torch.cuda.synchronize()
        observations.mark(slots, rows, stamp)


def test_another_process_reaches_the_learners_memory() -> None:
    *_, placement = start(cuda_config("gym/CartPole-v1"))
    observations = DeviceObservations(placement.memory.policies[0].trajectories, "cuda")
    observations.allocate()
    process = multiprocessing.get_context("spawn").Process(target=leave, args=(observations,))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    found = observations.find(3)
    assert found is not None
    assert torch.equal(found["obs/obs"][:, 0, 0].cpu(), torch.arange(16.0))
    assert observations.find(2) is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learning.graphs": False, "sampling.one_transfer": "off"},
        {"learning.precision": "bf16", "sampling.num_policy_workers": 2},
        {"policy.core": "gru"},
        {"learning.compile": True},
        {"learning.algorithm": "apex-dqn", "replay.minimum": 500, "learning.batch_size": 64, "learning.num_minibatches": 1},
    ],
    ids=["default", "plain", "bf16-two-policies", "gru", "compile", "apex-dqn"],
)
def test_a_whole_run(tmp_path: Path, settings: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    config = cuda_config("atari/breakout", **{"run.folder": str(tmp_path), "learning.total_steps": 20_000, **settings})
    assert train(config).global_step >= 20_000
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert all(np.isfinite(row["losses/loss"]) for row in rows if "losses/loss" in row)
    printed = "".join(capfd.readouterr())
    assert "without a CUDA graph" not in printed
    assert "cross the bus twice" not in printed


@pytest.mark.timeout(900)  # the kernels are compiled in the first
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("a2c", {"learning.batch_size": 16 * 16, "sampling.rollout": 16}),
        ("ppo", {"learning.batch_size": 16 * 16, "sampling.rollout": 16, "envs.random_start": 20}),
        ("dqn", {"replay.minimum": 500, "replay.capacity": 5_000}),
        ("rainbow", {"replay.minimum": 500, "replay.capacity": 5_000, "learning.graphs": False}),
    ],
)
def test_the_device_placement_has_its_consoles_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, settings: dict[str, Any]
) -> None:
    pytest.importorskip("cuda.core")
    devices = list[str]()
    made = VectorGroup.__init__

    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if self.tensors:
            devices.append(self.envs.env.tensor_device.type)

    monkeypatch.setattr(VectorGroup, "__init__", remembered)
    config = make_config("atari/breakout", algorithm, **{
        "sampling.placement": "device", "learning.device": "cuda", "sampling.num_workers": 1, "sampling.num_groups": 1,
        "sampling.envs_per_worker": 16, "learning.num_epochs": 1, "learning.num_minibatches": 1, "learning.total_steps": 6_000,
        "run.folder": str(tmp_path), "run.video": False, "run.dashboard": False, **settings,
    })  # fmt: skip
    assert train(config).global_step >= 6_000
    assert devices == ["cuda"]
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert all(np.isfinite(row["losses/loss"]) for row in rows if "losses/loss" in row)


@pytest.mark.parametrize("same_step", [False, True])
def test_the_ring_on_a_gpu_is_the_ring_on_the_cpu(same_step: bool) -> None:
    fields = {
        "obs/obs": torch.arange(9 * 4, dtype=torch.float32).view(9, 4, 1), "first": torch.zeros(9, 4, dtype=torch.bool),
        "valid": torch.ones(9, 4, dtype=torch.bool), "action": torch.randint(3, (8, 4, 1), dtype=torch.int32),
        "reward": torch.randn(8, 4), "terminated": torch.rand(8, 4) < 0.1, "truncated": torch.zeros(8, 4, dtype=torch.bool),
        "version": torch.zeros(8, 4, dtype=torch.int32),
    }  # fmt: skip
    if same_step:
        fields["final_obs/obs"] = torch.randn(8, 4, 1)
    observations = {"obs/obs": ReplayField((1,), "float32", stack=1)}
    rings = [TransitionRing(fields, observations, 32, 3, 0.9, 0.5, device, "test") for device in ("cpu", "cuda")]
    for round_ in range(6):
        for ring in rings:
            ring.add(fields)
        torch.testing.assert_close(rings[0].table.numbers, rings[1].table.numbers.cpu())
        keys = rings[0].draw(64, torch.Generator().manual_seed(round_))
        one, two = (ring.transitions(keys.to(ring.device), 0.4) for ring in rings)
        for name, x in one.items():
            torch.testing.assert_close(x, two[name].cpu(), msg=name)
        keys = keys.unique()
        for ring in rings:
            ring.set_priorities(keys.to(ring.device), torch.arange(float(len(keys)), device=ring.device))
    drawn = rings[1].draw(256, torch.Generator("cuda").manual_seed(0))
    assert (rings[1].table.numbers[drawn] > 0).all()
