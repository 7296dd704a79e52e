"""headrace eval."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from headrace.cli.options import check_numbers, parse
from headrace.processes.output import show
from headrace.processes.start import start_fork_server


@dataclasses.dataclass
class Eval:
    """Play whole games with a trained policy and report their unclipped returns."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    episodes: int = 100
    """Number of games, divided evenly among the environments."""
    num_envs: int | None = None
    """Number of environments that are stepped together. None: as many as games, at most 16."""
    deterministic: bool = False
    """Draw no action at random: take the most probable one, or the one of the highest value."""
    policy: int = 0
    """Number of the policy, from 0, where the run trained several (`population.size`)."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Checkpoint that is loaded."""
    seed: int = 0
    """Seed of the environments and of action sampling. The same seed gives the same games. Training never plays them."""
    max_episode_steps: int | None = None
    """Longest game in steps; it is cut off then. None: `envs.max_episode_steps` of the run."""
    imports: Annotated[tuple[str, ...], tyro.conf.arg(name="import")] = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but no file runs unasked."""
    json: bool = False
    """Print the result as JSON, with the return and the length of every game."""


def run(arguments: list[str]) -> int:
    """`headrace eval`."""
    asked: Eval = parse(Eval, "eval", arguments)
    check_numbers(seed=(asked.seed, 0), episodes=(asked.episodes, 1), num_envs=(asked.num_envs, 1))
    check_numbers(max_episode_steps=(asked.max_episode_steps, 1))
    start_fork_server()
    from headrace.evaluation.evaluate import evaluate  # imports torch

    result = evaluate(
        asked.run,
        asked.episodes,
        num_envs=asked.num_envs,
        deterministic=asked.deterministic,
        seed=asked.seed,
        which=asked.checkpoint,
        number=asked.policy,
        imports=asked.imports,
        max_episode_steps=asked.max_episode_steps,
    )
    show(result.to_json() if asked.json else str(result))
    return 0
