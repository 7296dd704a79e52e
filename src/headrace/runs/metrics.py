"""Metrics of a run: one dictionary of scalars per interval, to JSON lines, TensorBoard and, if asked, Weights & Biases.

Every key is described in `KEYS`, from which `docs/metrics.md` is made. The x axis is always `global_step`: steps (decisions of
agents) over all environments.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import Config, flattened, to_dict
from headrace.config.errors import ConfigError, package
from headrace.config.population import KINDS
from headrace.config.ranges import MANY
from headrace.runs import lag_bins
from headrace.runs.files import AppendFile, read_json_lines
from headrace.runs.tensorboard_events import EventFile
from headrace.shm.phases import PARTS, PHASES

OF_NODE = {
    "SPS": "steps per second that arrived from it",
    "MB_per_second": "megabytes of trajectories and samples per second that arrived from it",
    "bytes_per_step": "bytes of trajectories and samples that crossed the network for each step",
    "receiver_cores": "processor time of the learner's process that receives from it, as a share of a core",
    "lag": "mean policy lag of its trajectories when they arrived (updates)",
    "faults": "processes that it has replaced since it joined",
}
"""Metrics of a sampling node, `cluster/node-K/<name>`."""

OF_SHARD = {
    "size": "transitions in it",
    "sum": "sum of priority ^ alpha in it",
    "share": "share of the interval's samples that were drawn from it",
    "staleness": "mean relative difference between its sum as the learner knew it and its sum at the draw",
}
"""Metrics of a shard of the replay, `replay/shard-K/<name>`."""

KEYS: dict[str, str] = {
    "global_step": "Steps of experience that were learned from, over all environments and over all resumes of the run.",
    "charts/episodic_return": "Mean return of the episodes that ended in this interval: raw rewards of whole games. Ape-X DQN "
    "and R2D2: of the quarter of the environments that explores least, as in all other keys of episodes.",
    "charts/episodic_return_100": "Mean return of the last 100 episodes.",
    "charts/episodic_length": "Mean length of the episodes that ended in this interval (steps).",
    "episode/KEY": "Mean over these episodes of `KEY` in the info of their last step, for every key in `envs.info_metrics`.",
    "eval/episode/KEY": "The same over the episodes of an evaluation (`run.eval_interval_steps`).",
    "charts/episodes": "Number of episodes that have ended so far.",
    "charts/learning_rate": "Learning rate of the optimizer.",
    "charts/updates": "Number of updates so far (batches learned from).",
    "charts/SPS": "Steps per second since the first line of this learner process.",
    "charts/SPS_interval": "Steps per second since the last line with fewer steps; missing where no step was made.",
    "charts/FPS": "Simulator frames per second: `charts/SPS_interval` x frameskip.",
    "losses/loss": "Total loss: the weighted sum of the policy, value and exploration terms.",
    "losses/policy_loss": "Policy gradient loss.",
    "losses/value_loss": "Value loss, before its weight.",
    "losses/entropy": "Mean entropy of the policy (nats; sum over the parts of an action); where it is not a part of the loss, "
    "an estimate from the actions taken.",
    "losses/exploration_loss": "Exploration term of the loss (negative entropy, or symmetric KL), before its weight.",
    "losses/approx_kl": "Estimate of the KL divergence from the behaviour policy: mean of ratio - 1 - log(ratio).",
    "losses/clipfrac": "Fraction of samples whose probability ratio was clipped.",
    "losses/explained_variance": "1 - Var(target - value) / Var(target). 1: a perfect critic; 0: one that predicts the mean.",
    "losses/value_mean": "Mean value prediction, in units of return.",
    "losses/grad_norm": "Norm of the gradient before it is clipped.",
    "losses/grad_cosine": "Cosine of the gradients of two consecutive optimizer steps, once per interval.",
    "losses/ratio_mean": "Mean probability ratio of the current to the behaviour policy; 1 where they are equal.",
    "losses/ratio_max": "Largest probability ratio of the batch.",
    "losses/rho_clipped": "V-trace: fraction of samples whose probability ratio is above `learning.vtrace_rho`.",
    "losses/c_clipped": "V-trace: fraction of samples whose probability ratio is above `learning.vtrace_c`.",
    "losses/td_error": "Q-learning, Ape-X DPG: mean absolute temporal-difference error of a batch; with a replay, mean of the "
    "new priorities (Rainbow: divergences).",
    "losses/epsilon": "PQN, DQN: share of random actions.",
    "losses/q_mean": "Q-learning: mean value of the actions that were taken.",
    "losses/q_max": "Q-learning: largest value of any action in a batch.",
    "losses/target_mean": "Q-learning, Ape-X DPG: mean target.",
    "losses/critic_loss": "Ape-X DPG: loss of the action values.",
    "losses/action_gradient": "Ape-X DPG: mean absolute gradient of the value with respect to the action.",
    "lag/min": "Smallest policy lag of a sample: updates between the weights that chose the action and those that learn from it.",
    "lag/mean": "Mean policy lag.",
    "lag/max": "Largest policy lag.",
    "lag/p50": "Median policy lag. This and the following keys of lag are of one batch of the interval; trajectories only.",
    "lag/p95": "95th percentile of the policy lag.",
    "lag/when_chosen": "Part of the mean policy lag that was there when the action was chosen: newer weights had been published "
    "on the actor's machine, which the actor had not taken yet.",
    "lag/since_chosen": "The rest of the mean policy lag: updates that were made while the trajectory was filled and waited.",
    **{f"lag/share/{name}": f"Share of the samples with a policy lag of {name}." for name in lag_bins.NAMES},
    "lag/masked": "Samples excluded so far because their policy lag was above `learning.max_policy_lag`.",
    "off_policy/effective_sample_size": "(sum w)^2 / (N sum w^2) of the probability ratios w of the present policy to the "
    "behaviour policy; 1 where they are equal. This and the following keys are of the first minibatch of one update per line.",
    "off_policy/total_variation": "Total variation distance from the behaviour policy: mean of |w - 1| / 2.",
    "off_policy/kl": "KL divergence from the behaviour policy: mean of w - 1 - log w.",
    "off_policy/rho_clipped": "Fraction of samples with w above `learning.vtrace_rho`, whether V-trace is used or not.",
    "off_policy/c_clipped": "Fraction of samples with w above `learning.vtrace_c`.",
    "off_policy/ppo_clipped": "Fraction of samples with w outside the range of `learning.ppo_clip`.",
    "replay/size": "Transitions in the replay.",
    "replay/inserts_per_second": "Transitions added to the replay, per second.",
    "replay/samples_per_second": "Transitions sampled from the replay, per second.",
    "replay/ratio": "Transitions sampled for each one added.",
    "replay/late_priorities": "Priority updates so far that came too late: their transitions had left the replay.",
    "replay/overwritten": "Transitions so far that were overwritten before they were evicted.",
    "replay/evicted": "Transitions evicted so far.",
    "replay/bytes_per_transition": "Memory of one transition (bytes).",
    "replay/shards": "Replay in shards: number of shards whose node is connected.",
    **{f"replay/shard-K/{name}": f"Replay in shards, shard of node K: {text}." for name, text in OF_SHARD.items()},
    **{
        f"time/{part}/{name}": f"{PARTS[part].capitalize()}: share of time {phase.description}."
        for part, phases in PHASES.items()
        for name, phase in phases.items()
    },
    "population/objective": "Population-based training: the number by which policies are compared (`pbt.objective`).",
    "population/replacements": "Population-based training: how often the policy has become a copy of another.",
    "population/mutations": "Population-based training: how often a mutation has changed hyperparameters of the policy.",
    **{f"population/{name}": f"Population-based training: the policy's `{name}`." for name in KINDS},
    "sampling/faults": "Processes replaced since the run was started or resumed because they died, hung or raised an error.",
    "matches/elo": "Multi-agent environments: Elo rating of the policy.",
    "matches/games": "Multi-agent environments: games so far of the policy against somebody else, past versions of it included.",
    "matches/win_rate": "Multi-agent environments: share of these games that it won; a draw is half a win.",
    "matches/win_rate/NAME": "Multi-agent environments: the same against one member, `policy-1` or one of `matches.opponents`.",
    "matches/past_versions": "Multi-agent environments: past versions of the policy that may be matched.",
    "cluster/nodes": "Cluster: number of sampling nodes that have joined and are connected.",
    **{f"cluster/node-K/{name}": f"Cluster, sampling node K in this interval: {text}." for name, text in OF_NODE.items()},
    "system/cpu": "Fraction of the time of all cores that is in use, by any program.",
    "eval/episodic_return": "Mean return of one evaluation (`run.eval_episodes` whole games).",
    "eval/episodic_length": "Mean length of the episodes of one evaluation (steps).",
}
"""Every key the engine logs, with its meaning and unit; a user's algorithm adds those that its `loss` returns."""

