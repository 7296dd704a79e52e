"""headrace search."""

from __future__ import annotations

import dataclasses
import os
import shlex
from contextlib import closing
from operator import attrgetter
from typing import Annotated, Literal

import tyro

from headrace.cli.compare import check_combinations, flags_for_all, places
from headrace.cli.flags import given_settings, learning_flags, parse_config, setting_name, without_preset_file
from headrace.cli.options import ExperimentOptions, parse
from headrace.config import Config, ConfigError
from headrace.config.ranges import Range
from headrace.envs.core.contract import Continuous
from headrace.envs.make import describe_run
from headrace.experiments import progress
from headrace.experiments.plan import Budget, as_flags
from headrace.experiments.search import BEST, Search, Searcher, searched_before
from headrace.experiments.space import Dimension, default_ranges, parse_over
from headrace.make_config import LEARNED_WITH
from headrace.processes.output import show


@dataclasses.dataclass(kw_only=True)
class SearchOptions(ExperimentOptions):
    """Search settings that learn better, with several seeds per trial, and compare the best with the defaults on unseen seeds.

    The first trial has the defaults. A trial ends early if its first run is far behind those of earlier trials, or if, compared
    seed by seed, it is worse than the best trial. --parallel sets how many trials run at a time. The same command resumes a
    search that was stopped or killed. The settings of the trial with the highest score are written to best.json in the folder,
    those of every trial N to trials/N/preset.json, for headrace train ENV --preset FILE. The flags of `headrace train` are
    accepted too, and apply to all runs.
    """

    over: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="SETTING=RANGE")] = ()
    """A setting and what to try: a range LOW:HIGH, a range on a logarithmic scale LOW:HIGH:log, or values VALUE,VALUE. May be
    given several times. Without it, the search uses its default ranges for the algorithm and the kind of actions."""
    trials: Annotated[int, Range(1, 100_000)] = 30
    """Number of trials, including those that ended early or failed. A finished search goes on if it is given a larger number."""
    seeds: Annotated[int, Range(1, 100)] = 3
    """Number of seeds of each trial. They are 1000, 1001 and so on; the final comparison has other seeds."""
    test_seeds: Annotated[int, Range(0, 1000)] = 5
    """Number of seeds, from 0, with which the best trial and the defaults are compared in the end. 0: no comparison."""
    sampler: Literal["tpe", "gp"] = "tpe"
    """How values are chosen. `tpe`: tree-structured Parzen estimator. `gp`: Gaussian process."""
    objectives: Literal["score", "score-and-minutes"] = "score"
    """What is searched for. `score`: a high final score. `score-and-minutes`: a high final score after few minutes of training;
    the report shows the Pareto front, which are the trials that no other trial beats in both. No trial ends early then."""


def run(arguments: list[str]) -> int:
    """`headrace search`. Exit code 0 if everything was done, 1 if runs of the final comparison failed."""
    asked, rest = parse(SearchOptions, "search", arguments, return_unknown_args=True)
    given = parse_over(asked.over, setting_name)
    if others := sorted(name for name in given if not name.startswith(LEARNED_WITH)):
        raise ConfigError(f"--over {others[0]}: a search is about how to learn, which are the settings {', '.join(LEARNED_WITH)}")
    flags = flags_for_all(rest, given)
    config = parse_config(["--env", asked.env, *flags, "--run.folder", os.devnull])
    over = given or searched_before(asked.folder) or default_over(config)
    dimensions = [(Dimension.parse(name, text, default := attrgetter(name)(config)), default) for name, text in over.items()]
    for dimension, _ in dimensions:
        for value in dimension.ends:  # those that the setting does not take would fail trial after trial
            given_settings(as_flags({dimension.name: value}))
    search = Search(asked.env, tuple(flags), over, asked.budget, asked.seeds, asked.sampler, asked.objectives)
    check_combinations(search.plan({}, (0,)))
    if asked.objectives != "score":
        if Budget.parse(asked.budget).minutes is not None and config.run.goal is None:
            raise ConfigError(
                "--objectives score-and-minutes needs a --budget of steps, or --run.goal: else all runs take as long"
            )
        show("With two objectives Optuna cannot prune: every trial trains all of its seeds to the end")
    with closing(places(asked, flags, over)) as own:
        train = shlex.join(["headrace", "train", asked.env, *without_preset_file(rest)[0]])
        searcher = Searcher(search, dimensions, asked.folder, own, show, learning_flags(rest), train)
        searcher.run(asked.trials)
        best = asked.folder / BEST
        if not best.exists():
            show("No trial has ended by itself: there is no best one")
            return 1
        show(f"The trial with the highest score: {train} --preset {shlex.quote(str(best))}")
        if searcher.best_is_default:
            show("These are the defaults: no trial was better, and there is nothing to compare them with")
            return 0
        complete = asked.test_seeds == 0 or searcher.test(asked.test_seeds, lambda plan: progress.table(plan, asked.parallel))
    show(f"headrace report {asked.folder} draws it")
    return 0 if complete else 1


def default_over(config: Config) -> dict[str, str]:
    """The default ranges. Where they depend on it, the environment is made, in a process of its own, to see whether an action of
    some agent is continuous."""
    discrete, continuous = (default_ranges(config.learning.algorithm, kind) for kind in (False, True))
    if discrete == continuous:
        return discrete
    spec = describe_run(config)
    parts = [part for own in spec.of_agents or (spec,) for part in own.action.parts]
    return continuous if any(isinstance(part, Continuous) for part in parts) else discrete
