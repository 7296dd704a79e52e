"""``dm_control/<domain>-<task>``: the DeepMind Control Suite (Tassa et al. 2018, arXiv 1801.00690).

The observation is one float32 vector of all parts in the suite's order, or with ``kwargs={"flatten": false}`` a Dict of them.
Other `EnvConfig.kwargs` go to the task (``time_limit`` and so on). Episodes are truncated at the suite's time limit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.config import EnvConfig
from headrace.envs.core.family_interface import Env, Family
from headrace.envs.core.wrappers import preprocess, render_without_screen

render_without_screen()

from dm_control import suite  # noqa: E402
from dm_env import StepType, specs  # noqa: E402


def ids() -> list[str]:
    """The names of all tasks, domain-task."""
    return sorted(f"{domain}-{task}" for domain, task in suite.ALL_TASKS)


class SuiteEnv(gymnasium.Env):
    """A task of the suite. Observation float32 [N], or a Dict of float32 vectors; action float32 [A] within the task's bounds."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, name: str, render_mode: str | None = None, flatten: bool = True, **task_kwargs: Any) -> None:
        domain, _, task = name.partition("-")
        self.render_mode = render_mode
        self.suite_env = suite.load(domain, task, task_kwargs=task_kwargs | {"random": 0})
        self.metadata = self.metadata | {"render_fps": round(1 / self.suite_env.control_timestep())}
        self._flatten = flatten
        observed: dict[str, specs.Array] = self.suite_env.observation_spec()
        sizes = {key: int(np.prod(spec.shape)) for key, spec in observed.items()}
        self.observation_space = (
            _numbers(sum(sizes.values()))
            if flatten
            else gymnasium.spaces.Dict({key: _numbers(size) for key, size in sizes.items()})
        )
        bounds = self.suite_env.action_spec()
        low, high = (np.broadcast_to(bound, bounds.shape).astype(np.float32) for bound in (bounds.minimum, bounds.maximum))
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.suite_env.task.random.seed(seed % 2**32)
        return self._observation(self.suite_env.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        timestep = self.suite_env.step(action)
        last = timestep.step_type == StepType.LAST
        terminated = last and timestep.discount == 0
        return self._observation(timestep.observation), float(timestep.reward), terminated, last and not terminated, {}

    def _observation(self, parts: dict[str, Any]) -> Any:
        if self._flatten:
            return np.concatenate([np.ravel(part) for part in parts.values()], dtype=np.float32)
        return {key: np.ravel(part).astype(np.float32) for key, part in parts.items()}

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The first camera's picture, uint8 [240, 320, 3]."""
        return self.suite_env.physics.render(240, 320, camera_id=0) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.suite_env.close()


def _numbers(size: int) -> gymnasium.spaces.Space[Any]:
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One task with the settings applied."""
    return preprocess(SuiteEnv(name, render_mode, **options.kwargs), options)


def defaults(name: str) -> dict[str, Any]:
    """PPO settings usual for continuous control: GAE, several epochs, normalised observations and returns."""
    return {
        "policy.mlp": [256, 256], "policy.activation": "tanh",
        "policy.normalize_observations": True, "policy.normalize_returns": True,
        "sampling.num_workers": 2, "sampling.envs_per_worker": 8, "sampling.rollout": 64,
        "learning.algorithm": "ppo", "learning.batch_size": 2048, "learning.num_epochs": 8, "learning.num_minibatches": 8,
        "learning.num_threads": 1,  # threads cost more than they gain with networks this small
        "learning.learning_rate": 3e-4, "learning.ppo_clip": 0.2, "learning.entropy_coef": 0.0, "learning.max_grad_norm": 1.0,
    }  # fmt: skip


FAMILY = Family(make, defaults, ids, observes=lambda name: "vectors")
