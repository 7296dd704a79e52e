"""Videos of a trained policy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from headrace.accelerator.threads import using_threads
from headrace.config import ConfigError
from headrace.config.seeds import Use, environment_seed, random_seed
from headrace.envs.contract import EnvironmentFault
from headrace.evaluation.policy import TrainedPolicy, Which, load_policy
from headrace.evaluation.waiting import Answers, Waiting

if TYPE_CHECKING:
    from headrace.runs.video import VideoWriter

RECORDING = "A recording without an end needs a limit: --max-steps of headrace watch, max_steps in Python"
"""What to do about an episode that does not end."""


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
    """Record whole games as a video (mp4); returns the raw return of each; of matches the outcome of the first agent.
    `max_steps` ends the recording early. `number`: of the policy, where the run trained several. The same seed gives the
    same games; they are neither of training nor of `evaluate`. `imports`: see `load_policy`. `task`: see
    `TrainedPolicy.make_env`.

    Raises `ConfigError` where the environment has no pictures or a package for them is missing, `EnvironmentFault` where drawing
    one fails, and what `load_policy` raises.
    """
    if not isinstance(policy, TrainedPolicy):
        policy = load_policy(policy, which=which, policy=number, imports=imports)
    if policy.spec.agents:
        from headrace.evaluation.matches import watch

        return [next(iter(one.values())) for one in watch(policy, path, episodes, deterministic, seed, max_steps)]
    first = environment_seed(Use.VIDEO, seed)
    env = policy.make_env(render_mode="rgb_array", task=task)
    returns: list[float] = []
    steps, begun, waiting = 0, 0, Waiting("episode", episodes, RECORDING)

    def step() -> dict[int, int]:
        return {0: steps - begun}

    try:
        actions = policy.seeded(random_seed(Use.VIDEO, seed))
        name = task or policy.config.tasks[0]
        with using_threads(1), actions, Answers(lambda: name) as answers, video_of(env, path) as video:
            for episode in range(episodes):
                if max_steps is not None and steps >= max_steps:
                    break
                with answers.expected():
                    observation, _ = env.reset(seed=first + episode)
                policy.reset()
                returns.append(0.0)
                over, begun = False, steps
                while not over and (max_steps is None or steps < max_steps):
                    with answers.expected():
                        video.add(picture(env, policy.config.env))
                    action = policy.act(observation, deterministic=deterministic)
                    with answers.expected():
                        observation, reward, terminated, truncated, _ = env.step(action)
                    returns[-1] += float(reward)
                    over = terminated or truncated
                    steps += 1
                    waiting.look(episode, step)
                video.add(picture(env, policy.config.env))
    finally:
        env.close()
    return returns


def record_and_describe(
    policy: TrainedPolicy, path: os.PathLike[str] | str, episodes: int, *, deterministic: bool, max_steps: int | None, seed: int,
    task: str | None,
) -> str:  # fmt: skip
    """`record`, and a text that says what is in the video: the returns, or of each match the outcomes of all its agents."""
    if policy.spec.agents:
        from headrace.evaluation.matches import watch

        found = watch(policy, path, episodes, deterministic, seed, max_steps)
        matches = [", ".join(f"{agent} {outcome:.2f}" for agent, outcome in one.items()) for one in found]
        return f"step {policy.step:,}, outcomes {'; '.join(matches)}"
    how: Any = {"deterministic": deterministic, "max_steps": max_steps, "seed": seed, "task": task}
    returns = record(policy, path, episodes=episodes, **how)
    return f"step {policy.step:,}, returns {', '.join(f'{value:.2f}' for value in returns)}"


def video_of(env: Any, path: os.PathLike[str] | str) -> VideoWriter:
    """A video at the environment's own pictures per second."""
    from headrace.runs.video import VideoWriter

    return VideoWriter(path, fps=float(getattr(env, "metadata", {}).get("render_fps") or 30))


def picture(env: Any, env_id: str) -> np.ndarray:
    """The environment's newest picture, uint8 [H, W, 3]. Raises as `record`."""
    try:
        return np.asarray(env.render())
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f'drawing {env_id} needs packages that are not installed: pip install "headrace[video]" ({error})'
        ) from error
    except Exception as error:
        raise EnvironmentFault(f"{env_id} cannot be drawn: {type(error).__name__}: {error}") from error
