"""Evaluation: whole games played with a trained policy, their returns and the confidence interval of the mean."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.accelerator.threads import using_threads
from headrace.accelerator.torch_defaults import torch_defaults
from headrace.config import ConfigError, EnvConfig
from headrace.config.seeds import Use, environment_seed, random_seed
from headrace.envs.core.contract import EnvGroup
from headrace.envs.core.errors import EnvironmentFault, TooFewFree
from headrace.envs.core.reference_scores import normalized
from headrace.envs.groups.multi_agent import MultiAgentGroup
from headrace.envs.make import make_group
from headrace.evaluation.games import Episode, Games, check_count, evenly, team_of
from headrace.evaluation.hang_warnings import at_limit, with_limit
from headrace.evaluation.intervals import bootstrap_ci
from headrace.evaluation.policy import TrainedPolicy, Which, load_policy
from headrace.learning.training_log import known_mean, task_metrics


@dataclass(frozen=True)
class TaskResult:
    """One task's games, where the policy was trained on several."""

    episodes: int
    mean: float
    std: float
    """Standard deviation of the episodes (n - 1); NaN for one episode."""
    ci95: tuple[float, float]
    """As `EvalResult.ci95`."""
    score: float | None
    """Human-normalised: 0 is a random policy, 1 a human (`envs/core/reference_scores.py`). None where they are not known."""

    def __str__(self) -> str:
        interval = _interval(self.ci95, self.std)
        score = "" if self.score is None else f", human-normalised {self.score:.3f}"
        return f"mean return {self.mean:.2f}{interval} over {self.episodes} episodes{score}"


