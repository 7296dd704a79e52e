"""examples/ppo_atari.py: the same training on these consoles and on ale-py's."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = ["--total-steps", "128", "--num-envs", "4", "--rollout", "16", "--epochs", "1", "--max-frames", "60"]
REPEATABLE = ["--torch-threads", "1", "--device", "cpu"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("ppo_atari")
    sys.modules.pop("ppo_atari")


def test_one_line_changes_the_consoles_and_nothing_else(example: ModuleType) -> None:
    ours, theirs = (example.main(example.arguments(["--envs", envs, *SHORT, *REPEATABLE])) for envs in ("headrace", "ale"))
    assert len(ours["returns"]) >= 8
    assert ours["returns"] == theirs["returns"]
    assert ours["weights"] == theirs["weights"]
    other = example.main(example.arguments(["--envs", "headrace", "--seed", "2", *SHORT, *REPEATABLE]))
    assert other["weights"] != ours["weights"]


def test_advantages_are_those_of_the_formula(example: ModuleType) -> None:
    """The sum of (gamma lambda)^k delta_{t+k} up to the end of the episode, term by term."""
    args = example.arguments(["--gamma", "0.9", "--gae-lambda", "0.8"])
    g, T, B = torch.Generator().manual_seed(0), 12, 5
    rewards, values = torch.randn(T, B, generator=g), torch.randn(T + 1, B, generator=g)
    dones = (torch.rand(T, B, generator=g) < 0.3).float()
    assert 0 < dones.sum() < T * B
    expected = torch.zeros(T, B)
    for b in range(B):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                alive = 1 - dones[k, b]
                expected[t, b] += weight * (rewards[k, b] + 0.9 * values[k + 1, b] * alive - values[k, b])
                weight *= 0.9 * 0.8
                if not alive:
                    break
    torch.testing.assert_close(example.advantages_of(rewards, values[:-1], dones, values[-1], args), expected)


def test_it_learns_from_what_is_better(example: ModuleType) -> None:
    """A step of the optimizer makes actions with positive advantages more probable, within the clip."""
    torch.manual_seed(0)
    agent, args = example.Agent(4), example.arguments([])
    images = torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8)
    actions = torch.arange(8) % 4
    policy, values = agent(images)
    batch = {"images": images, "actions": actions, "log_probs": policy.log_prob(actions).detach(), "values": values.detach()}
    batch |= {"advantages": torch.where(actions == 2, 1.0, -1.0), "returns": values.detach()}
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4)
    example.loss_of(agent, batch, args).backward()
    optimizer.step()
    after = agent(images)[0]
    assert (after.log_prob(torch.tensor(2)) > policy.log_prob(torch.tensor(2))).all()
