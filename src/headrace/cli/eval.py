"""headrace eval."""

from __future__ import annotations

import dataclasses

from headrace.cli.options import NumEnvs, PolicyOptions, parse
from headrace.config.ranges import Count
from headrace.processes.output import show_result
from headrace.processes.start import start_fork_server


@dataclasses.dataclass(kw_only=True)
class Eval(PolicyOptions):
    """Play whole games with a trained policy and report their unclipped returns."""

    episodes: Count = 100
    """Number of games, divided evenly among the environments."""
    num_envs: NumEnvs | None = None
    """Number of environments that are stepped together. None: as many as games, at most 16."""
    max_episode_steps: Count | None = None
    """Games are cut off after this many steps. None: `envs.max_episode_steps` of the run. An environment server must have the
    same limit."""
    env: str | None = None
    """Environment to play in; it must have the same observations and actions as the one that the policy was trained in. None:
    that one."""
    json: bool = False
    """Print the result as JSON, with the return and the length of every game."""


def run(arguments: list[str]) -> int:
    asked: Eval = parse(Eval, "eval", arguments)
    start_fork_server()
    from headrace.evaluation.evaluate import evaluate  # imports torch

    result = evaluate(
        asked.run, asked.episodes, num_envs=asked.num_envs, deterministic=asked.deterministic, seed=asked.seed,
        which=asked.checkpoint, number=asked.policy, imports=asked.imports, max_episode_steps=asked.max_episode_steps,
        env=asked.env,
    )  # fmt: skip
    show_result(result.to_json() if asked.json else str(result))
    return 0
