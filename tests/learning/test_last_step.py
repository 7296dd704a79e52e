"""Policies that observe their last action and reward: trained, replayed, evaluated and asked for actions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace import load_policy
from headrace.config import EnvConfig
from headrace.config.seeds import Use, environment_seed
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD
from headrace.envs.core.registry import register
from headrace.envs.make import describe_run
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.experience.batch import Batch
from headrace.learning.algorithm import make_agent, make_algorithm
from headrace.make_config import make_config
from headrace.sampling.placements import make_placement
from headrace.sampling.placements.serial import SerialSampler
from headrace.train import train

INPUTS = {"policy.previous_action": True, "policy.previous_reward": True}


class Bandit(gymnasium.Env[np.ndarray, int]):
    """Two arms for eight steps, one of them good. Nothing is seen: only who knows what he did, and what that gave, finds it."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.good, self.t = int(self.np_random.integers(2)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(1, np.float32), float(action == self.good), self.t == 8, False, {}


@register("test/bandit")
def bandit(options: EnvConfig, *, render_mode: str | None = None) -> Bandit:
    return Bandit()


def config_of(folder: Path, algorithm: str = "ppo", **settings: Any) -> Any:
    small = {
        "run.folder": str(folder), "run.dashboard": False, "run.video": False, "learning.device": "cpu",
        "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 16, "sampling.num_groups": 1,
        "sampling.rollout": 16, "policy.mlp": (8,), "policy.core": "gru", "policy.core_size": 16,
    }  # fmt: skip
    return make_config("test/bandit", algorithm, **{**small, **settings})


@pytest.mark.process
def test_what_was_done_and_given_is_learned_from_and_acted_upon(tmp_path: Path) -> None:
    learning = {"sampling.envs_per_worker": 32, "learning.batch_size": 512, "learning.num_minibatches": 1,
                "learning.num_epochs": 4, "learning.learning_rate": 1e-2, "learning.lr_schedule": "constant",
                "learning.total_steps": 16_000, "learning.gamma": 0.9}  # fmt: skip
    result = train(config_of(tmp_path / "inputs", **learning, **INPUTS))
    assert result.mean_return > 6.5, "one or two tries, then always the good one; without the inputs 4 at most"
    policy = load_policy(tmp_path / "inputs")
    played = evaluate(policy, 10, num_envs=1, deterministic=True, seed=3)
    assert played.mean > 6.5
    returns, env = [], policy.make_env()
    with closing(env):
        observation, _ = env.reset(seed=environment_seed(Use.EVALUATION, 3))
        for _ in range(10):
            policy.reset()
            total, reward, over = 0.0, None, False
            while not over:
                observation, reward, over, _, _ = env.step(policy.act(observation, reward=reward))
                total += reward
            returns.append(total)
            observation, _ = env.reset()
    assert returns == played.returns
    policy.reset()
    policy.act(observation)
    with pytest.raises(ValueError, match="last reward"):
        policy.act(observation)


def test_the_reward_that_is_given_is_seen_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled, then clipped: `evaluate` does the same."""
    config = config_of(tmp_path, **INPUTS, **{"envs.reward_scale": 0.1, "envs.reward_clip": 0.5})
    spec, algorithm = describe_run(config), make_algorithm(config)
    policy = TrainedPolicy(config, spec, algorithm, algorithm.make_model(spec, config), 0)
    seen = []

    def watched(obs: dict[str, np.ndarray], core: Any, *args: Any, **how: Any) -> Any:
        seen.append(obs[PREVIOUS_REWARD].item())
        return np.zeros((1, 1), np.int32), core

    monkeypatch.setattr(policy, "act_rows", watched)
    for reward in (None, 2.0, -7.0):
        policy.act(np.zeros(1, np.float32), reward=reward)
    assert seen == pytest.approx([0.0, 0.2, -0.5])


def test_sequences_are_replayed_with_them_burn_in_and_all(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, "r2d2", **INPUTS,
        **{"sampling.rollout": 5, "q.burn_in": 5, "q.sequence": 5, "replay.n_step": 2, "replay.minimum": 400,
           "replay.capacity": 4_000, "learning.batch_size": 32},
    )  # fmt: skip
    placement = make_placement(config, describe_run(config), make_agent)
    placement.sampler = SerialSampler(placement)
    experience = placement.batches(0, range(16))
    while not isinstance(batch := experience.next(), Batch):
        pass
    data = {name: x.numpy() for name, x in batch.data.items()}
    first, reward = data["first"].astype(bool), data["reward"]
    assert data["obs/" + PREVIOUS_ACTION].shape == (12, 32, 1)
    goes_on = ~first[1:]
    np.testing.assert_array_equal(data["obs/" + PREVIOUS_ACTION][1:][goes_on], data["action"][:-1][goes_on])
    np.testing.assert_array_equal(data["obs/" + PREVIOUS_REWARD][1:][goes_on], reward[:-1][goes_on])
    assert not data["obs/" + PREVIOUS_ACTION][first].any()
    assert not data["obs/" + PREVIOUS_REWARD][first].any()
    assert first[1:].any()
    assert data["obs/" + PREVIOUS_REWARD].any()
