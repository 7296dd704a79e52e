"""The learning curve, the standings and a video of the agent, made when training ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.config import Config, ConfigError
from headrace.envs.contract import EnvironmentFault
from headrace.evaluation.video import record
from headrace.runs import lineage, standings
from headrace.runs.plots import learning_curve, task_curves

VIDEO = "video.mp4"
"""In the run folder."""
VIDEO_STEPS = 3000
"""Longest video made when training ends, in steps."""


def draw_curve_and_video(config: Config, report: Callable[[str], None], mean_returns: Sequence[float], again: bool) -> None:
    """Make both where the extras for them are installed; not `again` where they are there. `report` gets messages for the user.

    `mean_returns`: each policy's of its last episodes, NaN if none has ended; without any there is nothing to draw. The video is
    of the policy whose return is highest.
    """
    video = config.run_folder / VIDEO
    if not config.run.video or (video.exists() and not again):
        return
    known = [p for p, mean in enumerate(mean_returns) if not math.isnan(mean)]
    best = max(known, key=lambda p: mean_returns[p], default=0)
    try:
        if known:
            folders = [config.policy_folder(p) for p in known]
            title = config.env if len(config.tasks) == 1 else f"mean of {len(config.tasks)} tasks"
            learning_curve(folders, config.run_folder / "curve.png", title=title, goal=config.run.goal)
            if config.pbt.on and (config.run_folder / lineage.FILE).exists():
                report(f"Population: {lineage.draw(config.run_folder, config.population.size)}")
            if (config.run_folder / standings.FILE).exists():
                every = [config.policy_folder(p) for p in range(config.population.size)]
                report(f"Standings: {standings.draw(config.run_folder, every, title=config.env)}")
            report(f"Learning curve: {config.run_folder / 'curve.png'}")
            if len(config.tasks) > 1:
                for folder in folders:
                    task_curves(folder, folder / "tasks.png", config.tasks)
                    report(f"Learning curves of the tasks: {folder / 'tasks.png'}")
        returns = record(config.run_folder, video, max_steps=VIDEO_STEPS, number=best)
        report(f"Video: {video} (return {', '.join(f'{r:.1f}' for r in returns)})")
    except Exception as error:  # training is over and saved; whatever happens here, only a picture is missing
        kind = "" if isinstance(error, ConfigError | EnvironmentFault) else f"{type(error).__name__}: "
        report(f"No curve or video: {kind}{error}")
