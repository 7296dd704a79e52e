"""examples/impala.py is the algorithm that the engine runs, and it learns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.config import LearningConfig
from headrace.learning.policy_gradient import PolicyGradient
from headrace.learning.presets.policy_gradient import IMPALA, PAPER

pytestmark = pytest.mark.process

NUMBERS = PAPER["impala"]["images"] | IMPALA
FILE = Path(__file__).parents[1] / "examples" / "impala.py"


@pytest.fixture(scope="module")
def impala() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FILE.parent))  # which its actors, processes of their own, inherit
    yield importlib.import_module("impala")
    sys.path.remove(str(FILE.parent))


class AsPolicy(torch.nn.Module):
    """The example's network in the shape in which the engine's algorithm asks for one."""

    core_width = 0

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def unroll(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> Any:
        logits, value = self.net(obs["obs"].flatten(0, 1))
        return self._out(logits.unflatten(0, first.shape), value.unflatten(0, first.shape), core)

    def act(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> Any:
        logits, value = self.net(obs["obs"])
        return self._out(logits, value, core)

    def _out(self, logits: Tensor, value: Tensor, core: Tensor) -> Any:
        categorical = torch.distributions.Categorical(logits=logits)
        distribution = SimpleNamespace(log_prob=lambda a: categorical.log_prob(a.squeeze(-1)), entropy=categorical.entropy)
        return SimpleNamespace(distribution=distribution, value=value, head_value=value, core=core)

    def normalize_value(self, value: Tensor) -> Tensor:
        return value

    def update_returns(self, returns: Tensor, mask: Tensor) -> None:
        """Returns are not normalised."""


def rollout(T: int, B: int) -> dict[str, Tensor]:
    """Off-policy on purpose: log-probabilities far from the network's, so that both sides of every clip occur."""
    g = torch.Generator().manual_seed(0)
    return {
        "obs": torch.rand(T + 1, B, 10, 10, 4, generator=g) < 0.2,
        "action": torch.randint(3, (T, B), generator=g),
        "log_prob": -2.5 * torch.rand(T, B, generator=g),
        "reward": torch.randint(-2, 3, (T, B), generator=g).float(),
        "done": torch.rand(T, B, generator=g) < 0.15,
    }


def test_it_and_the_engine_agree_on_loss_and_update(impala: ModuleType) -> None:
    settings, T, B = impala.Settings(), 20, 8
    torch.manual_seed(1)
    net, twin = impala.Net((10, 10, 4), 3), impala.Net((10, 10, 4), 3)
    twin.load_state_dict(net.state_dict())
    batch = rollout(T, B)
    table = {name.partition(".")[2]: value for name, value in NUMBERS.items() if name.startswith("learning.")}
    config = LearningConfig(**table)
    engines = {
        "obs/obs": batch["obs"], "first": torch.zeros(T + 1, B, dtype=torch.bool), "core": torch.zeros(B, 0),
        "mask": torch.ones(T, B, dtype=torch.bool), "action": batch["action"].unsqueeze(-1), "log_prob": batch["log_prob"],
        "reward": batch["reward"].clamp(-1, 1), "terminated": batch["done"], "truncated": torch.zeros(T, B, dtype=torch.bool),
        "value": torch.zeros(T, B),
    }  # fmt: skip
    mine, _ = impala.loss_of(net, batch, settings)
    theirs, _ = PolicyGradient().loss(AsPolicy(twin), engines, config)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)
    mine.backward()
    theirs.backward()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    assert (engines["sample/log_prob"] > batch["log_prob"]).any(), "V-trace's clips bind"
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), config.max_grad_norm)
    assert norm > config.max_grad_norm, "and so does the gradient's"


def test_the_numbers_are_the_engines(impala: ModuleType) -> None:
    """Its Settings and `--learning.algorithm impala --learning.preset paper` name the same numbers; sizes are its own."""
    s, t = impala.Settings(), NUMBERS
    names = {
        "gamma": "learning.gamma", "value_coef": "learning.value_coef", "entropy_coef": "learning.entropy_coef",
        "learning_rate": "learning.learning_rate", "rmsprop_alpha": "learning.rmsprop_alpha", "reward_clip": "envs.reward_clip",
        "rmsprop_eps": "learning.optimizer_eps", "max_grad_norm": "learning.max_grad_norm", "unroll": "sampling.rollout",
    }  # fmt: skip
    assert {name: getattr(s, name) for name in names} == {name: t[setting] for name, setting in names.items()}
    assert s.unroll * s.envs * s.batch == t["learning.batch_size"]


def test_it_is_short_and_stands_alone() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 400
    imports = [line for line in text.splitlines() if "import" in line and "headrace" in line]
    assert imports == ["from headrace.learning.vtrace import vtrace"]


def test_it_runs(impala: ModuleType) -> None:
    pytest.importorskip("minatar")
    mean, steps = impala.train(impala.Settings(total_steps=4000, actors=1, envs=8, batch=1, slots=3))
    assert steps == 4000
    assert 0 <= mean < 20


@pytest.mark.slow
def test_it_learns(impala: ModuleType) -> None:
    """MinAtar Breakout: random play scores about 0.5, and 1.5 M steps with these settings reach 4.6."""
    pytest.importorskip("minatar")
    mean, steps = impala.train(impala.Settings(goal=5.0))
    assert mean >= 5, steps