CURVE = "curve.jsonl"  # in the run folder: the learning curve, with more points than there are intervals
CURVE_KEYS = ("mean", "low", "high")
"""Of the last 100 episodes: the mean return, and the returns that a tenth of them are below and above."""


class MetricsWriter:
    """Writes the metrics of a run. If the run is resumed, call `rewind` first.

    Raises `ConfigError` naming the extra if `config.run.track` is set without wandb, and where that cannot be used, `OSError` if
    the folder cannot be written or metrics.jsonl cannot be read.
    """

    def __init__(self, folder: os.PathLike[str] | str, config: Config) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.path = self._folder / "metrics.jsonl"
        new = not os.path.lexists(self.path)
        self._jsonl, self._curve = AppendFile(self.path), AppendFile(self._folder / CURVE)
        self._events = EventFile(self._folder / "tensorboard")
        if new:
            settings = [f"|{name}|{value}|" for name, value in flattened(to_dict(config)).items()]
            self._events.add_text("hyperparameters", "\n".join(["|setting|value|", "|-|-|", *settings]))
        self._wandb = _start_wandb(self._folder, config) if config.run.track else None

    def rewind(self, step: int) -> str | None:
        """Remove what was written after global step `step`, from which the run is resumed.

        A resumed run repeats the steps between its checkpoint and the moment it was stopped. The lines after `step` are removed
        from `metrics.jsonl`, and an event makes TensorBoard hide its points after `step`, so no step appears twice and none is
        missing. Weights & Biases cannot remove points: there both passes stay, on the same x axis.

        Returns a message for the user as `AppendFile.append` does. Raises `OSError` where a file cannot be read or replaced.
        """

        def earlier(line: Any) -> bool:
            return is_metrics(line) and line["global_step"] <= step

        problems = [self._jsonl.keep_lines(earlier), self._curve.keep_lines(earlier), self._events.hide_from(step + 1)]
        return next(filter(None, problems), None)

    def write(self, metrics: dict[str, float]) -> str | None:
        """Log one interval. `metrics` holds `global_step`, and `time` if that is not now; values that are NaN (no episode has
        ended yet) are left out. Returns a message for the user as `AppendFile.append` does."""
        known = {key: float(value) for key, value in metrics.items() if not math.isnan(value)}
        step = int(known.pop("global_step"))
        when = known.pop("time", time.time())
        line = json.dumps({"global_step": step, "time": round(when, 3), **known})
        problems = [self._jsonl.append(line.encode() + b"\n"), self._events.add_scalars(known, step)]
        if self._wandb is not None:
            problems.append(self._tracked(partial(self._wandb.log, {"global_step": step, **known})))
        return next(filter(None, problems), None)

    def _tracked(self, call: Callable[[], object]) -> str | None:
        """Call a function of Weights & Biases. Where it fails, as when its process was killed, the run goes on without. Returns
        a message for the user."""
        try:
            call()
        except Exception as error:
            self._wandb = None
            return f"Weights & Biases fails ({type(error).__name__}: {error}): nothing more is logged there"
        return None

    def write_curve(self, points: Sequence[tuple[int, float, float, float]]) -> str | None:
        """Add points to the learning curve: global step, mean, low and high return. Returns a message as `write` does."""
        lines = [json.dumps(dict(zip(("global_step", *CURVE_KEYS), point, strict=True))) + "\n" for point in points]
        return self._curve.append("".join(lines).encode())

    def curve(self) -> list[float]:
        """The mean returns of the learning curve so far. Raises `OSError` if they cannot be read."""
        return [line["mean"] for line in self._curve.lines() if is_metrics(line) and "mean" in line]

    def close(self) -> None:
        """Flush and close everything. Raises `OSError` if the last lines cannot be written."""
        with ExitStack() as closing:
            closing.callback(self._finish_tracking)
            for file in (self._jsonl, self._curve, self._events):
                closing.callback(file.close)

    def _finish_tracking(self) -> None:
        if self._wandb is not None and (problem := self._tracked(self._wandb.finish)):
            warnings.warn(problem, stacklevel=2)


