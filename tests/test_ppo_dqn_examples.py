"""examples/ppo.py and examples/dqn.py compute what the engine computes, stand alone, and learn."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from headrace.learning.gae import gae
from headrace.learning.q_learning import bootstrap_values

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def ppo() -> ModuleType:
    return importlib.import_module("ppo")


@pytest.fixture
def dqn() -> ModuleType:
    return importlib.import_module("dqn")


def test_ppo_has_the_engines_advantages(ppo: ModuleType) -> None:
    """Episodes that terminate, that are truncated, and the steps between them."""
    g, T, E = torch.Generator().manual_seed(0), 30, 6
    ended = torch.rand(T, E, generator=g) < 0.25
    terminated = ended & (torch.rand(T, E, generator=g) < 0.5)
    truncated = ended & ~terminated
    valid = torch.ones(T, E, dtype=torch.bool)
    for t in range(1, T):  # the step after the end of an episode begins the next one
        valid[t] = ~(ended[t - 1] & valid[t - 1])
    terminated, truncated = terminated & valid, truncated & valid
    values, rewards = torch.randn(T + 1, E, generator=g), torch.randn(T, E, generator=g)
    assert terminated.any()
    assert truncated.any()
    assert not valid.all()
    batch = {"reward": rewards, "terminated": terminated, "truncated": truncated, "valid": valid}
    mine = ppo.advantages_of(batch, values, 0.9, 0.8)
    theirs = gae(rewards, values, terminated, truncated, valid, 0.9, 0.8).advantages
    torch.testing.assert_close(mine[valid], theirs[valid])


def test_ppo_has_the_papers_policy_loss(ppo: ModuleType) -> None:
    g, n = torch.Generator().manual_seed(1), 400
    net = ppo.Net((4,), 3)
    samples = {
        "obs": torch.randn(n, 4, generator=g), "action": torch.randint(3, (n,), generator=g),
        "log_prob": -2.5 * torch.rand(n, generator=g), "advantage": torch.randn(n, generator=g), "target": torch.zeros(n),
    }  # fmt: skip
    settings = ppo.Settings()
    _, numbers = ppo.loss_of(net, samples, settings)
    assert 0.2 < numbers["clipped"] < 1, "the clip binds"
    with torch.no_grad():
        log_prob = torch.distributions.Categorical(logits=net(samples["obs"])[0]).log_prob(samples["action"])
    advantages = samples["advantage"].double().numpy()
    advantages = (advantages - advantages.mean()) / advantages.std()
    total = 0.0
    for ratio, advantage in zip((log_prob - samples["log_prob"]).double().exp().tolist(), advantages, strict=True):
        clipped = min(max(ratio, 1 - settings.clip), 1 + settings.clip)
        total += min(ratio * advantage, clipped * advantage)
    assert numbers["policy"] == pytest.approx(-total / n, abs=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_has_the_engines_targets(dqn: ModuleType, double: bool) -> None:
    g, n = torch.Generator().manual_seed(2), 200
    net, target = dqn.Net((4,), 3), dqn.Net((4,), 3)
    samples = {
        "obs": torch.randn(n, 4, generator=g), "next_obs": torch.randn(n, 4, generator=g),
        "reward": 3 * torch.randn(n, generator=g), "action": torch.randint(3, (n,), generator=g),
        "terminated": torch.rand(n, generator=g) < 0.3,
    }  # fmt: skip
    settings = dqn.Settings(double=double)
    loss, numbers = dqn.loss_of(net, target, samples, settings)
    with torch.no_grad():
        following = target(samples["next_obs"])
        online = net(samples["next_obs"]) if double else following
        value = bootstrap_values(online, following)
        targets = samples["reward"] + settings.gamma * value * ~samples["terminated"]
        error = net(samples["obs"]).gather(1, samples["action"][:, None]).squeeze(1) - targets
    assert (error.abs() > 1).any(), "errors are clipped"
    assert (error.abs() < 1).any()
    huber = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5).mean()
    torch.testing.assert_close(loss, huber)
    assert numbers["error"] == pytest.approx(error.abs().mean().item(), rel=1e-5)


def test_the_replay_keeps_the_newest(dqn: ModuleType) -> None:
    replay = dqn.Replay(5, (1,))
    for first in range(0, 12, 3):
        numbers = torch.arange(first, first + 3)
        replay.add(
            obs=numbers[:, None], action=numbers, reward=numbers, next_obs=numbers[:, None] + 1, terminated=numbers % 2 == 0
        )
    assert replay.size == 5
    drawn = replay.sample(300)
    assert set(drawn["action"].tolist()) == {7, 8, 9, 10, 11}
    assert torch.equal(drawn["next_obs"], drawn["obs"] + 1)
    assert torch.equal(drawn["terminated"], drawn["action"] % 2 == 0)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_they_are_short_and_stand_alone(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 350
    assert [line for line in text.splitlines() if "import" in line and "headrace" in line] == ["import headrace"]


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_they_run(name: str) -> None:
    module = importlib.import_module(name)
    mean, steps = module.train(module.Settings(total_steps=2048))
    assert steps == 2048
    assert 5 < mean < 500


@pytest.mark.process
def test_ppo_learns_cartpole(ppo: ModuleType) -> None:
    mean, steps = ppo.train(ppo.Settings(goal=450.0))
    assert mean >= 450, steps


@pytest.mark.process
@pytest.mark.timeout(900)
def test_dqn_learns_cartpole(dqn: ModuleType) -> None:
    mean, steps = dqn.train(dqn.Settings(goal=300.0))
    assert mean >= 300, steps
