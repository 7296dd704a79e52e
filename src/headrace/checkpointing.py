"""Everything that a checkpoint holds, and when one is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from headrace.config.errors import UserError
from headrace.config.file_reading import shortened
from headrace.learning.learner import Learner, Progress
from headrace.learning.training_log import TrainingLog
from headrace.runs import checkpoint, state_tree, training_state
from headrace.runs.checkpoint import CheckpointError
from headrace.runs.messages import Message
from headrace.sampling.placements.base import Placement

if TYPE_CHECKING:
    from headrace.accelerator.ranks import Ranks
    from headrace.experience.batch import Experience
    from headrace.population.past_versions import PastVersions
    from headrace.population.pbt_policy import PbtPolicy


PARTS = {
    "model", "optimizer", "progress", "generator", "learner", "returns", "task_returns", "sampler", "random", "experience",
    "member", "moment", "ended", "past",
}  # fmt: skip
"""What every checkpoint has, by name; None where a run has no such part."""


@contextmanager
def _naming(path: Path, advice: str = "") -> Iterator[None]:
    """Turn errors from loading a state that does not fit into a `CheckpointError` that names the checkpoint."""
    try:
        yield
    except (AssertionError, AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise CheckpointError(f"{path} does not fit: {shortened(f'{type(error).__name__}: {error}')}.{advice}") from error


class Checkpointing:
    """Saves and loads everything that one policy's learning needs to continue as if it had never stopped."""

    def __init__(
        self,
        placement: Placement,
        policy: int,
        learner: Learner,
        log: TrainingLog,
        experience: Experience,
        ranks: Ranks,
        past: PastVersions,
        pbt: PbtPolicy | None = None,
    ):
        self._ranks = ranks
        self._config, self._placement = placement.configs[policy], placement
        self._learner, self._log, self._experience, self._past = learner, log, experience, past
        self._policy, self._pbt = policy, pbt
        self._folder = self._folder_of(policy)
        placement.savers[policy] = self
        self._common_moment: int | None = None  # the moment that the whole population goes back to, if there is one
        self._ended = False  # whether the newest checkpoint is the last that there will be of the policy
        self._saved_at, self._saved_step, self._saved_updates = perf_counter(), 0, -1
        self._failed = False  # whether the newest attempt to write one failed

    def load(self) -> list[Message]:
        """Take the newest good checkpoint, if there is one; returns what to report.

        Raises `CheckpointError` where there are some but none can be used.
        """
        found = self._find() if self._ranks.index == 0 else None
        if self._ranks.size > 1:
            data = self._ranks.from_first(None if found is None else checkpoint.to_bytes(found))
            if self._ranks.index > 0 and data is not None:
                found = checkpoint.from_bytes(data)
                self._take(found)
        if found is None:
            interval = self._config.run.checkpoint_interval
            anew = f"Learning begins anew: nothing was saved yet (run.checkpoint_interval is {interval:,.0f} s)"
            replaced = self._ranks.index == 0 and self._placement.version(self._policy) > 0  # a learner that died has published
            return [Message("message", anew, self._policy)] if replaced else []
        state, progress = found.unpack(), self._learner.progress
        self._saved_step, self._saved_updates = progress.global_step, progress.updates
        messages = [*found.damaged, f"Going on from {self._named(found.path)}: step {progress.global_step:,}"]
        with _naming(found.path, " Delete it to go on from the one before."):
            if self._pbt is not None and state["member"] is not None:
                self._pbt.set_state(state["member"])
            # Of a policy that had learned enough before that moment, the rest of the world is that of the others' checkpoints.
            newest = not self._together or state["moment"] == self._common_moment
            messages += self._past.set_state(state["past"], None if self._common_moment is None else newest)
            self._ended = bool(state["ended"])
            if self._exact and not newest and self._common_moment is None:
                messages.append("Episodes begin anew: there is no moment of which all policies have a checkpoint")
            elif self._exact and newest:
                if state["sampler"] is not None and (problem := self._placement.set_state(state["sampler"])):
                    messages.append(problem)
                if state["random"] is not None:
                    training_state.set_random_state(state["random"])
            messages += self._experience.restore(found.path, state["experience"])
        return [Message("message", text, self._policy) for text in messages]

    def _take(self, found: checkpoint.Checkpoint) -> None:
        """Take what the learner needs. Raises `CheckpointError` where it does not fit: what was taken until then is replaced by
        what an older checkpoint holds."""
        state, learner = found.unpack(), self._learner
        with _naming(found.path):
            if missing := PARTS - state.keys():
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            progress = Progress(**state["progress"])
            if not all(type(count) is int and count >= 0 for count in dataclasses.asdict(progress).values()):
                raise ValueError(f"its counters are {state['progress']}")
            training_state.load_weights(learner.model, state["model"], found.path)
            training_state.load_optimizer(learner.optimizer, state["optimizer"])
            learner.generator.set_state(state["generator"])
            learner.algorithm.load_state_dict(learner.model, state["learner"])
            learner.progress = progress
            self._log.set_state(state)

    def _named(self, path: Path) -> str:
        """A checkpoint as messages name it."""
        return path.name if self._config.population.size == 1 else f"{path.name} of policy {self._policy}"

    def _folder_of(self, policy: int) -> Path:
        return self._config.policy_folder(policy) / "checkpoints"

    @property
    def _together(self) -> bool:
        """Whether all policies are saved at the same moment, so that the run goes on exactly where it was."""
        return self._placement.deterministic and self._config.population.size > 1

    def _find(self) -> checkpoint.Checkpoint | None:
        """The newest checkpoint. If the whole population is saved together: the checkpoint of the newest moment that all policies
        can return to; a policy that finished learning earlier returns to its last checkpoint."""
        if not self._together:
            return checkpoint.load_newest(self._folder, self._take)
        every = [checkpoint.moments(self._folder_of(p)) for p in range(self._config.population.size)]
        numbers = sorted({moment for of_policy in every for moment, _ in of_policy.values()}, reverse=True)
        self._placement.moment = max(numbers, default=0)
        for number in numbers:
            # Of a policy that had finished learning by then, its last checkpoint.
            found = [{path for path, (at, ended) in own.items() if at == number or (ended and at < number)} for own in every]
            if all(found):
                self._common_moment = number
                return checkpoint.load_newest(self._folder, self._take, found[self._policy])
        return checkpoint.load_newest(self._folder, self._take)

    @property
    def _exact(self) -> bool:
        """Whether the run goes on exactly where it was. The environments of several ranks begin new episodes."""
        return self._placement.deterministic and self._ranks.size == 1

    @property
    def finite(self) -> bool:
        """Whether the weights are numbers."""
        return all(bool(torch.isfinite(p).all()) for p in self._learner.model.parameters())

    def due(self, now: float) -> bool:
        """Whether a checkpoint should be written: the interval is over, or a milestone or an evaluation was passed. After a
        failed attempt only the interval counts. It should not if nothing was learned since, as while samplers are lost."""
        run = self._config.run
        passed = not self._failed and (self._passed(run.milestone_steps) or self._passed(run.eval_interval_steps))
        return self._ranks.index == 0 and not self._unchanged and (passed or now - self._saved_at >= run.checkpoint_interval)

    def _passed(self, interval: int | None) -> bool:
        """Whether a multiple of `interval` steps lies between the last checkpoint and now."""
        return interval is not None and self._learner.progress.global_step // interval > self._saved_step // interval

    def save(self, must: bool, at_rest: bool = True, ended: bool = False) -> Iterator[Message]:
        """Write a checkpoint, and those of the other policies if all are saved at the same moment; yields reports. A failure (a
        full disk) is raised only if `must`.

        `at_rest`: everything stands still between two updates, so that a serial sampler's half-filled trajectories can be saved.
        `ended`: this policy learns no more.
        """
        if self._ranks.index:  # rank 0 writes them
            return
        together = self._together and at_rest
        if together and self._unchanged and self._ended == ended:
            yield self._last()
            return
        sampler = self._placement.get_state() if at_rest and self._exact else None
        if together:
            self._placement.moment += 1
        for p, saver in list(self._placement.savers.items()) if together else [(self._policy, self)]:
            mine = saver is self
            yield saver._write(must and mine, sampler if mine else None, at_rest, ended and mine)
            if not must and not saver._failed:
                yield Message("saved", saver._learner.progress.global_step, p)

    @property
    def _unchanged(self) -> bool:
        progress = self._learner.progress
        return (self._saved_step, self._saved_updates) == (progress.global_step, progress.updates)

    def _last(self) -> Message:
        return Message("message", f"The checkpoint of step {self._learner.progress.global_step:,} is the last", self._policy)

    def _write(self, must: bool, sampler: dict[str, Any] | None, at_rest: bool, ended: bool) -> Message:
        learner, run = self._learner, self._config.run
        learner.settle()  # nothing is saved that is not finite
        step, together = learner.progress.global_step, self._together and at_rest
        if not together and self._unchanged:
            return self._last()
        tensors, state = state_tree.pack(
            {
                "model": learner.model.state_dict(),
                "optimizer": learner.optimizer.state_dict(),
                "progress": dataclasses.asdict(learner.progress),
                "generator": learner.generator.get_state(),
                "learner": learner.algorithm.state_dict(learner.model),
                **self._log.get_state(),
                "sampler": sampler,
                "random": training_state.random_state() if sampler is not None or together else None,
                "experience": self._experience.get_state(),
                "member": None if self._pbt is None else self._pbt.get_state(),
                "moment": self._placement.moment if together else None,
                "ended": ended,
                "past": self._past.get_state(),
            }
        )
        score = self._log.mean_return if self._log.full else None
        milestone = self._passed(run.milestone_steps)
        self._saved_at, self._failed = perf_counter(), True
        try:
            path = checkpoint.save(
                self._folder, step, tensors, state, keep=run.keep_checkpoints, score=score, milestone=milestone,
                attach=self._experience.save,
            )  # fmt: skip
        except CheckpointError as error:
            if must:
                raise
            text = f"{error}. Training goes on; the next try is in {run.checkpoint_interval:.0f} s."
            return Message("message", text, self._policy)
        self._saved_step, self._saved_updates, self._ended, self._failed = step, learner.progress.updates, ended, False
        return Message("message", f"Checkpoint {self._named(path)}", self._policy)
