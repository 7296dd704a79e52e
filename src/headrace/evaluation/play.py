"""Evaluation: whole games played with a trained policy, their returns and the confidence interval of the mean."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from headrace.accelerator.threads import using_threads
from headrace.config import ConfigError, EnvConfig
from headrace.config.seeds import Use, environment_seed, random_seed
from headrace.envs.contract import EnvGroup, LaneRow, ObsRow, StepRow
from headrace.envs.group import Completion
from headrace.envs.multi_agent import MultiAgentGroup
from headrace.envs.registry import make_group
from headrace.envs.scores import normalized
from headrace.evaluation.policy import TrainedPolicy, Which, load_policy
from headrace.evaluation.waiting import Answers, Waiting, at_limit, environment_of, with_limit
from headrace.learning.task_log import task_metrics


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
    """Human-normalised (`headrace.envs.scores`): 0 is a random policy, 1 a human. None where those are not known."""

    def __str__(self) -> str:
        low, high = self.ci95
        interval = "" if math.isnan(low) else f" (95 % CI {low:.2f} to {high:.2f}, std {self.std:.2f})"
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
    """Games that differ in an observation, an action or a reward. Where neither the environment nor the policy is random, games
    repeat, and the interval says nothing of other games."""
    seconds: float
    tasks: dict[str, TaskResult] = dataclasses.field(default_factory=dict)
    """By id, where there are several."""
    at_limit: int = 0
    """Episodes as long as `envs.max_episode_steps` allows, which were cut off unless they ended with the same step."""

    @property
    def metrics(self) -> dict[str, float]:
        """By metric name."""
        return {
            "eval/episodic_return": self.mean,
            "eval/episodic_length": sum(self.lengths) / len(self.lengths),
            **task_metrics({task: result.mean for task, result in self.tasks.items()}, len(self.tasks), "eval/"),
        }

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
        games = f"{len(self.returns)} episodes" + (f", {self.distinct} distinct" if self.distinct < len(self.returns) else "")
        games += f", {self.at_limit} at the limit of {max(self.lengths):,} steps" if self.at_limit else ""
        if not self.tasks:
            return f"{self.env}: mean return {self.mean:.2f}{interval} over {games}, step {self.step:,}, {how}"
        lines = [f"{task}: {result}" for task, result in self.tasks.items()]
        metrics, interval = self.metrics, "" if math.isnan(low) else f" (95 % CI {low:.2f} to {high:.2f})"
        mean, capped = metrics.get("eval/tasks/mean_score"), metrics.get("eval/tasks/capped_mean_score")
        score = "" if mean is None else f", human-normalised {mean:.3f}, capped {capped:.3f}"
        lines.append(f"mean of {len(self.tasks)} tasks: {self.mean:.2f}{interval}{score} over {games}, step {self.step:,}, {how}")
        return "\n".join(lines)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


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
) -> EvalResult:
    """Play whole games with a policy or with the policy of a run folder (`number`, where the run trained several).

    The episodes are shared out evenly over `num_envs` environments (at most 16 unless given) beforehand: taking the first
    `episodes` to finish would favour short ones. The same seed gives the same episodes, also with a policy that has played
    before; no seed gives episodes of training, whatever the run's seed was (`headrace.config.seeds`). `max_episode_steps`: as
    `envs.max_episode_steps`, instead of the run's. An episode without an end is waited for, with a `UserWarning` after a minute
    and then after twice as long each time; where an environment does not answer, after 30 seconds. `num_threads`:
    torch's, on the CPU. `use`: each has other games for the same seed.
    In a multi-agent environment the policy acts for all agents, and the episodes are those of all of them. Several tasks have
    equal shares of the episodes, at least one each. `imports`: see `load_policy`.

    Raises `ValueError` if `episodes` or `num_envs` is below 1, `ConfigError` for a negative seed, an impossible
    `max_episode_steps` and a multi-agent environment that only an environment server has, and what `load_policy` raises.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; it must be at least 1")
    if num_envs is not None and num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; it must be at least 1")
    if not isinstance(policy, TrainedPolicy):
        policy = load_policy(policy, which=which, policy=number, imports=imports)
    tasks = policy.spec.tasks
    episodes = max(episodes, len(tasks))
    num_envs = min(episodes, num_envs or 16)
    if tasks:
        num_envs = -(-num_envs // len(tasks)) * len(tasks)
    started = time.perf_counter()
    environments, actions = environment_seed(use, seed), random_seed(use, seed)
    options = with_limit(policy.config, max_episode_steps)
    group = make_group(policy.config.env, options, num_envs, training=False)
    try:
        with using_threads(num_threads), policy.seeded(actions):
            if isinstance(group, MultiAgentGroup):
                from headrace.evaluation.matches import episodes_of

                played = episodes_of(policy, group, episodes, deterministic, environments)
            elif policy.spec.agents:
                raise ConfigError(f"evaluations play their matches here: install the packages of {policy.config.env}")
            else:
                played = _play(policy, group, episodes, deterministic, environments)
    finally:
        group.close()
    return _result(policy, played, deterministic, time.perf_counter() - started, options)


def _result(policy: TrainedPolicy, played: Sequence[Game], deterministic: bool, seconds: float, options: EnvConfig) -> EvalResult:
    tasks, returns = policy.spec.tasks, np.array([game.episode_return for game in played])
    lengths = [game.length for game in played]
    std = float(returns.std(ddof=1)) if len(played) > 1 else math.nan
    of_tasks = [returns[[game.task == k for game in played]] for k in range(len(tasks))]
    return EvalResult(
        env=policy.config.env,
        step=policy.step,
        deterministic=deterministic,
        returns=returns.tolist(),
        lengths=lengths,
        mean=float(np.mean([own.mean() for own in of_tasks or [returns]])),
        std=std,
        ci95=stratified_ci(of_tasks) if tasks else bootstrap_ci(returns),
        distinct=len({game.digest for game in played}),
        seconds=seconds,
        tasks={task: _task_result(task, own) for task, own in zip(tasks, of_tasks, strict=True)},
        at_limit=at_limit(lengths, options),
    )


def _task_result(task: str, returns: np.ndarray) -> TaskResult:
    mean, std = float(returns.mean()), float(returns.std(ddof=1)) if len(returns) > 1 else math.nan
    return TaskResult(len(returns), mean, std, bootstrap_ci(returns), normalized(task, mean))


class Game(NamedTuple):
    """One whole game."""

    episode_return: float
    length: int
    digest: int
    """CRC-32 of its observations, actions and rewards."""
    task: int = 0
    """The number of its task, where there are several."""


def _play(policy: TrainedPolicy, group: EnvGroup, episodes: int, deterministic: bool, seed: int) -> list[Game]:
    """Each environment's share of the episodes, environment by environment."""
    n, spec = group.num_envs, group.spec
    share = [episodes // n + (i < episodes % n) for i in range(n)]
    played: list[list[Game]] = [[] for _ in range(n)]
    digests, steps = [0] * n, np.zeros(n, np.int64)
    current, after, now = ObsRow.zeros(spec, n), ObsRow.zeros(spec, n), StepRow.zeros(n)
    now.task = task = np.zeros(n, np.int32)
    if spec.autoreset == "same-step":
        now.final_obs = ObsRow.zeros(spec, n).obs

    def unfinished() -> dict[int, int]:
        return {i: int(steps[i]) for i in range(n) if len(played[i]) < share[i]}

    step = LaneRow(None, now, after)
    completion = Completion(group)
    core, waiting = policy.initial_core(n), Waiting("episode", episodes)
    with Answers(partial(environment_of, group)) as answers:
        with answers.expected():
            group.reset(seed, [current])
            completion.wait()
        while any(len(done) < wanted for done, wanted in zip(played, share, strict=True)):
            step.actions, core = policy.act_rows(current.obs, core, current.first, deterministic=deterministic)
            step.after = after
            with answers.expected():
                group.send([step])
                completion.wait()
            steps += current.valid
            for i in np.flatnonzero(current.valid):
                for part in (*(rows[i] for rows in current.obs.values()), step.actions[i], now.reward[i]):
                    digests[i] = zlib.crc32(part.tobytes(), digests[i])
            for i in np.flatnonzero(~np.isnan(now.episode_return)):
                if len(played[i]) < share[i]:
                    played[i].append(Game(float(now.episode_return[i]), int(now.episode_length[i]), digests[i], int(task[i])))
                digests[i] = steps[i] = 0
            waiting.look(sum(map(len, played)), unfinished)
            current, after = after, current
    return [episode for done in played for episode in done]


def stratified_ci(
    groups: Sequence[np.ndarray], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the mean of the means of `groups` ([n] each), resampled within each group: percentiles, as in Agarwal
    et al. 2021 (Deep RL at the edge of the statistical precipice), section 4.1; NaN where a group has fewer than two values."""
    if min(map(len, groups)) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = np.mean([rng.choice(values, (resamples, len(values))).mean(1) for values in groups], axis=0)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def bootstrap_ci(values: np.ndarray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval of the mean of `values` [n], bias-corrected and accelerated (BCa, Efron 1987: for skewed values it is
    skewed); NaN for fewer than two values."""
    n, normal = len(values), NormalDist()
    if n < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    rng = np.random.default_rng(seed)
    means = np.concatenate([rng.choice(values, (1000, n)).mean(1) for _ in range(resamples // 1000)])
    below = (means < values.mean()).mean() + (means == values.mean()).mean() / 2
    bias = normal.inv_cdf(min(max(below, 0.5 / len(means)), 1 - 0.5 / len(means)))
    away = values - values.mean()  # those of the means without one value, times n - 1
    acceleration = (away**3).sum() / (6 * (away**2).sum() ** 1.5)

    def quantile(level: float) -> float:
        z = bias + normal.inv_cdf(level)
        return float(np.quantile(means, normal.cdf(bias + z / (1 - acceleration * z))))

    return quantile((1 - confidence) / 2), quantile((1 + confidence) / 2)
