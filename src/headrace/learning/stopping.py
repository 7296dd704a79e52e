"""Why training ends."""

from __future__ import annotations

from headrace.config import Config
from headrace.learning.learner import Progress
from headrace.learning.training_log import TrainingLog

REASONS = (None, "total_steps", "goal", "max_minutes", "no_samples", "interrupted")
"""Reasons to end training. If ranks have different reasons, all of them report the one that is last in this list."""


def reason_to_stop(config: Config, progress: Progress, log: TrainingLog, seconds: float) -> str | None:
    """The reason to end this policy's training now, `seconds` after it began in this process; None to go on."""
    if progress.global_step >= config.learning.total_steps:
        return "total_steps"
    if config.run.goal is not None and log.full and log.mean_return >= config.run.goal:
        return "goal"
    if config.run.max_minutes is not None and seconds >= 60 * config.run.max_minutes:
        return "max_minutes"
    return None
