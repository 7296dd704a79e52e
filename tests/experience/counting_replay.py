"""The counting world through the replay: every replayed transition is checked against the world's formulas.

Imported after `tests/sampling/counting.py`, which has the world.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.learning.algorithm import Algorithm, register_algorithm

GAMMA, N = 0.5, 3


def length_of(env: np.ndarray, episode: np.ndarray) -> np.ndarray:
    return 1 + (3 * env + 5 * episode) % 9


def action_of(env: Any, episode: Any, step: Any) -> Any:
    return (env + 2 * episode + 3 * step) % 7


def reward_of(env: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
    return 1000 * (env % 16) + 10 * step + action_of(env, episode, step)


class Model(nn.Module):
    core_width = 0

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.Parameter(torch.zeros(()))


class CountingReplay(Algorithm):
    """An algorithm on replay."""

    def make_model(self, spec: EnvSpec, config: Config) -> Model:
        return Model()

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        return {"q": ArraySpec((), np.dtype(np.float32)), "env_index": ArraySpec((), np.dtype(np.int32))}

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
        env, episode, step, _ = obs["obs"].int().T
        action = action_of(env, episode, step)[:, None].int()
        return {"action": action, "q": step.float(), "value": step.float(), "env_index": envs.int()}, core

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        check({name: t.numpy() for name, t in batch.items()})

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        batch["priority"] = torch.rand(len(batch["reward"]))
        loss = model.updates.sum()  # type: ignore[union-attr,operator]
        return loss, {"losses/loss": loss, "losses/rows_checked": torch.tensor(float(batch["reward"].numel()))}


CORE = 10  # wider than a row's share of it


class CountingSequences(CountingReplay):
    """The same on sequences; the core state counts the episode's observations, in its column i in steps of i + 1."""

    def make_model(self, spec: EnvSpec, config: Config) -> Model:
        model = Model()
        model.core_width = CORE
        return model

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
        fields, _ = super().act(model, obs, core, first, envs, generator)
        return fields, torch.where(first[:, None], 0.0, core) + torch.arange(1, CORE + 1)

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        self.begun_inside = check_sequences({name: t.numpy() for name, t in batch.items()})

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        loss, statistics = super().loss(model, batch, config)
        batch["priority"] = torch.rand(len(batch["weights"]))
        return loss, {**statistics, "losses/begun_inside": torch.tensor(float(self.begun_inside))}


@register_algorithm("counting-sequences", experience="replay")
def make_sequences(config: Config) -> CountingSequences:
    """The algorithm on sequences."""
    return CountingSequences()


@register_algorithm("counting-replay", experience="replay")
def make(config: Config) -> CountingReplay:
    """The algorithm."""
    return CountingReplay()


def check(batch: dict[str, np.ndarray]) -> None:
    """Every replayed transition: n-step return, discount, observation after it."""
    env, episode, step, life = batch["obs/obs"].T.astype(np.int64)
    length = length_of(env, episode)
    assert (step < length).all(), "an episode's last observation started a transition"
    n = np.minimum(N, length - step)
    reward = sum(np.where(k < n, GAMMA**k * reward_of(env, episode, step + k), 0.0) for k in range(N))
    np.testing.assert_allclose(batch["reward"], reward, rtol=1e-5)
    terminated = (step + n == length) & (episode % 2 == 0)
    np.testing.assert_allclose(batch["discount"], np.where(terminated, 0.0, GAMMA**n))
    np.testing.assert_array_equal(batch["action"][:, 0], action_of(env, episode, step))
    after = np.stack([env, episode, step + n, life], 1)[~terminated]  # what follows a termination does not matter
    np.testing.assert_array_equal(batch["next/obs"][~terminated].astype(np.int64), after)
    assert (batch["weights"] > 0).all()
    assert (batch["weights"] <= 1).all()
    assert (batch["version"] >= 0).all()


def check_sequences(batch: dict[str, np.ndarray]) -> int:
    """Every row of sequences [T, B] and the core state before them; how many begin within an episode."""
    intact = batch["weights"] > 0
    b = {name: x[:, intact] for name, x in batch.items() if x.ndim >= 2 and name != "core"}
    env, episode, step, life = np.moveaxis(b["obs/obs"], -1, 0).astype(np.int64)
    equal = np.testing.assert_array_equal
    length = length_of(env, episode)
    equal(b["final"], step == length)
    equal(b["first"], step == 0)
    equal(b["last"], step + 1 == length)
    real = ~b["final"]
    equal(b["reward"][real], reward_of(env, episode, step)[real])
    equal(b["discount"][real], np.where(b["last"] & (episode % 2 == 0), 0.0, GAMMA)[real])
    equal(b["action"][..., 0], action_of(env, episode, step))
    equal(env[1:], env[:-1])
    equal(life[1:], life[:-1])
    equal(step[1:], np.where(real, step + 1, 0)[:-1])
    core = batch["core"][intact, :CORE]
    inside = ~b["first"][0]
    equal(core[inside], (step[0][:, None] * np.arange(1, CORE + 1))[inside])
    return int(inside.sum())
