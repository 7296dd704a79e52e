"""headrace watch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headrace.cli.options import check_numbers, parse
from headrace.processes.output import show
from headrace.processes.start import start_fork_server


@dataclasses.dataclass
class Watch:
    """Record a video of a trained policy."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    video: Path | None = None
    """Name of the mp4 file. None: videos/step-N.mp4 in the run folder."""
    episodes: int = 1
    """Number of games, recorded one after the other."""
    deterministic: bool = False
    """Draw no action at random: take the most probable one, or the one of the highest value."""
    max_steps: int | None = None
    """Stop recording after this many steps. None: no limit."""
    task: str | None = None
    """Id of the task to play, where the policy was trained on several. None: the first."""
    policy: int = 0
    """Number of the policy, from 0, where the run trained several (`population.size`)."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint that is loaded."""
    seed: int = 0
    """Seed of the environment and of action sampling. The same seed gives the same games. Training never plays them."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but no file runs unasked."""


def run(arguments: list[str]) -> int:
    """`headrace watch`."""
    asked: Watch = parse(Watch, "watch", arguments)
    check_numbers(seed=(asked.seed, 0), episodes=(asked.episodes, 1), max_steps=(asked.max_steps, 1))
    start_fork_server()
    from headrace.evaluation.policy import load_policy  # these import torch
    from headrace.evaluation.video import record_games

    policy = load_policy(asked.run, which=asked.checkpoint, policy=asked.policy, imports=asked.imports)
    prefix = "" if policy.config.population.size == 1 else f"policy-{asked.policy}-"
    path = asked.video or asked.run / "videos" / f"{prefix}step-{policy.step}.mp4"
    how: Any = {"deterministic": asked.deterministic, "max_steps": asked.max_steps, "seed": asked.seed, "task": asked.task}
    games = record_games(policy, path, asked.episodes, **how)
    if policy.spec.agents:
        matches = [", ".join(f"{agent} {outcome:.2f}" for agent, outcome in game.items()) for game in games]
        results = f"outcomes {'; '.join(matches)}"
    else:
        results = "returns " + ", ".join(format(game["return"], ".2f") for game in games)
    show(f"{path}: step {policy.step:,}, {results}")
    return 0
