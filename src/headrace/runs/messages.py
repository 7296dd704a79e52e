"""Messages: the reports of learners, placements and evaluations during a run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Message(NamedTuple):
    """One report. Between processes it travels as JSON (`headrace.processes.reports`)."""

    kind: Literal[
        "message", "start", "curve", "metrics", "episodes", "saved", "done", "failed", "fault", "refused", "population",
        "standings", "eval",
    ]  # fmt: skip
    """message: a text for people. start: the global step at which training goes on. curve: points of the learning curve, see
    `TrainingLog.curve`. metrics: {name: value}. episodes: [return, length] of those that ended, if somebody asks for them. saved:
    the global step of a new checkpoint. done: {reason, global_step, mean_return}. failed: the traceback that ended a process.
    fault: the same of an environment. refused: the same for an error that comes again in the next process, such as a module that
    is not there. population: what became of the policy in population-based training. standings: who has won how often against
    whom (for both see `headrace.population.records`). eval: the metrics of an evaluation beside training."""
    content: Any
    policy: int = 0
