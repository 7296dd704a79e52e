"""Matches that end with their trajectories, so that now and then nobody acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.registry import register_parallel
from headrace.make_config import make_config
from headrace.runs import checkpoint
from headrace.train import train

pytestmark = pytest.mark.process

LENGTH = 3


class Short:
    """A match has `LENGTH` steps."""

    def __init__(self, agents: int) -> None:
        self.possible_agents, self.agents = ["one", "two"][:agents], list[str]()

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, LENGTH, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.t = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.t += 1
        everybody, over = self.agents, self.t == LENGTH
        self.agents = [] if over else everybody
        seen, rewards = dict.fromkeys(everybody, np.full(1, self.t, np.float32)), {a: float(actions[a]) for a in everybody}
        return seen, rewards, dict.fromkeys(everybody, over), dict.fromkeys(everybody, False), {}

    def close(self) -> None:
        pass


@register_parallel("short-matches-alone", agents=1)
def alone(options: EnvConfig, *, render_mode: str | None = None) -> Short:
    return Short(1)


@register_parallel("short-matches", agents=2)
def duel(options: EnvConfig, *, render_mode: str | None = None) -> Short:
    return Short(2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("env", "rollout"), [("short-matches-alone", LENGTH), ("short-matches", 2)], ids=["nobody", "script"])
def test_a_run_that_was_stopped_while_nobody_or_only_a_script_acts_goes_on(env: str, rollout: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 2,
        "sampling.rollout": rollout, "learning.batch_size": 2 * rollout, "learning.num_minibatches": 1, "learning.num_epochs": 1,
        "learning.device": "cpu", "policy.mlp": [4], "run.dashboard": False, "run.video": False, "learning.num_threads": 1,
        "learning.lr_schedule": "constant", "learning.learning_rate": 0.01,
    }  # fmt: skip
    if env == "short-matches":
        settings |= {"matches.matchmaker": "self-play", "matches.opponents": ("random",), "matches.opponent_share": 1.0}

    def run(name: str, steps: int) -> dict[str, torch.Tensor]:
        folder = tmp_path / name
        train(make_config(env, "ppo", **settings, **{"learning.total_steps": steps, "run.folder": str(folder)}))
        found = checkpoint.load_newest(folder / "checkpoints")
        assert found is not None
        weights: dict[str, torch.Tensor] = found.unpack()["model"]
        return weights

    straight = run("straight", 120)
    run("stopped", 60)
    for name, tensor in run("stopped", 120).items():
        assert torch.equal(tensor, straight[name]), name
    assert "Episodes begin anew" not in (tmp_path / "stopped" / "log.txt").read_text()
