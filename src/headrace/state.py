"""What a run remembers: statistics between two reports, and everything that a checkpoint holds."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from time import perf_counter

import numpy as np
import torch

from headrace.config import Config
from headrace.experience.on_policy import TrajectoryBatches
from headrace.experience.replay.batches import ReplayBatches
from headrace.learning.learner import Learner, Progress
from headrace.runs import checkpoint
from headrace.sampling.placements.serial import SerialSampler

Experience = TrajectoryBatches | ReplayBatches
"""Where batches come from."""
EPISODE_WINDOW = 100
"""Episodes in `charts/episodic_return_100`, which `run.goal` is compared with."""


class TrainingLog:
    """Statistics of the learner between two reports, and the last episodes."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self._sums: list[dict[str, torch.Tensor]] = []
        self._ended: list[tuple[float, int]] = []

    @property
    def mean_return(self) -> float:
        """Mean return of the last `EPISODE_WINDOW` episodes, NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    def add(self, statistics: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> None:
        """One update, or none: its statistics and, in host memory, the episodes that ended in its batch."""
        if statistics:
            self._sums.append(statistics)
        returns, lengths = batch["episode_return"], batch["episode_length"]
        ended = ~returns.isnan()
        for r, n in zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True):
            self.returns.append(r)
            self._ended.append((r, n))

    def metrics(self, learner: Learner) -> dict[str, float]:
        """Everything since the last call, by metric name; starts a new interval."""
        p = learner.progress
        result = {
            "global_step": float(p.global_step),
            "charts/updates": float(p.updates),
            "charts/episodes": float(p.episodes),
            "charts/learning_rate": learner.learning_rate,
            "lag/masked": float(p.stale_steps),
        }
        for key in self._sums[0] if self._sums else ():
            values = torch.stack([s[key] for s in self._sums])
            result[key] = float(values.min() if key == "lag/min" else values.max() if key == "lag/max" else values.mean())
        if self._ended:
            result["charts/episodic_return"] = float(np.mean([r for r, _ in self._ended]))
            result["charts/episodic_length"] = float(np.mean([n for _, n in self._ended]))
        if self.returns:
            result["charts/episodic_return_100"] = self.mean_return
        self._sums, self._ended = [], []
        return result


class TrainingState:
    """Everything a run needs to go on as if it had never stopped, to and from its newest checkpoint."""

    def __init__(self, config: Config, learner: Learner, log: TrainingLog, sampler: SerialSampler | None, experience: Experience):
        self._config, self._learner, self._log, self._sampler, self._experience = config, learner, log, sampler, experience
        self._folder = config.run_folder / "checkpoints"
        self._saved_at, self._saved_step, self._saved_updates = perf_counter(), 0, -1

    def load(self) -> list[str]:
        """Take the newest good checkpoint, if there is one; returns what the user should know."""
        found = checkpoint.load_newest(self._folder)
        if found is None:
            return []
        state, learner = found.unpack(), self._learner
        learner.model.load_state_dict(state["model"])
        checkpoint.load_optimizer(learner.optimizer, state["optimizer"])
        learner.progress = Progress(**state["progress"])
        learner.generator.set_state(state["generator"])
        learner.load_extra_state(state["learner"])
        self._log.returns.extend(state["returns"])
        self._saved_step, self._saved_updates = learner.progress.global_step, learner.progress.updates
        messages = [*found.damaged, f"Going on from {found.path.name}: step {learner.progress.global_step:,}"]
        if self._sampler is not None and state["sampler"] is not None:
            if why := self._sampler.set_state(state["sampler"]):
                messages.append(why)
            checkpoint.set_random_state(state["random"])
        return messages + self._experience.restore(found.path, state.get("experience"))

    @property
    def finite(self) -> bool:
        """Whether the weights are numbers."""
        return all(bool(torch.isfinite(p).all()) for p in self._learner.model.parameters())

    def due(self, now: float) -> bool:
        """Whether a checkpoint should be written: the interval is over, or a milestone or an evaluation was passed."""
        run = self._config.run
        return (
            now - self._saved_at >= run.checkpoint_interval
            or self._passed(run.milestone_steps)
            or self._passed(run.eval_interval_steps)
        )

    def _passed(self, interval: int | None) -> bool:
        """A multiple of `interval` steps lies between the last checkpoint and now."""
        return interval is not None and self._learner.progress.global_step // interval > self._saved_step // interval

    def save(self, must: bool, at_rest: bool = True) -> str:
        """Write a checkpoint; returns a line for the log. A failure (a full disk) is an error only if it `must` be written.

        `at_rest`: everything stands still between two updates, so that a serial sampler's half-filled trajectories can be saved.
        """
        learner, run = self._learner, self._config.run
        learner.settle()  # nothing is saved that is not finite
        step = learner.progress.global_step
        if (self._saved_step, self._saved_updates) == (step, learner.progress.updates):
            return f"The checkpoint of step {step:,} is the last"
        tensors, state = checkpoint.pack(
            {
                "model": learner.model.state_dict(),
                "optimizer": learner.optimizer.state_dict(),
                "progress": dataclasses.asdict(learner.progress),
                "generator": learner.generator.get_state(),
                "learner": learner.extra_state(),
                "returns": list(self._log.returns),
                "sampler": self._sampler.get_state() if self._sampler is not None and at_rest else None,
                "random": None if self._sampler is None else checkpoint.random_state(),
                "experience": self._experience.get_state(),
            }
        )
        score = self._log.mean_return if len(self._log.returns) == EPISODE_WINDOW else None
        milestone = self._passed(run.milestone_steps)
        self._saved_at = perf_counter()
        try:
            path = checkpoint.save(
                self._folder, step, tensors, state, keep=run.keep_checkpoints, score=score, milestone=milestone,
                attach=self._experience.save,
            )
        except checkpoint.CheckpointError as error:
            if must:
                raise
            return f"{error} Training goes on; the next try is in {run.checkpoint_interval:.0f} s."
        self._saved_step, self._saved_updates = step, learner.progress.updates
        return f"Checkpoint {path.name}"
