"""The learning curve and a video of the agent, made when training ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from headrace.config import Config, ConfigError
from headrace.envs.core.errors import EnvironmentFault
from headrace.evaluation.video import record
from headrace.runs.plots import learning_curve, task_curves

VIDEO = "video.mp4"
"""In the run folder."""
VIDEO_STEPS = 3000
"""Longest video made when training ends, in steps."""


def draw_curve_and_video(
    config: Config, report: Callable[[str], None], mean_returns: Sequence[float], again: bool,
    draw_more: Callable[[], Iterable[str]] = tuple,
) -> None:  # fmt: skip
    """Draw the learning curve and record a video, each if its extra is installed. Existing files are replaced only if `again`.

    `mean_returns`: mean return of each policy's last episodes, NaN if none has ended; if all are NaN, nothing is drawn. The video
    shows the policy with the highest. `draw_more` draws further pictures and returns messages. `report` gets messages for the
    user.
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
            for text in draw_more():
                report(text)
            report(f"Learning curve: {config.run_folder / 'curve.png'}")
            if len(config.tasks) > 1:
                for folder in folders:
                    task_curves(folder, folder / "tasks.png", config.tasks)
                    report(f"Learning curves of the tasks: {folder / 'tasks.png'}")
        returns = record(config.run_folder, video, max_steps=VIDEO_STEPS, number=best)
        report(f"Video: {video} (return {', '.join(f'{r:.1f}' for r in returns)})")
    except Exception as error:  # training is over and saved, so an error here costs only a picture
        kind = "" if isinstance(error, ConfigError | EnvironmentFault) else f"{type(error).__name__}: "
        report(f"No curve or video: {kind}{error}")
