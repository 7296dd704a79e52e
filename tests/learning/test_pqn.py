"""PQN: lambda returns against a slow oracle, layer norm, epsilon, and runs in every placement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.config import ConfigError
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.learning.algorithm import make_agent
from headrace.learning.gae import lambda_returns
from headrace.learning.pqn import PQN, PQNetwork
from headrace.make_config import check_config, make_config
from headrace.runs.metrics import read_jsonl
from headrace.train import train

VECTOR = EnvSpec({"obs": ArraySpec((4,), np.dtype(np.float32))}, ActionSpec((Categorical(3),)))
IMAGE = EnvSpec({"obs": ArraySpec((4, 84, 84), np.dtype(np.uint8))}, ActionSpec((Categorical(3),)))


def slow_lambda_returns(batch: dict[str, np.ndarray], gamma: float, lambda_: float, following: np.ndarray) -> np.ndarray:
    """The mixture of n-step returns that lambda returns are: (1 - lambda) sum lambda^(n-1) G^(n), the rest on the longest."""
    T, B = batch["rewards"].shape
    result = np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            if not batch["valid"][s, b]:
                continue
            n_steps, total, t = [], 0.0, s
            while True:
                total += gamma ** (t - s) * batch["rewards"][t, b]
                alive = 0.0 if batch["terminated"][t, b] else 1.0
                n_steps.append(total + alive * gamma ** (t - s + 1) * following[t, b])
                if batch["terminated"][t, b] or batch["truncated"][t, b] or t + 1 == T or not batch["valid"][t + 1, b]:
                    break
                t += 1
            weights = [(1 - lambda_) * lambda_**n for n in range(len(n_steps))]
            weights[-1] = lambda_ ** (len(n_steps) - 1)
            result[s, b] = np.dot(weights, n_steps)
    return result


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
def test_lambda_returns_are_mixtures_of_n_step_returns(same_step: bool, lambda_: float) -> None:
    rng = np.random.default_rng(3)
    T, B = 12, 40
    batch = {
        "rewards": rng.normal(size=(T, B)), "values": rng.normal(size=(T + 1, B)),
        "terminated": rng.random((T, B)) < 0.1, "truncated": rng.random((T, B)) < 0.1, "valid": rng.random((T, B)) < 0.85,
    }  # fmt: skip
    assert (batch["terminated"] & batch["truncated"]).any()
    assert (batch["valid"][:-1] & ~batch["valid"][1:]).any()
    ended = batch["terminated"] | batch["truncated"]
    after = np.where(ended, rng.normal(size=(T, B)), batch["values"][1:]) if same_step else batch["values"][1:]
    found = lambda_returns(
        **{name: torch.from_numpy(x) for name, x in batch.items()}, gamma=0.9, lambda_=lambda_,
        next_values=torch.from_numpy(after) if same_step else None,
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), slow_lambda_returns(batch, 0.9, lambda_, after), atol=1e-12)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, flags = torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"lambda_returns: values has the shape \[4, 2\]; it must be \[5, 2\]"):
        lambda_returns(x, x, flags, flags, flags, 0.9, 0.5)


@pytest.mark.parametrize(
    ("spec", "env", "encoder", "norms"),
    [(VECTOR, "gym/CartPole-v1", "mlp", 2), (IMAGE, "atari/pong", "nature-conv", 4), (IMAGE, "atari/pong", "shallow-conv", 3)],
)
def test_every_hidden_layer_has_a_layer_norm(spec: EnvSpec, env: str, encoder: str, norms: int) -> None:
    config = make_config(env, "pqn", **{"learning.device": "cpu", "learning.precision": "float32", "policy.encoder": encoder})
    _, model = make_agent(config, spec)
    assert isinstance(model, PQNetwork)
    assert sum(isinstance(m, nn.LayerNorm | nn.GroupNorm) for m in model.modules()) == norms
    before = []
    for module in model.modules():
        if isinstance(module, nn.Sequential) and len(module) == 2 and isinstance(module[0], nn.LayerNorm | nn.GroupNorm):
            module[0].register_forward_hook(lambda m, i, out: before.append(out.flatten(1)))
    obs = torch.rand(6, *spec.observation["obs"].shape) * 200
    model({"obs": obs if spec is VECTOR else obs.byte()})
    assert len(before) == norms
    for x in before:  # normalised for each observation, whatever the others are
        assert x.mean(1).abs().max() < 1e-3
        torch.testing.assert_close(x.std(1, correction=0), torch.ones(6), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["pqn", "dqn"])
def test_epsilon_is_a_function_of_the_steps_and_part_of_the_weights(name: str) -> None:
    """Whatever a batch holds, and however many ranks and environments have made the steps."""
    settings = {"learning.total_steps": 10_000, "learning.batch_size": 512, "q.epsilon_decay": 0.5, "q.epsilon_last": 0.1}
    config = make_config("gym/CartPole-v1", name, **settings, **{"learning.device": "cpu", "replay.samples_per_insert": None})
    algorithm, model = make_agent(config, VECTOR)
    seen = []
    for step in range(0, 10_001, 1000):
        algorithm.schedule(model, step)
        seen.append(float(model.state_dict()["epsilon"]))
    np.testing.assert_allclose(seen, [max(0.1, 1 - 0.18 * k) for k in range(11)], atol=1e-6)


@pytest.mark.parametrize("mode", ["train", "evaluate", "deterministic"])
def test_acting_is_epsilon_greedy(mode: str) -> None:
    config = make_config("gym/CartPole-v1", "pqn", **{"learning.device": "cpu"})
    algorithm, model = make_agent(config, VECTOR)
    assert isinstance(algorithm, PQN)
    model.epsilon.fill_(0.3)  # type: ignore[union-attr,operator]
    N = 20_000
    obs = {"obs": torch.ones(1, 4).expand(N, 4)}
    first, core = torch.zeros(N, dtype=torch.bool), torch.zeros(N, 0)
    fields, _ = algorithm.act(model, obs, core, first, torch.arange(N), torch.Generator().manual_seed(1), mode)  # type: ignore[arg-type]
    best = int(model({"obs": obs["obs"][:1]}).q.argmax())
    share = float((fields["action"][:, 0] != best).float().mean())
    expected = {"train": 0.3 * 2 / 3, "evaluate": 0.00164 * 2 / 3, "deterministic": 0.0}[mode]
    assert abs(share - expected) < 0.01
    assert mode != "deterministic" or share == 0
    torch.testing.assert_close(fields["value"], model({"obs": obs["obs"]}).q.max(-1).values)


def test_what_it_cannot_do_is_refused() -> None:
    for settings in ({"q.atoms": 51}, {"q.noisy": True}, {"learning.returns": "vtrace"}):
        with pytest.raises(ConfigError, match=r"learning\.algorithm pqn"):
            check_config(make_config("gym/CartPole-v1", "pqn", **settings))


def run(folder: Path, env: str, **settings: Any) -> dict[str, Any]:
    config = make_config(
        env, "pqn",
        **{
            "run.folder": str(folder), "run.dashboard": False, "run.video": False, "learning.device": "cpu",
            "learning.num_threads": 1, "run.log_interval": 0.5, **settings,
        },
    )  # fmt: skip
    train(config)
    return read_jsonl(folder / "metrics.jsonl")[-1]


@pytest.mark.parametrize(
    "placement", ["serial", "device", *(pytest.param(p, marks=pytest.mark.process) for p in ("inline", "served"))]
)
def test_every_placement(tmp_path: Path, placement: str) -> None:
    last = run(tmp_path, "gym/CartPole-v1", **{"sampling.placement": placement, "learning.total_steps": 3000})
    assert last["global_step"] >= 3000
    assert 0 <= last["losses/epsilon"] < 1
    assert np.isfinite(last["losses/td_error"])


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("env", ["gym/CartPole-v1", "torch/CartPole-v1"])
def test_cores_and_both_ways_to_reset(tmp_path: Path, env: str, core: str) -> None:
    settings = {"policy.core": core, "policy.core_size": 16, "sampling.placement": "device", "learning.total_steps": 2000}
    assert np.isfinite(run(tmp_path, env, **settings)["losses/td_error"])


@pytest.mark.parametrize("core", ["none", "gru"])
def test_masks_that_allow_nothing_at_the_end_of_an_episode(core: str) -> None:
    """As a `Batch` may hold them, whose last observations nobody acts on."""
    masked = replace(VECTOR, observation={**VECTOR.observation, MASK_KEY: ArraySpec((3,), np.dtype(np.uint8), 0, 1)})
    config = make_config("gym/CartPole-v1", "pqn", **{"learning.device": "cpu", "policy.core": core, "policy.core_size": 8})
    algorithm, model = make_agent(config, masked)
    T, B, g = 6, 4, torch.Generator().manual_seed(0)
    ended = torch.rand(T, B, generator=g) < 0.4
    batch = {
        "obs/obs": torch.randn(T + 1, B, 4, generator=g), f"obs/{MASK_KEY}": torch.ones(T + 1, B, 3, dtype=torch.uint8),
        "final_obs/obs": torch.randn(T, B, 4, generator=g), f"final_obs/{MASK_KEY}": torch.zeros(T, B, 3, dtype=torch.uint8),
        "core": torch.zeros(B, 8 if core == "gru" else 0), "first": torch.zeros(T + 1, B, dtype=torch.bool),
        "reward": torch.randn(T, B, generator=g), "terminated": ended, "truncated": torch.zeros(T, B, dtype=torch.bool),
        "value": torch.randn(T, B, generator=g), "mask": torch.ones(T, B, dtype=torch.bool),
        "action": torch.zeros(T, B, 1, dtype=torch.int32),
    }  # fmt: skip
    algorithm.prepare(model, batch, config.learning)
    assert batch["target"].isfinite().all()
    assert torch.equal(batch["target"][ended], batch["reward"][ended])


def test_the_sum_over_the_valid_rows_is_minimised_where_it_is_asked_for() -> None:
    """Ranks add their gradients then: the mean would be as many times too large as there are ranks."""
    config = make_config("gym/CartPole-v1", "pqn", **{"learning.device": "cpu"})
    algorithm, model = make_agent(config, VECTOR)
    T, B, g = 6, 4, torch.Generator().manual_seed(0)
    batch = {
        "obs/obs": torch.randn(T + 1, B, 4, generator=g),
        "core": torch.zeros(B, 0), "first": torch.zeros(T + 1, B, dtype=torch.bool),
        "target": torch.randn(T, B, generator=g), "reward": torch.zeros(T, B), "action": torch.zeros(T, B, 1, dtype=torch.int32),
        "mask": torch.rand(T, B, generator=g) < 0.7,
    }  # fmt: skip
    mean, _ = algorithm.loss(model, batch, config.learning)
    total, _ = algorithm.loss(model, batch, replace(config.learning, reduction="sum"))
    torch.testing.assert_close(total, mean * batch["mask"].sum())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pqn", "appo"])
def test_cartpole_in_pytorch_is_learned(tmp_path: Path, algorithm: str) -> None:
    config = make_config(
        "torch/CartPole-v1", algorithm,
        **{
            "run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "learning.device": "cpu",
            "learning.num_threads": 1, "run.goal": 475.0,
        },
    )  # fmt: skip
    result = train(config)
    assert result.reason == "goal"
    assert result.mean_return >= 475
