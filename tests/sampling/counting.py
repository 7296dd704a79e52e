"""A world and an algorithm that only count, and a learner that checks every number it is given.

Observation: (index of the environment, episode, step within the episode). The "policy" counts the observations of the episode
in its core state, reports that count as the value, and acts by a formula of the observation. If a single row, core state or
flag were out of place anywhere between the environment and the learner, a check in `loss` would fail.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import Config, EnvConfig, LearningConfig
from headrace.envs.contract import ArraySpec, EnvSpec
from headrace.envs.registry import register
from headrace.learning.algorithm import Algorithm, register_algorithm

ACTIONS = 7


def episode_length(env: Any, episode: Any) -> Any:
    """Steps of an episode: 1 to 9."""
    return 1 + (3 * env + 5 * episode) % 9


def action_of(env: Any, episode: Any, step: Any) -> Any:
    """The action that belongs to an observation."""
    return (env + 2 * episode + 3 * step) % ACTIONS


def reward_of(env: Any, episode: Any, step: Any) -> Any:
    """The reward of acting rightly on an observation."""
    return 1000 * (env % 16) + 10 * step + action_of(env, episode, step)


class CountingEnv(gymnasium.Env[np.ndarray, int]):
    """Even episodes terminate, odd ones are truncated. Refuses any action but the one that belongs to the observation."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(ACTIONS)

    def __init__(self, first_reset_seconds: float = 0.0, step_seconds: float = 0.0) -> None:
        self._env, self._episode, self._step = 0, -1, 0
        self._first_reset_seconds, self._step_seconds = first_reset_seconds, step_seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode; the seed is the environment's index."""
        if seed is not None:
            self._env, self._episode = seed % 500_009 % 1_000_003, -1
            time.sleep(self._first_reset_seconds)
        self._episode += 1
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Count on."""
        time.sleep(self._step_seconds)
        here = (self._env, self._episode, self._step)
        if int(action) != action_of(*here):
            raise ValueError(f"action {action} came to observation {here}, whose action is {action_of(*here)}")
        self._step += 1
        over, even = self._step == episode_length(self._env, self._episode), self._episode % 2 == 0
        return self._observation(), float(reward_of(*here)), over and even, over and not even, {}

    def get_state(self) -> dict[str, Any]:
        """For an exact resume."""
        return {"counts": [self._env, self._episode, self._step]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`."""
        self._env, self._episode, self._step = state["counts"]

    def _observation(self) -> np.ndarray:
        return np.array([self._env, self._episode, self._step], np.float32)


@register("counting")
def make(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[np.ndarray, int]:
    """The counting world."""
    return CountingEnv(**options.kwargs)


class CountingModel(nn.Module):
    """One parameter, so that there is something to publish; it holds the number of updates."""

    core_width = 1

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.Parameter(torch.zeros(()))


class Counting(Algorithm):
    """The `Algorithm`."""

    def make_model(self, spec: EnvSpec, config: Config) -> CountingModel:
        return CountingModel()

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        return {"weights": ArraySpec((), np.dtype(np.float32))}

    def act(
        self,
        model: nn.Module,
        obs: dict[str, Tensor],
        core: Tensor,
        first: Tensor,
        envs: Tensor,
        generator: torch.Generator,
        mode: str = "train",
    ) -> tuple[dict[str, Tensor], Tensor]:
        env, episode, step = obs["obs"].int().T
        count = torch.where(first[:, None], 0.0, core) + 1
        action = action_of(env, episode, step)[:, None].int()
        weights = model.updates.detach().expand(len(env))  # type: ignore[union-attr,operator]
        return {"action": action, "value": count[:, 0], "log_prob": -step.float(), "weights": weights}, count

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        check({name: t.detach().cpu().numpy() for name, t in batch.items()})
        # plain SGD-like drift, so that every update changes the weights
        loss = model.updates.sum()  # type: ignore[union-attr,operator]
        return loss, {"losses/loss": loss, "losses/rows_checked": torch.tensor(float(batch["reward"].numel()))}


@register_algorithm("counting")
def make_counting(config: Config) -> Counting:
    """The counting algorithm."""
    return Counting()


def check(batch: dict[str, np.ndarray]) -> None:
    """Every number of a batch [T(+1), B] against the world's formulas."""
    env, episode, step = np.moveaxis(batch["obs/obs"], -1, 0).astype(np.int64)
    length = episode_length(env, episode)
    equal = np.testing.assert_array_equal
    T = len(batch["reward"])
    real, over = batch["valid"], step == length
    equal(real, ~over)
    equal(batch["first"], step == 0)

    now = np.s_[:T]
    equal(batch["action"][..., 0], action_of(env, episode, step)[now])
    equal(batch["log_prob"], -step[now])
    # the core state counts observations since the episode's first, across slots and through the learner
    equal(batch["value"], step[now] + 1)
    equal(np.where(batch["first"][0], 0, batch["core"][:, 0]), step[0])

    last = real[now] & (step[now] + 1 == length[now])
    equal(batch["terminated"], last & (episode[now] % 2 == 0))
    equal(batch["truncated"], last & (episode[now] % 2 == 1))
    equal(batch["reward"], np.where(real[now], reward_of(env, episode, step)[now], 0))
    # from one row to the next: one step further, or from the true last observation to the next episode's first
    equal(step[1:], np.where(real[now], step[now] + 1, 0))
    equal(episode[1:], episode[now] + ~real[now])
    equal(env[1:], env[now])

    equal(batch["episode_length"], np.where(last, length[now], 0))
    ended = ~np.isnan(batch["episode_return"])
    equal(ended, last)
    for t, b in np.argwhere(ended):
        e, k, n = env[t, b], episode[t, b], length[t, b]
        assert batch["episode_return"][t, b] == sum(reward_of(e, k, s) for s in range(n))
    assert (batch["version"] >= 0).all()
