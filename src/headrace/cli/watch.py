"""headrace watch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headrace.cli.options import PolicyOptions, parse
from headrace.config.ranges import Count
from headrace.processes.output import show
from headrace.processes.start import start_fork_server


@dataclasses.dataclass(kw_only=True)
class Watch(PolicyOptions):
    """Record a video of a trained policy."""

    video: Path | None = None
    """Name of the mp4 file. None: videos/step-N.mp4 in the run folder."""
    episodes: Count = 1
    """Number of games, recorded one after the other."""
    max_steps: Count | None = None
    """Stop recording after this many steps. None: no limit."""
    task: str | None = None
    """Id of the task to play, where the policy was trained on several. None: the first."""


def run(arguments: list[str]) -> int:
    asked: Watch = parse(Watch, "watch", arguments)
    start_fork_server()
    from headrace.evaluation.policy import load_policy  # these import torch
    from headrace.evaluation.video import record_games

    policy = load_policy(asked.run, which=asked.checkpoint, policy=asked.policy, imports=asked.imports)
    prefix = "" if policy.config.population.size == 1 else f"policy-{asked.policy}-"
    path = asked.video or (asked.run / "videos" if asked.run.is_dir() else Path()) / f"{prefix}step-{policy.step}.mp4"
    games = record_games(
        policy, path, asked.episodes, deterministic=asked.deterministic, max_steps=asked.max_steps, seed=asked.seed,
        task=asked.task,
    )  # fmt: skip
    if policy.spec.agents:
        matches = [", ".join(f"{agent} {outcome:.2f}" for agent, outcome in game.items()) for game in games]
        results = f"outcomes {'; '.join(matches)}"
    else:
        results = "returns " + ", ".join(format(game["return"], ".2f") for game in games)
    show(f"{path}: step {policy.step:,}, {results}")
    return 0
