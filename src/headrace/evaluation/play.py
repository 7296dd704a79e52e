"""Trained policies outside of training: loaded, evaluated, watched."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.config.validation import check_device
from headrace.envs.contract import EnvGroup, EnvironmentFault, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.group import Completion
from headrace.envs.registry import describe, import_files, make_env, make_group
from headrace.envs.spaces import decoder, leaves
from headrace.learning.algorithms import make_algorithm
from headrace.runs import checkpoint
from headrace.runs.checkpoint import Checkpoint, CheckpointError

EVALUATION_SEED = 1_000_000
"""Far from the seeds of training, which are small numbers counted up from `Config.seed`."""

Which = Literal["newest", "best"] | Path
"""Which checkpoint of a run: the newest, the best, or the one in this folder."""


class TrainedPolicy:
    """A model with its weights, the environment it was trained for, and its own core state: ask it for actions.

    For one environment, pass what `env.reset` and `env.step` return and get what `env.step` takes:

        policy = headrace.load_policy("runs/my-run")
        env = policy.make_env()
        observation, _ = env.reset()
        policy.reset()
        action = policy.act(observation)
    """

    def __init__(self, config: Config, spec: EnvSpec, model: torch.nn.Module, step: int, seed: int = 0) -> None:
        self.config, self.spec, self.step = config, spec, step
        """`step`: global_step of the checkpoint the weights are from."""
        self.device = torch.device(config.device)
        self.model: Any = model.to(self.device).eval()
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """The next observation given to `act` is the first of an episode."""
        self._core = torch.zeros(1, self.model.core_width, device=self.device)
        self._first = np.ones(1, bool)

    def act(self, observation: Any, *, deterministic: bool = True) -> Any:
        """The action for one observation of `make_env`'s environment. Call `reset` when an episode begins.

        Raises `headrace.envs.spaces.BadObservation` for observations that are not in the environment's space.
        """
        rows = {leaf.name: np.zeros((1, *leaf.spec.shape), leaf.spec.dtype) for leaf in self._leaves}
        for leaf in self._leaves:
            leaf.put_one(rows[leaf.name], 0, observation)
        actions, self._core = self.act_rows(rows, self._core, self._first, deterministic=deterministic)
        self._first = np.zeros(1, bool)
        return self._decode(actions)[0]

    @torch.inference_mode()
    def act_rows(
        self, obs: dict[str, np.ndarray], core: Tensor, first: np.ndarray, *, deterministic: bool
    ) -> tuple[np.ndarray, Tensor]:
        """Actions of N environments in the engine's own form.

        Args:
            obs: by name, [N, ...], as described by `spec.observation`.
            core: float32 [N, S] core state before these observations; see `initial_core`.
            first: bool [N]: the core state is zeroed before these observations.
            deterministic: the mode of the distribution instead of a sample.

        Returns:
            actions [N, A] (int32 or float32) and the core state after these observations [N, S].
        """
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in obs.items()}
        output = self.model.act(tensors, core, torch.from_numpy(first).to(self.device))
        actions = output.distribution.mode() if deterministic else output.distribution.sample(self.generator)
        return actions.cpu().numpy(), output.core

    def initial_core(self, n: int) -> Tensor:
        """float32 zeros [n, S]."""
        return torch.zeros(n, self.model.core_width, device=self.device)

    def make_env(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """One environment of the kind the policy was trained in: whole games, raw rewards.

        `render_mode`: "rgb_array" for pictures, for `gym` environments also "human" for a window. Raises `ConfigError` for one
        that the environment does not have.
        """
        return make_env(self.config.env, self.config.envs, render_mode=render_mode)

    @cached_property
    def _spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        env = self.make_env()
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()

    @cached_property
    def _leaves(self) -> list[Any]:
        return leaves(self._spaces[0])

    @cached_property
    def _decode(self) -> Callable[[np.ndarray], list[Any]]:
        return decoder(self._spaces[1])


def load_policy(run: os.PathLike[str] | str, *, which: Which = "newest", device: str = "auto", seed: int = 0) -> TrainedPolicy:
    """The policy of a run folder, from its newest or its best checkpoint. `seed`: for sampled actions.

    Raises `ConfigError` if the folder holds no run or no checkpoint or the device is not here, `CheckpointError` if the
    checkpoint is damaged.
    """
    config = _run_config(run)
    check_device(device)
    config.learning.device = device
    import_files(config.imports)
    found = _checkpoint(run, which)
    for damage in found.damaged:
        warnings.warn(f"{damage}; using {found.path.name}", stacklevel=2)
    spec = describe(config.env, config.envs)
    model = make_algorithm(config).make_model(spec, config)
    try:
        model.load_state_dict(found.unpack()["model"])
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{found.path} does not fit the network that {run}'s config.json describes: {error}") from error
    return TrainedPolicy(config, spec, model, found.step, seed)


def _run_config(run: os.PathLike[str] | str) -> Config:
    path = Path(run) / "config.json"
    if not path.is_file():
        raise ConfigError(f"{run} is no run folder: there is no config.json in it")
    return configs.load(path)


def _checkpoint(run: os.PathLike[str] | str, which: Which) -> Checkpoint:
    if isinstance(which, Path):
        return checkpoint.load(which)
    folder = Path(run) / "checkpoints"
    found = checkpoint.load_newest(folder) if which == "newest" else checkpoint.load_best(folder)
    if found is None:
        missing = "checkpoint yet" if which == "newest" else "checkpoint with a score (100 finished episodes) yet"
        raise ConfigError(f"{run} has no {missing}")
    return found


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Torch computes with so many threads meanwhile.

    One is the default here: batches are small, and threads that wait for each other at every layer lose more on busy cores
    than they gain on idle ones (Nature CNN, 16 observations, 2 cores at load 15: 17 ms with one thread, 300 ms with two).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- evaluation -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvalResult:
    """Returns of whole games: raw rewards, neither clipped nor scaled."""

    env: str
    step: int
    """global_step of the policy."""
    deterministic: bool
    returns: list[float]
    lengths: list[int]
    """Steps of each episode."""
    mean: float
    std: float
    """Standard deviation of the episodes (n - 1); NaN for one episode."""
    ci95: tuple[float, float]
    """95 % confidence interval of the mean (percentile bootstrap, 10,000 resamples); NaN for one episode."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; NaN becomes None."""
        return {key: _without_nan(value) for key, value in dataclasses.asdict(self).items()}

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        low, high = self.ci95
        interval = "" if math.isnan(low) else f" (95 % CI {low:.2f} to {high:.2f}, std {self.std:.2f})"
        how = "deterministic" if self.deterministic else "sampled actions"
        return f"{self.env}: mean return {self.mean:.2f}{interval} over {len(self.returns)} episodes, step {self.step:,}, {how}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def evaluate(
    policy: TrainedPolicy | os.PathLike[str] | str,
    episodes: int = 10,
    *,
    num_envs: int | None = None,
    deterministic: bool = False,
    seed: int = EVALUATION_SEED,
    which: Which = "newest",
    num_threads: int = 1,
) -> EvalResult:
    """Play whole games with a policy or with the policy of a run folder.

    The episodes are shared out evenly over `num_envs` environments (at most 16 unless given) beforehand: taking the first
    `episodes` to finish would favour short ones. The same seed gives the same episodes. An episode without an end is waited
    for: set `envs.max_episode_steps` where the environment has no limit. `num_threads`: torch's, on the CPU.

    Raises `ValueError` if `episodes` is below 1, and what `load_policy` raises.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; it must be at least 1")
    if not isinstance(policy, TrainedPolicy):
        policy = load_policy(policy, which=which, seed=seed)
    num_envs = min(episodes, num_envs or 16)
    started = time.perf_counter()
    group = make_group(policy.config.env, policy.config.envs, num_envs, training=False)
    try:
        with using_threads(num_threads):
            played = _play(policy, group, episodes, deterministic, seed)
    finally:
        group.close()
    returns = np.array([r for r, _ in played])
    std = float(returns.std(ddof=1)) if episodes > 1 else math.nan
    return EvalResult(
        env=policy.config.env,
        step=policy.step,
        deterministic=deterministic,
        returns=returns.tolist(),
        lengths=[length for _, length in played],
        mean=float(returns.mean()),
        std=std,
        ci95=bootstrap_ci(returns),
        seconds=time.perf_counter() - started,
    )


def _play(policy: TrainedPolicy, group: EnvGroup, episodes: int, deterministic: bool, seed: int) -> list[tuple[float, int]]:
    """(return, length) of each environment's share of the episodes, environment by environment."""
    n, spec = group.num_envs, group.spec
    share = [episodes // n + (i < episodes % n) for i in range(n)]
    played: list[list[tuple[float, int]]] = [[] for _ in range(n)]

    def arrays() -> dict[str, np.ndarray]:
        return {name: np.zeros((n, *array.shape), array.dtype) for name, array in spec.observation.items()}

    def row() -> ObsRow:
        return ObsRow(arrays(), np.zeros(n, bool), np.zeros(n, bool))

    final = arrays() if spec.autoreset == "same-step" else {}
    now = StepRow(
        np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, np.float32), np.zeros(n, np.int32), final
    )
    current, after = row(), row()
    step = LaneRow(None, now, after)
    completion = Completion(group)
    core = policy.initial_core(n)
    group.reset(seed, [current])
    completion.wait()
    while any(len(done) < wanted for done, wanted in zip(played, share, strict=True)):
        step.actions, core = policy.act_rows(current.obs, core, current.first, deterministic=deterministic)
        step.after = after
        group.send([step])
        completion.wait()
        for i in np.flatnonzero(~np.isnan(now.episode_return)):
            if len(played[i]) < share[i]:
                played[i].append((float(now.episode_return[i]), int(now.episode_length[i])))
        current, after = after, current
    return [episode for done in played for episode in done]