def read_jsonl(path: os.PathLike[str] | str) -> list[dict[str, float]]:
    """The lines of a metrics.jsonl; lines that a crash cut short or a power failure garbled are left out. Raises `OSError`."""
    return [line for line in read_json_lines(Path(path)) if is_metrics(line)]


def of_training(lines: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The lines without those of evaluations, which are written late: they have the step of a checkpoint, and the time at which
    its games were over, perhaps after the end of training."""
    return [line for line in lines if not any(key.startswith("eval/") for key in line)]


def is_metrics(line: Any) -> bool:
    """Whether a JSON value is what a line of metrics.jsonl holds."""
    numbers = isinstance(line, dict) and all(type(value) in (int, float) for value in line.values())
    return numbers and abs(line.get("global_step", math.inf)) < MANY


def _start_wandb(folder: Path, config: Config) -> Any:
    wandb = package("wandb", "wandb", "run.track needs a package that is not installed")
    marker = folder / "wandb_id.txt"
    if not marker.exists():
        marker.write_text(uuid.uuid4().hex[:12])
    several = config.population.size > 1
    try:
        run = wandb.init(
            project=config.run.wandb_project, id=marker.read_text(), resume="allow", dir=str(folder), config=to_dict(config),
            name=f"{folder.parent.name}/{folder.name}" if several else folder.name,
            reinit="create_new" if several else None,  # else every policy's metrics would go to the first one's run
        )  # fmt: skip
    except wandb.Error as error:
        how = "with WANDB_MODE=offline everything stays in the run folder"
        raise ConfigError(f"Weights & Biases cannot be used (run.track): {str(error).strip()} Or leave it out; {how}") from error
    run.define_metric("*", step_metric="global_step")
    return run
