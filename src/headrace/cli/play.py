"""headrace play."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

from headrace.cli.options import NumEnvs, PolicyOptions, parse
from headrace.config.ranges import Count, Range
from headrace.envs.core.imports import import_files
from headrace.processes.output import show, show_result
from headrace.processes.start import start_fork_server


@dataclasses.dataclass(kw_only=True)
class Play(PolicyOptions):
    """Play matches of one trained policy against another in a multi-agent environment.

    Options apply to both players. Only --policy and a --checkpoint that is a folder apply to the first player alone; the second
    then plays its newest checkpoint.
    """

    against: str = "random"
    """The second player, who acts for all other agents of the match: a run folder, or the name of a scripted opponent, which a
    file of --import may register."""
    against_policy: Annotated[int, Range(0, 255)] = 0
    """Number of the second player's policy, from 0, where its run trained several."""
    matches: Count = 100
    """Number of matches. The first player takes every place in turn."""
    num_envs: NumEnvs | None = None
    """Number of matches that are played at the same time. None: as many as matches, at most 16."""
    video: Path | None = None
    """Name of an mp4 file for the first match. None: no video."""
    max_episode_steps: Count | None = None
    """Matches are cut off after this many steps; the player with the higher return so far wins. None: `envs.max_episode_steps` of
    the first player's run."""
    json: bool = False
    """Print the results as JSON."""


def run(arguments: list[str]) -> int:
    asked: Play = parse(Play, "play", arguments)
    start_fork_server()
    from headrace.evaluation.hang_warnings import with_limit  # these import torch
    from headrace.evaluation.matches import play, record_match
    from headrace.evaluation.policy import load_policy
    from headrace.population import matchmaking

    import_files(asked.imports)
    one = load_policy(asked.run, which=asked.checkpoint, policy=asked.policy, imports=asked.imports)
    which = "newest" if isinstance(asked.checkpoint, Path) else asked.checkpoint  # a folder is of the first player's run
    other = matchmaking.load_player(asked.against, one.spec, which, asked.against_policy, asked.imports)
    options = with_limit(one.config, asked.max_episode_steps)
    results = play(
        one, other, one.config.env, options, asked.matches, num_envs=asked.num_envs, deterministic=asked.deterministic,
        seed=asked.seed,
    )  # fmt: skip
    players = f"{_named(asked.run, one, asked.policy)} against {_named(asked.against, other, asked.against_policy)}"
    show_result(json.dumps(dataclasses.asdict(results)) if asked.json else f"{players}: {results}")
    if asked.video is not None:
        record_match(one, other, one.config.env, options, asked.video, deterministic=asked.deterministic, seed=asked.seed)
        if not asked.json:
            show(f"Video: {asked.video}")
    return 0


def _named(name: Path | str, player: Any, policy: int) -> str:
    """A player as the result names it."""
    config = getattr(player, "config", None)  # a scripted opponent has none
    return f"policy {policy} of {name}" if config is not None and config.population.size > 1 else str(name)
