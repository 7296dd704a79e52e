"""The path that only a GPU can show: `pytest -m gpu` where there is one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.accelerator.graphs import WARM_UPS, set_up
from headrace.accelerator.weights import FlatWeights, Publisher, weights_nbytes
from headrace.config import Config
from headrace.envs.registry import describe
from headrace.experience.on_policy import OnPolicyExperience
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.sampling.actor import Actor
from headrace.sampling.device_slab import DeviceSlab
from headrace.sampling.exchange import Exchange
from headrace.sampling.placements.serial import SerialSampler
from headrace.train import train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def cuda_config(env: str, **settings: Any) -> Config:
    defaults = {
        "learning.device": "cuda", "sampling.num_workers": 2, "sampling.envs_per_worker": 8, "sampling.rollout": 16,
        "learning.batch_size": 16 * 16, "learning.num_minibatches": 2, "learning.num_epochs": 1, "run.video": False,
        "run.dashboard": False,
    }  # fmt: skip
    return make_config(env, **{**defaults, **settings})


def start(config: Config) -> tuple[Any, Any, Exchange]:
    set_up(config.device)
    spec = describe(config.env, config.envs)
    algorithm, model = make_agent(config, spec)
    return algorithm, model, Exchange(config, spec, model.core_width, weights_nbytes(model), algorithm.extra_fields(spec))


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
    algorithm, model, x = start(config)
    plain = Learner(make_agent(config, describe(env, config.envs))[1], algorithm, config)
    plain._step._recorder = plain._prepare._recorder = None
    learner, publisher = Learner(model, algorithm, config, pytest.fail), Publisher(model, x.board, "cuda")
    sampler = SerialSampler(config, describe(env, config.envs), x)
    publisher.publish(0)
    publisher.wait()
    batches = OnPolicyExperience(x, config.slots_per_batch, "cuda", sampler.collect)
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
    algorithm, model, x = start(config)
    x.slab.arrays["obs/obs"][:] = np.random.default_rng(0).integers(0, 256, x.slab.arrays["obs/obs"].shape, np.uint8)
    x.cursor[:] = np.stack([np.arange(x.G), np.zeros(x.G)], 1)
    FlatWeights(model.to("cuda")).publish(x.board, 1)
    actors = [Actor(make_agent(config, describe(config.env, config.envs))[1], algorithm.act, x, "cuda", 0,
                    graphs=graphs, say=pytest.fail) for graphs in (False, True)]  # fmt: skip
    groups, actions = np.arange(x.G), []
    for _ in range(WARM_UPS + 4):
        seen = []
        for actor in actors:
            actor.refresh()
            actor.act(groups)
            seen.append({n: x.slab.arrays[n][groups, 0].copy() for n in ("value", "log_prob", "action")})
        np.testing.assert_allclose(seen[0]["value"], seen[1]["value"], rtol=1e-2, atol=1e-2)
        actions.append(seen[1]["action"])
    assert any((a != actions[-1]).any() for a in actions[WARM_UPS:-1])  # a replay does not repeat its random numbers


def leave(slab: DeviceSlab) -> None:
    said: list[str] = []
    for row in range(16):
        rows, slots = np.full(2, row), np.array([1, 3])
        stamp = slab.leave(slots, rows, {"obs/obs": torch.full((2, 4, 4), float(row), device="cuda")}, said.append)
        torch.cuda.synchronize()
        slab.mark(slots, rows, stamp)
    assert not said, said


def test_another_process_reaches_the_learners_memory() -> None:
    *_, x = start(cuda_config("gym/CartPole-v1"))
    slab = DeviceSlab(x.slab, "cuda")
    slab.allocate()
    process = multiprocessing.get_context("spawn").Process(target=leave, args=(slab,))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    found = slab.find(3)
    assert found is not None
    assert torch.equal(found["obs/obs"][:, 0, 0].cpu(), torch.arange(16.0))
    assert slab.find(2) is None


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
