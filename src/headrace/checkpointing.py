"""Everything that a checkpoint holds, and when one is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from headrace.config.errors import UserError
from headrace.config.reading import shortened
from headrace.learning.learner import Learner, Progress
from headrace.learning.training_log import EPISODE_WINDOW, TrainingLog
from headrace.runs import checkpoint
from headrace.runs.checkpoint import CheckpointError
from headrace.sampling.placements.base import Placement

if TYPE_CHECKING:
    from headrace.accelerator.ranks import Ranks
    from headrace.experience.batch import Experience


@contextmanager
def _unlike(path: Path, advice: str = "") -> Iterator[None]:
    """Whatever is raised by taking a state that does not fit becomes a `CheckpointError` that names the checkpoint."""
    try:
        yield
    except (AssertionError, AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise CheckpointError(f"{path} does not fit: {shortened(f'{type(error).__name__}: {error}')}.{advice}") from error


class Checkpointing:
    """Everything one policy's learning needs to go on as if it had never stopped, to and from its newest checkpoint."""

    def __init__(
        self, placement: Placement, policy: int, learner: Learner, log: TrainingLog, experience: Experience, ranks: Ranks
    ):
        self._ranks = ranks
        self._config, self._placement = placement.configs[policy], placement
        self._learner, self._log, self._experience = learner, log, experience
        self._folder = self._config.policy_folder(policy) / "checkpoints"
        self._saved_at, self._saved_step, self._saved_updates = perf_counter(), 0, -1

    def load(self) -> list[str]:
        """Take the newest good checkpoint, if there is one; returns what the user should know.

        Raises `CheckpointError` where there are some but none can be used.
        """
        found = checkpoint.load_newest(self._folder, self._take) if self._ranks.index == 0 else None
        if self._ranks.size > 1:
            data = self._ranks.from_first(None if found is None else checkpoint.to_bytes(found))
            if self._ranks.index > 0 and data is not None:
                found = checkpoint.from_bytes(data)
                self._take(found)
        if found is None:
            return []
        state, progress = found.unpack(), self._learner.progress
        self._saved_step, self._saved_updates = progress.global_step, progress.updates
        messages = [*found.damaged, f"Going on from {found.path.name}: step {progress.global_step:,}"]
        with _unlike(found.path, " Delete it to go on from the one before."):
            if self._exact and state["sampler"] is not None:
                if problem := self._placement.set_state(state["sampler"]):
                    messages.append(problem)
                checkpoint.set_random_state(state["random"])
            messages += self._experience.restore(found.path, state.get("experience"))
        return messages

    def _take(self, found: checkpoint.Checkpoint) -> None:
        """Take what the learner needs. Raises `CheckpointError` where it does not fit: what was taken until then is replaced by
        what an older checkpoint holds."""
        state, learner = found.unpack(), self._learner
        with _unlike(found.path):
            progress = Progress(**state["progress"])
            if not all(type(count) is int and count >= 0 for count in dataclasses.asdict(progress).values()):
                raise ValueError(f"its counters are {state['progress']}")
            returns = [float(value) for value in state["returns"]]
            checkpoint.load_weights(learner.model, found)
            checkpoint.load_optimizer(learner.optimizer, state["optimizer"])
            learner.generator.set_state(state["generator"])
            learner.algorithm.load_state_dict(learner.model, state["learner"])
            learner.progress = progress
            self._log.returns.clear()
            self._log.returns.extend(returns)

    @property
    def _exact(self) -> bool:
        """Whether the run goes on exactly where it was. The environments of several ranks begin new episodes."""
        return self._placement.deterministic and self._ranks.size == 1

    @property
    def finite(self) -> bool:
        """Whether the weights are numbers."""
        return all(bool(torch.isfinite(p).all()) for p in self._learner.model.parameters())

    def due(self, now: float) -> bool:
        """Whether a checkpoint should be written: the interval is over, or a milestone or an evaluation was passed."""
        run = self._config.run
        return self._ranks.index == 0 and (
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
        if self._ranks.index:
            return "Rank 0 writes the checkpoints"
        sampler = self._placement.get_state() if at_rest and self._exact else None
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
                "learner": learner.algorithm.state_dict(learner.model),
                "returns": list(self._log.returns),
                "sampler": sampler,
                "random": None if sampler is None else checkpoint.random_state(),
                "experience": self._experience.get_state(),
            }
        )
        score = self._log.mean_return if len(self._log.returns) == EPISODE_WINDOW else None
        milestone = self._passed(run.milestone_steps)
        self._saved_at = perf_counter()
        try:
            path = checkpoint.save(
                self._folder,
                step,
                tensors,
                state,
                keep=run.keep_checkpoints,
                score=score,
                milestone=milestone,
                attach=self._experience.save,
            )
        except CheckpointError as error:
            if must:
                raise
            return f"{error} Training goes on; the next try is in {run.checkpoint_interval:.0f} s."
        self._saved_step, self._saved_updates = step, learner.progress.updates
        return f"Checkpoint {path.name}"
