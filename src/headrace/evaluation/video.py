"""Videos of a trained policy, and the pictures with which training ends."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from headrace.accelerator.threads import using_threads
from headrace.accelerator.torch_defaults import torch_defaults
from headrace.config import Config, ConfigError, EnvConfig
from headrace.config.seeds import Use, environment_seed, random_seed
from headrace.envs.core.errors import EnvironmentFault, cause, faults
from headrace.envs.core.family_interface import ParallelEnv
from headrace.envs.core.imports import needed_code
from headrace.envs.core.last_step import last_step_names, without_last_step
from headrace.envs.core.settings import options_of
from headrace.envs.groups.local import LocalGroup
from headrace.envs.groups.multi_agent import multi_agent_group
from headrace.envs.groups.rewards import reward_transform
from headrace.envs.make import make_parallel
from headrace.evaluation.games import Game, Games, check_count, team_of
from headrace.evaluation.policy import TrainedPolicy, Which, load_policy
from headrace.runs.plots import learning_curve, task_curves
from headrace.runs.video import VideoWriter

RECORDING = "A recording without an end needs a limit: --max-steps of headrace watch, max_steps in Python"
"""What to do about an episode that does not end."""
VIDEO = "video.mp4"  # in the run folder
VIDEO_STEPS = 3000  # longest video made when training ends, in steps


@torch_defaults()
def record(
    policy: TrainedPolicy | os.PathLike[str] | str,
    path: os.PathLike[str] | str,
    *,
    episodes: int = 1,
    deterministic: bool = False,
    max_steps: int | None = None,
    seed: int = 0,
    which: Which = "newest",
    number: int = 0,
    imports: Iterable[os.PathLike[str] | str] = (),
    task: str | None = None,
) -> list[float]:
    """Record whole games as a video (mp4). Returns the raw return of each game, or for matches the outcome of the first agent.
    `max_steps` ends the recording early. `number`: of the policy, where the run trained several. The same seed gives the same
    games, which are played neither in training nor by `evaluate`. `imports`: see `load_policy`. `task`: see
    `TrainedPolicy.make_env`.

    Raises `ValueError` if `episodes` or `max_steps` is no whole number from 1 on, `ConfigError` where the environment has no
    pictures or a package for them is missing, `EnvironmentFault` where drawing one fails, and what `load_policy` raises.
    """
    check_count("episodes", episodes)
    if max_steps is not None:
        check_count("max_steps", max_steps)
    if not isinstance(policy, TrainedPolicy):
        policy = load_policy(policy, which=which, policy=number, imports=imports)
    games = record_games(policy, path, episodes, deterministic=deterministic, max_steps=max_steps, seed=seed, task=task)
    return [next(iter(results.values())) for results in games]


def record_games(
    policy: TrainedPolicy, path: os.PathLike[str] | str, episodes: int, *, deterministic: bool, max_steps: int | None, seed: int,
    task: str | None,
) -> list[dict[str, float]]:  # fmt: skip
    """As `record`. Gives for each game {"return": its return}, for each match {agent: outcome}; for a game that was cut short the
    values so far."""
    tasks, spec = policy.config.tasks, policy.spec
    name = task or tasks[0]
    options = options_of(name, tasks, policy.config.envs)
    env: Any
    if spec.agents:
        env = make_match(name, options, "rgb_array")
        group: Any = multi_agent_group(lambda: env, options, 1, name)
        plays = [(episodes, environment_seed(Use.VIDEO, seed))]
    else:
        env = policy.make_env("rgb_array", task)
        own = without_last_step(spec, names := last_step_names(policy.config))
        group = LocalGroup([env], replace(own, name=name), reward_transform(options) if names else lambda raw: raw)
        plays = [(1, environment_seed(Use.VIDEO, seed) + episode) for episode in range(episodes)]
    games = Games(group, *team_of(policy, group.spec), deterministic=deterministic)
    found: list[Game] = []
    with closing(group), using_threads(1), policy.seeded(random_seed(Use.VIDEO, seed)), video_of(env, path) as video:
        for count, first in plays:
            how: Any = {"max_steps": max_steps, "advice": RECORDING}
            found += games.play([count], first, draw=lambda: video.add(picture(env, name)), **how)
    matches = [dict(zip(spec.agents, game.outcomes.tolist(), strict=True)) for game in found if game.outcomes is not None]
    return matches or [{"return": episode.episode_return} for game in found for episode in game.episodes]


def make_match(env: str, options: EnvConfig, render_mode: str | None = None) -> ParallelEnv:
    """A multi-agent environment. Raises `ConfigError` for one of one agent, and what `make_parallel` raises."""
    made = make_parallel(env, options, render_mode=render_mode)
    if made is None:
        raise ConfigError(f"{env} is an environment of one agent; `headrace eval` plays it")
    return made


def video_of(env: Any, path: os.PathLike[str] | str) -> VideoWriter:
    """A video at the environment's own pictures per second."""
    return VideoWriter(path, fps=float(getattr(env, "metadata", {}).get("render_fps") or 30))


def picture(env: Any, env_id: str) -> np.ndarray:
    """The environment's newest picture, uint8 [H, W, 3]. Raises as `record`."""
    try:
        return np.asarray(env.render())
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f'drawing {env_id} needs packages that are not installed: pip install "headrace[video]" ({error})'
        ) from error
    except faults() as error:
        raise EnvironmentFault(f"{env_id} cannot be drawn: {cause(error)}") from error


def draw_curve_and_video(
    config: Config, report: Callable[[str], None], mean_returns: Sequence[float], again: bool,
    draw_more: Callable[[], Iterable[str]] = tuple,
) -> None:  # fmt: skip
    """Draw the learning curve and record a video, each if its extra is installed. Existing files are replaced only if `again`.

    `mean_returns`: mean return of each policy's last episodes, NaN if none has ended; if all are NaN, nothing is drawn. The video
    shows the policy with the highest. `draw_more` draws further pictures and returns messages. `report` gets messages for the
    user.
    """
    video = config.run_folder / VIDEO
    if not config.run.video or (video.exists() and not again):
        return
    known = [p for p, mean in enumerate(mean_returns) if not math.isnan(mean)]
    best = max(known, key=lambda p: mean_returns[p], default=0)
    if known:
        with _missing("curve", report):
            folders = [config.policy_folder(p) for p in known]
            title = config.env if len(config.tasks) == 1 else f"mean of {len(config.tasks)} tasks"
            learning_curve(folders, config.run_folder / "curve.png", title=title, goal=config.run.goal)
            for text in draw_more():
                report(text)
            report(f"Learning curve: {config.run_folder / 'curve.png'}")
            if len(config.tasks) > 1:
                for folder in folders:
                    task_curves(folder, folder / "tasks.png", config.tasks)
                    report(f"Learning curves of the tasks: {folder / 'tasks.png'}")
    with _missing("video", report):
        code = needed_code(config)  # the user has named it for the training; in this process it need not be imported yet
        returns = record(config.run_folder, video, max_steps=VIDEO_STEPS, number=best, imports=code)
        report(f"Video: {video} (return {', '.join(f'{r:.1f}' for r in returns)})")


@contextmanager
def _missing(what: str, report: Callable[[str], None]) -> Iterator[None]:
    """Reports an error in it: training is over and saved, so it costs only a picture."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, ConfigError | EnvironmentFault) else f"{type(error).__name__}: "
        report(f"No {what}: {kind}{error}")
