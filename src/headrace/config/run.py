"""Settings of the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headrace.config.ranges import Count, Range, Seconds


@dataclass
class RunConfig:
    """The run folder and what is written to it."""

    folder: str | None = None
    """Run folder; training resumes the run that is found there. None: runs/<env>__<name>__<seed>."""
    name: str = "default"
    """Name of the experiment. It is part of the default folder's name."""
    must_be_new: bool = False
    """Refuse to start if the folder already holds a run, instead of resuming it."""
    goal: float | None = None
    """Training ends when the mean return of the last 100 episodes reaches this value. None: no goal."""
    max_minutes: Annotated[float, Range(0, 1e6, above=True)] | None = None
    """Training ends after this wall-clock time (minutes). A resumed run counts from its resume; the ranks of
    `learning.num_devices` that start again after a failure count from their first start. None: no limit."""
    log_interval: Seconds = 5.0
    """Time (seconds) between two lines of metrics."""
    checkpoint_interval: Seconds = 120.0
    """Time (seconds) between two checkpoints."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints that are kept. The best checkpoint and all milestones are kept as well."""
    milestone_steps: Count | None = None
    """Number of steps between two milestones, which are checkpoints that are never deleted. None: no milestones."""
    eval_interval_steps: Count | None = None
    """Number of steps between two evaluations during training. None: no evaluations."""
    eval_episodes: Count = 10
    """Number of episodes of each evaluation during training."""
    dashboard: bool = True
    """Show a live dashboard in the terminal. If it is off, or output is not a terminal, each interval prints one line."""
    video: bool = True
    """When training ends, draw the learning curve and, where there are several tasks, policies or players, pictures of those, and
    save a video of one episode (at most 3,000 steps) in the run folder. This needs the extras `plots` and `video`."""
    track: bool = False
    """Log metrics to Weights & Biases as well. This needs the extra `wandb`."""
    wandb_project: str = "headrace"
    """Name of the project in Weights & Biases."""
