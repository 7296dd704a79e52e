"""Headrace works in a program that has changed what torch does by default, and leaves the program's settings as they are."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import trained

import headrace
from headrace.config import Config, ConfigError
from headrace.evaluation.policy import load_policy
from headrace.learning.algorithm import make_agent

DQN = {"learning.algorithm": "dqn", "replay.minimum": 8, "replay.capacity": 64}
SETTINGS = {
    "float64": lambda: torch.set_default_dtype(torch.float64),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "device": lambda: torch.device("meta"),
    "set_default_device": lambda: torch.set_default_device("meta"),
}


@pytest.fixture(params=SETTINGS)
def program(request):
    """A program with one of these settings."""
    with ExitStack() as opened:
        opened.callback(torch.set_default_dtype, torch.get_default_dtype())
        opened.callback(torch.set_default_device, None)
        opened.enter_context(torch.enable_grad())
        if (setting := SETTINGS[request.param]()) is not None:
            opened.enter_context(setting)
        yield


def state() -> tuple[Any, ...]:
    return torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("settings", [{"policy.core": "gru"}, DQN], ids=["gru", "dqn"])
def test_all_of_it_works_and_changes_nothing(program: None, settings: dict[str, Any], tmp_path: Path) -> None:
    before = state()
    run = trained("gym/Acrobot-v1", tmp_path, **settings)
    assert len(headrace.evaluate(run, 2, max_episode_steps=9).returns) == 2
    policy = load_policy(run)
    observation, _ = policy.make_env().reset(seed=0)
    assert policy.act(observation, deterministic=False) in (0, 1, 2)
    assert policy.predict(observation[None], deterministic=False)[0].shape == (1,)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}
    assert not any(parameter.is_inference() for parameter in policy.model.parameters()), "it can be trained on"
    assert state() == before


def test_a_file_that_changes_it_in_all_processes_is_told_so(tmp_path: Path) -> None:
    spec = headrace.envs.describe("gym/CartPole-v1", headrace.config.EnvConfig())
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"has called torch\.set_default_dtype\(torch\.float64\)"):
            make_agent(Config(env="gym/CartPole-v1"), spec)
    finally:
        torch.set_default_dtype(torch.float32)
