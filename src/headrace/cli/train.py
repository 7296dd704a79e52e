"""headrace train."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from headrace import cluster, tune
from headrace.cli.flags import parse_config
from headrace.config import Config, given, hardware
from headrace.config.sampling import SERVED
from headrace.envs.core.imports import needed_code
from headrace.learning.algorithm import declaration
from headrace.make_config import check_config
from headrace.processes import ranks
from headrace.processes.interrupt import deferred_interrupts
from headrace.processes.output import show
from headrace.processes.start import give_cores_up_soon, preload, start_fork_server
from headrace.runs.folder import has_checkpoints

if TYPE_CHECKING:  # torch takes seconds
    from headrace.runs.callbacks import TrainResult


def run(arguments: list[str]) -> int:
    """`headrace train`. Exit code 0 if the run ended by itself, 130 if it was interrupted."""
    give_cores_up_soon()
    config = parse_config(arguments)
    if config.cluster.nodes is not None and (code := _as_member(config)) is not None:
        return code
    check_config(config)
    if ranks.needs_launch(config):
        return ranks.launch(arguments, config)
    first = hardware.rank().index == 0  # the other ranks of a run say nothing but their errors
    if first:
        show(f"{config.env}, {config.learning.algorithm}, run folder {config.run_folder}")
        own = given(config) if config.defaults is not None else {}  # of a resumed run it is not known what somebody gave
        if idle := declaration(config.learning.algorithm).without_effect(own):
            show(f"No effect on {config.learning.algorithm}: {', '.join(idle)}")
        served = config.sampling.placement == "served"
        if idle := [name for name in map("sampling.{}".format, SERVED) if name in own and not served]:
            show(f"No effect in the placement {config.sampling.placement}: {', '.join(idle)}")
        if found := tune.in_use(config):
            undo = f"{tune.how_to_forget(config)} removes {tune.path(config)}"
            show(f"Settings found by headrace tune: {tune.describe(found)} ({undo})")
    if config.in_processes:  # as `ProcessPlacement` does; here the fork server imports torch while this process does
        preload("headrace.train")
    start_fork_server()
    with deferred_interrupts():
        from headrace.train import train  # imports torch, which takes seconds

    result = train(config)
    if first:
        show("\n".join([_end(result, config), *_next_commands(result, config)]))
    return 130 if result.reason == "interrupted" else 0


def _as_member(config: Config) -> int | None:
    """On the first machine: None. On every other machine this command is a learner rank or a sampling node; returns its exit code
    when it has ended."""
    cluster.check_transport()
    from headrace.cluster.roles import link_of_member, machine  # imports gRPC

    if (link := link_of_member(config)) is None:
        return None
    from headrace.cluster.node import run_node
    from headrace.cluster.rank import keep_rank

    here = machine().index
    return keep_rank(link, here, config.imports) if here < config.cluster.learners else run_node(link, config.imports)


ENDS = {
    "total_steps": "learning.total_steps reached",
    "goal": "run.goal reached",
    "max_minutes": "run.max_minutes over",
    "no_samples": "no more samples",
}


def _end(result: TrainResult, config: Config) -> str:
    """How the run has ended. Of several policies the steps are those of all, and the return is that of the first."""
    returns = f"mean return of the last 100 episodes {result.mean_return:.2f}"
    if math.isnan(result.mean_return):
        returns = "no episode has ended"
    ended = ENDS.get(result.reason, result.reason)
    if config.population.size > 1:
        return f"{ended} after {result.global_step:,} steps of all policies; policy 0: {returns}"
    return f"{ended} at step {result.global_step:,}; {returns}"


def _next_commands(result: TrainResult, config: Config) -> list[str]:
    """Commands to suggest after the run has ended. Without a checkpoint there is nothing to show."""
    if not has_checkpoints(config.run_folder):
        return []
    from headrace.evaluation.video import VIDEO  # imports torch

    commands = [["eval", run := str(config.run_folder)]]
    if (config.run_folder / VIDEO).exists() or not config.run.video:  # not every environment has pictures
        commands.append(["watch", run])
    if len(result.spec.agents) > 1 and not result.spec.of_agents:  # one player can take every place of a match
        commands.append(["play", run, "--against", "random"])
    code = needed_code(config)
    imports = ["--import", *code] if code else []
    return [shlex.join(["headrace", *command, *imports]) for command in commands]