@dataclass(frozen=True)
class EvalResult:
    """Returns of whole games: raw rewards, neither clipped nor scaled. Of several tasks, `mean` is the mean over the tasks of
    their mean returns."""

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
    """95 % confidence interval of the mean (BCa bootstrap, 10,000 resamples); NaN for one episode. Of several tasks: percentiles
    of a bootstrap within each task, which says nothing of other tasks."""
    distinct: int
    """Number of different games: they differ in an observation, an action or a reward. Where neither the environment nor the
    policy is random, games repeat, and the interval says nothing about other games."""
    seconds: float
    tasks: dict[str, TaskResult] = dataclasses.field(default_factory=dict)
    """By id, where there are several."""
    infos: dict[str, float] = dataclasses.field(default_factory=dict)
    """Means over the episodes of the numbers in their last infos, by key (`envs.info_metrics`)."""
    at_limit: int = 0
    """Episodes of `envs.max_episode_steps` steps; cut off there, unless they ended with that very step."""

    @property
    def metrics(self) -> dict[str, float]:
        of_all = {"eval/episodic_return": self.mean, "eval/episodic_length": sum(self.lengths) / len(self.lengths)}
        of_all |= {f"eval/episode/{key}": mean for key, mean in self.infos.items()}
        means = {task: result.mean for task, result in self.tasks.items()}
        return of_all | task_metrics(means, len(means), "eval/") if means else of_all

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; NaN becomes None."""
        return {key: _without_nan(value) for key, value in dataclasses.asdict(self).items()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        how = "deterministic" if self.deterministic else "sampled actions"
        games = f"{len(self.returns)} episodes" + (f", {self.distinct} distinct" if self.distinct < len(self.returns) else "")
        games += f", {self.at_limit} at the limit of {max(self.lengths):,} steps" if self.at_limit else ""
        how += "".join(f", {key} {mean:.4g}" for key, mean in self.infos.items())
        if not self.tasks:
            mean = f"{self.mean:.2f}{_interval(self.ci95, self.std)}"
            return f"{self.env}: mean return {mean} over {games}, step {self.step:,}, {how}"
        lines = [f"{task}: {result}" for task, result in self.tasks.items()]
        average, capped = (self.metrics.get(f"eval/tasks/{name}") for name in ("mean_score", "capped_mean_score"))
        score = "" if average is None else f", human-normalised {average:.3f}, capped {capped:.3f}"
        of_all = f"mean of {len(self.tasks)} tasks: {self.mean:.2f}{_interval(self.ci95)}{score}"
        lines.append(f"{of_all} over {games}, step {self.step:,}, {how}")
        return "\n".join(lines)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@torch_defaults()
def evaluate(
    policy: TrainedPolicy | os.PathLike[str] | str,
    episodes: int = 10,
    *,
    num_envs: int | None = None,
    deterministic: bool = False,
    seed: int = 0,
    which: Which = "newest",
    num_threads: int = 1,
    number: int = 0,
    imports: Iterable[os.PathLike[str] | str] = (),
    use: Use = Use.EVALUATION,
    max_episode_steps: int | None = None,
    env: str | None = None,
) -> EvalResult:
    """Play whole games with a policy, which is given as an object, a run folder or an ONNX file. `number`: of the policy, where
    the run trained several. `env`: see `load_policy`.

    The episodes are shared out evenly over `num_envs` environments (at most 16 unless given) beforehand: taking the first
    `episodes` to finish would favour short ones. The same seed gives the same episodes, also with a policy that has played
    before; no episode of training has the seed of an evaluation (`headrace.config.seeds`). `max_episode_steps` replaces the run's
    `envs.max_episode_steps`. A `UserWarning` is given if no episode ends for a minute, or an environment does not answer for 30
    seconds, and again each time the wait has doubled. `num_threads`: of torch, on the CPU. `use`: purpose of the games; for
    another purpose the same seed gives other games. In a multi-agent environment the policy acts for all agents, and the episodes
    of all agents count; they are fewer than `episodes` where agents have none in a match. Several tasks have equal shares of the
    episodes, at least one each. `imports`: see `load_policy`.

    An environment server must have the settings of the run, so also `max_episode_steps`; where it has fewer free environments,
    they are used, and a `UserWarning` is given.

    Raises `ValueError` if `episodes` or `num_envs` is no whole number from 1 on, `ConfigError` for a negative seed, an impossible
    `max_episode_steps`, a multi-agent environment that can only be made at an environment server and a server that refuses, and
    what `load_policy` raises.
    """
    check_count("episodes", episodes)
    if num_envs is not None:
        check_count("num_envs", num_envs)
    if not isinstance(policy, TrainedPolicy):
        policy = load_policy(policy, which=which, policy=number, imports=imports, env=env)
    tasks = policy.spec.tasks
    episodes = max(episodes, len(tasks))
    num_envs = min(episodes, num_envs or 16)
    if tasks:
        num_envs = -(-num_envs // len(tasks)) * len(tasks)
    started = time.perf_counter()
    options = with_limit(policy.config, max_episode_steps)
    with closing(_group(policy.config.env, options, num_envs)) as group:
        if policy.spec.agents and not isinstance(group, MultiAgentGroup):
            raise ConfigError(f"evaluations play their matches here: install the packages of {policy.config.env}")
        with using_threads(num_threads), policy.seeded(random_seed(use, seed)):
            played = _episodes(policy, group, episodes, deterministic, environment_seed(use, seed))
    return _result(policy, played, deterministic, time.perf_counter() - started, options)


def _group(env: str, options: EnvConfig, num_envs: int) -> EnvGroup:
    """Environments for whole games; at an environment server no more than it has free."""
    group = make_group(env, options, num_envs, training=False)
    try:
        _ = group.spec  # waits for the server
    except BaseException as error:
        group.close()
        if not (isinstance(error, TooFewFree) and 0 < error.free < num_envs):
            raise
        warnings.warn(f"{error}. The games are played in {error.free}", stacklevel=3)
        return _group(env, options, error.free)
    return group


def _episodes(policy: TrainedPolicy, group: EnvGroup, count: int, deterministic: bool, seed: int) -> list[Episode]:
    """Play `count` episodes of the agents that the policy acts for. In a multi-agent environment that is one for each of these
    agents in every match, but an agent may have several or none. Raises as `evaluate`."""
    n = group.num_envs
    players, player_of = team_of(policy, group.spec)
    games = Games(group, players, player_of, deterministic=deterministic)
    if not group.spec.agents:
        played = sorted(games.play(evenly(count, n), seed), key=lambda game: game.env)
        return [episode for game in played for episode in game.episodes]
    own = sum(players[player] is policy for player in player_of) or 1
    shares, before, found = evenly(-(-count // own), n), [0] * n, []
    for game in games.play(shares, seed):
        episodes = [episode for episode in game.episodes if players[episode.player] is policy]
        found += [(before[game.env], game.env, episode.agent, episode) for episode in episodes]
        before[game.env] += 1
    if not found:
        raise EnvironmentFault(
            f"{group.spec.name}: no agent that policy {policy.number} acts for has ended an episode in {sum(shares)} matches, so "
            "there is nothing to evaluate"
        )
    # what is too much is cut off by the matches' numbers: those that ended first would be the short ones
    return [episode for *_, episode in sorted(found, key=lambda one: one[:3])[:count]]


def _result(
    policy: TrainedPolicy, played: Sequence[Episode], deterministic: bool, seconds: float, options: EnvConfig
) -> EvalResult:
    tasks, returns = policy.spec.tasks, np.array([episode.episode_return for episode in played])
    lengths = [episode.length for episode in played]
    of_tasks = [returns[[episode.task == k for episode in played]] for k in range(len(tasks))]
    return EvalResult(
        env=policy.config.env,
        step=policy.step,
        deterministic=deterministic,
        returns=returns.tolist(),
        lengths=lengths,
        mean=float(np.mean([own.mean() for own in of_tasks or [returns]])),
        std=_std(returns),
        ci95=bootstrap_ci(*(of_tasks or [returns])),
        distinct=len({episode.digest for episode in played}),
        seconds=seconds,
        tasks={
            task: TaskResult(len(own), float(own.mean()), _std(own), bootstrap_ci(own), normalized(task, float(own.mean())))
            for task, own in zip(tasks, of_tasks, strict=True)
        },
        infos=dict(zip(options.info_metrics, map(known_mean, zip(*(one.infos for one in played), strict=True)), strict=True)),
        at_limit=at_limit(lengths, options),
    )


def _std(returns: np.ndarray) -> float:
    return float(returns.std(ddof=1)) if len(returns) > 1 else math.nan


def _interval(ci95: tuple[float, float], std: float | None = None) -> str:
    low, high = ci95
    deviation = "" if std is None else f", std {std:.2f}"
    return "" if math.isnan(low) else f" (95 % CI {low:.2f} to {high:.2f}{deviation})"
