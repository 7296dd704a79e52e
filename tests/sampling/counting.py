"""A world and an algorithm that only count, and a learner that checks every number it is given.

Observation: (number of the world, episode, step within the episode, life), where number and life together are the seed, so that
no two environments of a run are alike, also not those of a worker and of the one that took its place. The "policy" counts the
observations of the episode in its core state, reports that count as the value, and acts by a formula of the observation. If a
single row, core state or flag were out of place anywhere between the environment and the learner, a check in `loss` would fail.

With several policies the settings say which group is whose. A policy's number travels with its weights, and acting writes it
down, so that a learner sees which weights chose the actions. With the ledger (a folder, `envs.kwargs`), every learner writes down
every trajectory that it learns from; `read_ledger` and `check_ledger` say whether each was learned from once, and by whom.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import Config, EnvConfig, LearningConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.envs.core.registry import register
from headrace.learning.algorithm import Algorithm, register_algorithm
from headrace.sampling.actor import environment_numbers

ACTIONS = 7
WORLDS = 500_009  # a restarted worker's environments have other seeds; the number of the world is the seed modulo this


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

    observation_space = gymnasium.spaces.Box(0, 1e6, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(ACTIONS)

    def __init__(self, first_reset_seconds: float = 0.0, step_seconds: float = 0.0, ledger: str = "") -> None:
        self._env, self._life, self._episode, self._step = 0, 0, -1, 0
        self._first_reset_seconds, self._step_seconds = first_reset_seconds, step_seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode; the seed says which world this is."""
        if seed is not None:
            self._life, self._env = divmod(seed, WORLDS)
            self._episode = -1
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
        return {"counts": [self._env, self._life, self._episode, self._step]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`."""
        self._env, self._life, self._episode, self._step = state["counts"]

    def _observation(self) -> np.ndarray:
        return np.array([self._env, self._episode, self._step, self._life], np.float32)


@register("counting")
def make(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[np.ndarray, int]:
    """The counting world."""
    return CountingEnv(**options.kwargs)


class CountingModel(nn.Module):
    """One parameter, so that there is something to publish; it holds the number of updates. `policy` is the policy's number, -1
    before the first update; it travels with the weights."""

    core_width = 1
    policy: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.updates = nn.Parameter(torch.zeros(()))
        self.register_buffer("policy", torch.tensor(-1.0))


class Counting(Algorithm):
    """The `Algorithm`."""

    def __init__(self, config: Config) -> None:
        C = config.envs_per_group
        policies = np.array([config.policy_of_group(group) for group in range(config.num_envs // C)])
        self._policy_of = np.zeros(config.num_envs, np.int64)
        """By the environment's number: the policy that acts for its group."""
        self._policy_of[environment_numbers(policies, C)] = policies[:, None]
        self._ledger: int | None = None
        self._folder = config.envs.kwargs.get("ledger")

    def make_model(self, spec: EnvSpec, config: Config) -> CountingModel:
        return CountingModel()

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        number = np.dtype(np.float32)
        return {"weights": ArraySpec((), number), "policy": ArraySpec((), number), "env_index": ArraySpec((), np.dtype(np.int32))}

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
        count = torch.where(first[:, None], 0.0, core) + 1
        action = action_of(env, episode, step)[:, None].int()
        weights = model.updates.detach().expand(len(env))  # type: ignore[union-attr,operator]
        policy = model.policy.expand(len(env))  # type: ignore[union-attr,operator]
        fields = {"action": action, "value": count[:, 0], "log_prob": -step.float(), "weights": weights}
        return {**fields, "policy": policy, "env_index": envs.int()}, count

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        """Check that this learner's policy acted, and write down what is learned from."""
        policies = np.unique(self._policy_of[batch["env_index"].cpu().numpy()]).tolist()
        assert len(policies) == 1, f"trajectories of the policies {policies} in one batch"
        mine = float(policies[0])
        assert float(model.policy) in (-1.0, mine), f"learner of policy {float(model.policy)}, trajectories of policy {mine}"  # type: ignore[arg-type]
        model.policy.fill_(mine)  # type: ignore[union-attr,operator]
        assert batch["policy"].unique().tolist() in ([mine], [-1.0], [-1.0, mine]), "another policy's weights acted"
        if self._folder:
            self._write(int(mine), batch)

    def _write(self, policy: int, batch: dict[str, Tensor]) -> None:
        if self._ledger is None:
            path = Path(self._folder) / f"{policy}-{time.time_ns()}-{os.getpid()}"
            self._ledger = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        rows = batch["obs/obs"][0].long().tolist()
        os.write(self._ledger, "".join(f"{env} {life} {position(env, k, t)}\n" for env, k, t, life in rows).encode())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        check({name: t.detach().cpu().numpy() for name, t in batch.items()})
        # plain SGD-like drift, so that every update changes the weights
        loss = model.updates.sum()  # type: ignore[union-attr,operator]
        rows = torch.tensor(float(batch["reward"].numel()))
        return loss, {"losses/loss": loss, "losses/rows_checked": rows, "losses/policy": model.policy.clone()}  # type: ignore[operator,union-attr,dict-item]


@register_algorithm("counting")
def make_counting(config: Config) -> Counting:
    """The counting algorithm."""
    return Counting(config)


def check(batch: dict[str, np.ndarray]) -> None:
    """Every number of a batch [T(+1), B] against the world's formulas."""
    env, episode, step, life = np.moveaxis(batch["obs/obs"], -1, 0).astype(np.int64)
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

    if "obs/previous_action" in batch:
        equal(batch["obs/previous_action"][..., 0], np.where(step > 0, action_of(env, episode, step - 1), 0))
        equal(batch["obs/previous_reward"], np.where(step > 0, reward_of(env, episode, step - 1), 0))

    last = real[now] & (step[now] + 1 == length[now])
    equal(batch["terminated"], last & (episode[now] % 2 == 0))
    equal(batch["truncated"], last & (episode[now] % 2 == 1))
    equal(batch["reward"], np.where(real[now], reward_of(env, episode, step)[now], 0))
    # from one row to the next: one step further, or from the true last observation to the next episode's first
    equal(step[1:], np.where(real[now], step[now] + 1, 0))
    equal(episode[1:], episode[now] + ~real[now])
    equal(env[1:], env[now])
    equal(life[1:], life[now])

    equal(batch["episode_length"], np.where(last, length[now], 0))
    ended = ~np.isnan(batch["episode_return"])
    equal(ended, last)
    for t, b in np.argwhere(ended):
        e, k, n = env[t, b], episode[t, b], length[t, b]
        assert batch["episode_return"][t, b] == sum(reward_of(e, k, s) for s in range(n))
    assert (batch["version"] >= 0).all()


# -- the ledger: what was learned from, over all learners of a run ----------------------------------------------------


def position(env: int, episode: int, step: int) -> int:
    """How many observations of a world come before this one. The last of an episode is one of them."""
    return sum(episode_length(env, k) + 1 for k in range(episode % 9)) + episode // 9 * 54 + step


@dataclass
class Ledger:
    """What one policy's learners have learned from, one after the other."""

    learners: int = 0
    starts: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By world and life: positions of the trajectories' first rows, in the order in which they were learned from."""


def read_ledger(folder: Path) -> dict[int, Ledger]:
    """The ledgers by policy."""
    ledgers: dict[int, Ledger] = defaultdict(Ledger)
    for path in sorted(folder.iterdir()):
        ledger = ledgers[int(path.name.partition("-")[0])]
        ledger.learners += 1
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else its writer was killed
                env, life, start = map(int, line.split())
                ledger.starts[env, life].append(start)
    return ledgers


def check_ledger(ledger: Ledger, T: int) -> int:
    """Every trajectory was learned from at most once, and none is missing between two others of its world. Returns how many are
    missing all the same, which a learner's death explains."""
    missing = 0
    for world, starts in ledger.starts.items():
        assert len(set(starts)) == len(starts), f"world {world}: learned from twice: {sorted(starts)}"
        assert all(start % T == 0 for start in starts), f"world {world}: a trajectory began elsewhere: {sorted(starts)}"
        if ledger.learners == 1:
            assert starts == sorted(starts), f"world {world}: not in order: {starts}"
        missing += max(starts) // T + 1 - len(starts)
    return missing
