"""headrace compare."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from contextlib import closing
from typing import Annotated

import tyro

from headrace.cli.flags import given_settings, parse_config, setting_name, without_preset_file
from headrace.cli.options import ExperimentOptions, parse
from headrace.cluster import check_transport
from headrace.config import ConfigError
from headrace.config.ranges import Range
from headrace.experiments import progress
from headrace.experiments.places import Cores, Places
from headrace.experiments.plan import Plan, parse_vary
from headrace.experiments.runner import Runner
from headrace.make_config import check_config
from headrace.processes.output import show

OF_A_RUN = {
    "run.goal": ("--run.goal", "None"), "run.video": ("--run.no-video",), "run.dashboard": ("--run.no-dashboard",),
    "run.log_interval": ("--run.log-interval", "1"),
}  # fmt: skip
"""Flags, by setting, that every run of an experiment gets unless the user gives that setting: the run trains until its budget is
used up, and shows nothing."""
DECIDED = {
    "env": "ENV", "seed": "--seeds (in compare also by --first-seed)", "run.folder": "--folder",
    "learning.total_steps": "--budget", "run.max_minutes": "--budget",
}  # fmt: skip
"""Settings that an option of the command decides."""


@dataclasses.dataclass(kw_only=True)
class Compare(ExperimentOptions):
    """Train every combination of some settings with several seeds, and keep everything in one folder.

    Each run is a `headrace train` of its own. The same command resumes an experiment that was stopped or killed: finished runs
    are kept, unfinished ones go on from their newest checkpoints. The flags of `headrace train` are accepted too, and apply to
    all runs; `run.goal` is off unless it is given. `headrace report` shows the results so far at any time.
    """

    vary: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="SETTING=VALUE,VALUE")] = ()
    """A setting and the values that are compared; may be given several times, and all combinations are run. The values of a
    list are separated by spaces: --vary "policy.mlp=64 64,256 256"; those of a switch are true and false; those of `envs.kwargs`
    are JSON objects: --vary 'envs.kwargs={"size": 5},{"size": 9}'."""
    seeds: Annotated[int, Range(1, 1000)] = 3
    """Number of seeds of each combination: --first-seed, the next one and so on."""
    first_seed: Annotated[int, Range(0, 1_000_000_000)] = 0
    """The first of the seeds: other machines can train other seeds, and `headrace report` takes the folders of all."""


def run(arguments: list[str]) -> int:
    """`headrace compare`. Exit code 0 if every run has ended by itself, 130 if somebody stopped it, 1 if runs failed."""
    asked, rest = parse(Compare, "compare", arguments, return_unknown_args=True)
    vary = parse_vary(asked.vary, setting_name)
    flags = flags_for_all(rest, vary)
    plan = Plan(asked.env, tuple(flags), vary, tuple(range(asked.first_seed, asked.first_seed + asked.seeds)), asked.budget)
    check_combinations(plan)
    with closing(places(asked, flags, vary)) as own:
        runner = Runner(plan, asked.folder, own)
        with progress.table(plan, asked.parallel) as shown:
            complete = runner.run(shown)
    for text in [*runner.unreadable(), *runner.failures()]:
        show(text)
    show(f"headrace report {asked.folder} draws what there is")
    return 0 if complete else 1 if runner.failures() else 130


def flags_for_all(rest: list[str], vary: Collection[str]) -> list[str]:
    """The flags of `headrace train` that all runs of an experiment have. Raises `ConfigError` for settings that an option
    decides, and for those that `vary`."""
    given = given_settings(without_preset_file(rest)[0])  # the settings in a preset file give way to all others
    for name in sorted({*given, *vary} & DECIDED.keys()):
        raise ConfigError(f"{name} is decided by {DECIDED[name]} for the runs of an experiment: leave it out")
    for name in sorted(given.keys() & vary):
        raise ConfigError(f"{name} varies, and is given as a flag too: leave out one of them")
    return [*(part for name, own in OF_A_RUN.items() if name not in given for part in own), *rest]


def places(asked: ExperimentOptions, flags: list[str], vary: Collection[str]) -> Places:
    """Where the runs are trained. Raises `ConfigError` where there is no room for them."""
    if asked.on == "this-machine":
        return Cores(asked.parallel)
    if named := sorted(name for name in {*given_settings(without_preset_file(flags)[0]), *vary} if name.startswith("cluster.")):
        raise ConfigError(f"{named[0]} divides a run among machines, and with --on ray each has one: leave out one of them")
    check_transport()
    from headrace.cluster.user_code import pack
    from headrace.experiments.ray_nodes import RayNodes  # imports gRPC

    return RayNodes(asked.parallel, pack(parse_config(["--env", asked.env, *flags, "--run.folder", os.devnull])))


def check_combinations(plan: Plan) -> None:
    """Raise `ConfigError` that names every combination which cannot work, with the reasons, before anything starts."""
    impossible: dict[str, str] = {}
    for one in plan.runs():
        if one.seed == plan.seeds[0]:
            try:
                check_config(parse_config([*plan.command(one), "--run.folder", os.devnull]))
            except ConfigError as error:
                impossible[one.label] = str(error)
    if impossible:
        lines = [f"  {label}: {reason}" for label, reason in impossible.items()]
        raise ConfigError("\n".join(["these combinations cannot work; nothing was started:", *lines]))