def bootstrap_ci(values: np.ndarray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979) of `values` [n]; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = np.concatenate([rng.choice(values, (1000, len(values))).mean(1) for _ in range(resamples // 1000)])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


# -- watching ---------------------------------------------------------------------------------------------------------


def record(
    policy: TrainedPolicy | os.PathLike[str] | str,
    path: os.PathLike[str] | str,
    *,
    episodes: int = 1,
    deterministic: bool = False,
    max_steps: int | None = None,
    seed: int = EVALUATION_SEED,
    which: Which = "newest",
) -> list[float]:
    """Record whole games as a video (mp4); returns the raw return of each. `max_steps` ends the recording early.

    Raises `ConfigError` where the environment has no pictures or a package for them is missing, `EnvironmentFault` where drawing
    one fails, and what `load_policy` raises.
    """
    from headrace.runs.video import VideoWriter

    if not isinstance(policy, TrainedPolicy):
        policy = load_policy(policy, which=which, seed=seed)
    env = policy.make_env(render_mode="rgb_array")
    returns: list[float] = []
    steps = 0
    try:
        with using_threads(1), VideoWriter(path, fps=float(env.metadata.get("render_fps") or 30)) as video:
            for episode in range(episodes):
                observation, _ = env.reset(seed=seed + episode)
                policy.reset()
                returns.append(0.0)
                over = False
                while not over and (max_steps is None or steps < max_steps):
                    video.add(_picture(env, policy.config.env))
                    action = policy.act(observation, deterministic=deterministic)
                    observation, reward, terminated, truncated, _ = env.step(action)
                    returns[-1] += float(reward)
                    over = terminated or truncated
                    steps += 1
                video.add(_picture(env, policy.config.env))
    finally:
        env.close()
    return returns


def _picture(env: gymnasium.Env[Any, Any], env_id: str) -> np.ndarray:
    """uint8 [H, W, 3]."""
    try:
        return np.asarray(env.render())
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f'drawing {env_id} needs packages that are not installed: pip install "headrace[video]" ({error})'
        ) from error
    except Exception as error:
        raise EnvironmentFault(f"{env_id} cannot be drawn: {type(error).__name__}: {error}") from error
