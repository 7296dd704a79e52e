"""A search for settings on Optuna. Each trial trains several seeds; the best one is compared with the defaults on seeds that the
search never saw.

A trial whose runs do badly ends early, in two ways. Within its first run: at each quarter of the budget its return is compared
with those of earlier trials at the same point (`BEHIND`). Between its seeds: Optuna's WilcoxonPruner compares it with the best
trial seed by seed.

The folder of a search:

    search.json    what is searched, and how
    journal.log    Optuna's journal: trials and their values; `optuna-dashboard journal.log` shows it
    trials.json    the trials, for reports
    trials/N/      the runs of trial N, ordinary run folders (a plan of one combination)
    best.json      the settings of the best trial: headrace train ENV --preset best.json
    test/          the best trial and the defaults on unseen seeds
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.config.file_reading import Unreadable, read_json
from headrace.experiments.plan import Budget, Plan
from headrace.experiments.records import NotReadable, read
from headrace.experiments.runner import Progress, Runner
from headrace.experiments.space import Dimension
from headrace.runs.files import write_whole
from headrace.runs.folder import RunFolder
from headrace.runs.plots import RETURNS

FILE, JOURNAL, TRIALS, BEST, TEST = "search.json", "journal.log", "trials.json", "best.json", "test"
TUNING_SEED = 1000
"""First seed of the trials; the seeds of the final comparison begin at 0."""
QUARTERS = (0.25, 0.5, 0.75)
"""Shares of the budget at which a run is compared with those of earlier trials."""
BEHIND = 0.25
"""A run whose return is below this quantile of the others' at the same point is ended."""
FIRST_TRIALS = 5
"""Trials that must have reached a point before others are compared with them there."""
P_THRESHOLD = 0.26
"""Of the WilcoxonPruner. The p-value of two seeds that are both worse is 0.25, of three 0.125: with so few, none is below 0.1."""
Show = Callable[[str], None]


@dataclass(frozen=True)
class Search:
    """What is searched, and how."""

    env: str
    flags: tuple[str, ...]
    """Of `headrace train`, the same for all trials."""
    over: dict[str, str]
    """By dotted setting, its range or choices."""
    budget: str
    seeds: int
    """Of each trial."""
    sampler: str

    def check_same(self, folder: Path) -> None:
        """Raise `ConfigError` where the folder holds another search."""
        path = folder / FILE
        if not os.path.lexists(path):
            return
        try:
            before, now = read_json(path), json.loads(json.dumps(dataclasses.asdict(self)))
        except Unreadable as error:
            raise ConfigError(str(error)) from error
        if before != now:
            other = [name for name in now if not isinstance(before, dict) or before.get(name) != now[name]]
            raise ConfigError(f"{folder} holds another search (differing: {', '.join(other)}): choose another --folder")

    def plan(self, values: Mapping[str, str], seeds: Sequence[int]) -> Plan:
        """The runs of one combination of values."""
        return Plan(self.env, self.flags, {name: (value,) for name, value in values.items()}, tuple(seeds), self.budget)


class Behind(Exception):
    """A run is far behind those of earlier trials."""


class Searcher:
    """Runs a search in a folder; `defaults`: by dotted setting, the value that it has without the search."""

    def __init__(self, search: Search, dimensions: Sequence[Dimension], defaults: Mapping[str, Any], folder: Path, show: Show):
        self.search, self.dimensions, self.defaults, self.folder, self._show = search, dimensions, defaults, folder, show
        self.optuna = _optuna()
        search.check_same(folder)

    def run(self, trials: int) -> None:
        """Make trials until there are so many, then write the best one's settings. Trials that ended are kept, and one that was
        interrupted goes on."""
        with RunFolder(self.folder) as log:
            write_whole(self.folder / FILE, json.dumps(dataclasses.asdict(self.search), indent=2) + "\n")
            study = self._study()
            for trial in self._trials(study, trials):
                text = self._run_trial(study, trial)
                log.log(text)
                self._show(text)
                self._write(study)

    def _study(self) -> Any:
        optuna = self.optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the pruner has been one since version 3.6
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / JOURNAL))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name="headrace", direction="maximize", load_if_exists=True,
            pruner=optuna.pruners.WilcoxonPruner(p_threshold=P_THRESHOLD),
        )  # fmt: skip
        study.sampler = self._sampler(len(study.trials))  # with one seed, a search that goes on would try the same values again
        known = {d.name: value for d in self.dimensions if (value := d.holds(self.defaults[d.name])) is not None}
        if not study.trials and known:
            study.enqueue_trial(known)  # what the search is to beat
        return study

    def _sampler(self, seed: int) -> Any:
        kinds = {"tpe": self.optuna.samplers.TPESampler, "gp": self.optuna.samplers.GPSampler}
        return kinds[self.search.sampler](seed=seed)

    def _trials(self, study: Any, wanted: int) -> Iterator[Any]:
        """Trials that were begun, then new ones."""
        state = self.optuna.trial.TrialState
        for begun in study.get_trials(states=(state.RUNNING,)):
            yield self.optuna.trial.Trial(study, begun._trial_id)
        while len(study.get_trials(states=(state.COMPLETE, state.PRUNED, state.FAIL))) < wanted:
            yield study.ask()

    def _run_trial(self, study: Any, trial: Any) -> str:
        """Train the seeds of a trial, one after the other. Returns a line about it."""
        state = self.optuna.trial.TrialState
        values = {d.name: d.suggest(trial) for d in self.dimensions}
        shown = ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in values.items())
        scores: list[float] = []
        for seed in range(TUNING_SEED, TUNING_SEED + self.search.seeds):
            runner = Runner(self.search.plan(values, (seed,)), self.folder / "trials" / str(trial.number))
            try:
                complete = runner.run(self._compared(study, trial, seed))
            except Behind as far:
                study.tell(trial, state=state.PRUNED)
                return f"trial {trial.number} ended early, {far}: {shown}"
            if not complete:
                if failures := runner.failures():
                    study.tell(trial, state=state.FAIL)
                    return f"trial {trial.number} failed: {shown}\n{failures[0]}"
                raise KeyboardInterrupt
            scores.append(_score(runner.runs[0].folder))
            trial.report(scores[-1], seed)
            if seed < TUNING_SEED + self.search.seeds - 1 and trial.should_prune():
                study.tell(trial, state=state.PRUNED)
                return f"trial {trial.number} ended early, worse than the best after {len(scores)} seeds: {shown}"
        study.tell(trial, fmean(scores))
        return f"trial {trial.number}: {fmean(scores):.4g} ({', '.join(f'{score:.4g}' for score in scores)}), {shown}"

    def _compared(self, study: Any, trial: Any, seed: int) -> Callable[[list[Progress]], None]:
        """Called while a run goes on: notes its return at each quarter, and raises `Behind` where that is far behind. The first
        seed only: later ones are of trials that the first did not end."""

        def look(runs: list[Progress]) -> None:
            done, value = _done(self.search.budget, runs[0]), runs[0].metrics.get(RETURNS)
            for quarter in QUARTERS:
                key = f"{seed} at {quarter}"
                if value is not None and done >= quarter and key not in trial.user_attrs:
                    others = [t.user_attrs[key] for t in study.get_trials(deepcopy=False) if key in t.user_attrs]
                    trial.set_user_attr(key, value)
                    if seed == TUNING_SEED and len(others) >= FIRST_TRIALS and value < np.quantile(others, BEHIND):
                        raise Behind(f"behind at {quarter:.0%} of its first run")

        return look

    def _write(self, study: Any) -> None:
        rows = [
            {"number": t.number, "state": t.state.name.lower(), "value": t.value, "params": t.params,
             "scores": list(t.intermediate_values.values())}
            for t in study.get_trials(deepcopy=False)
        ]  # fmt: skip
        write_whole(self.folder / TRIALS, json.dumps(rows, indent=1) + "\n")
        done = [t for t in study.trials if t.state == self.optuna.trial.TrialState.COMPLETE]
        if done:
            best, search = study.best_trial, self.search
            values = {d.name: d.suggest(self.optuna.trial.FixedTrial(best.params)) for d in self.dimensions}
            about = {"env": search.env, "budget": search.budget, "trial": best.number, "score": best.value}
            flags = [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", *value.split())]
            write_whole(self.folder / BEST, json.dumps({"about": about, "flags": flags}, indent=2) + "\n")

    @property
    def best_is_default(self) -> bool:
        """Whether the best trial has the values that the settings have without the search."""
        params = self._study().best_trial.params
        return all(params[d.name] == d.holds(self.defaults[d.name]) for d in self.dimensions)

    def test(self, seeds: int, show: Callable[[Plan], Any]) -> bool:
        """Train the best trial's settings and the defaults with unseen seeds; whether all runs have ended by themselves. `show`:
        a context manager that gives what shows the runs of a plan, see `Runner.run`."""
        best = read_json(self.folder / BEST)
        complete = True
        for name, flags in (("defaults", ()), ("best", tuple(best["flags"]))):
            plan = Plan(self.search.env, (*self.search.flags, *flags), {}, tuple(range(seeds)), self.search.budget)
            runner = Runner(plan, self.folder / TEST / name)
            with show(plan) as shown:
                complete &= runner.run(shown)
            if failures := runner.failures():
                self._show(failures[0])
            elif not complete:
                raise KeyboardInterrupt
        return complete


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError('a search needs a package that is not installed: pip install "headrace[lab]"') from error
    import optuna.storages.journal

    return optuna


def _score(folder: Path) -> float:
    """The final score of a run. Raises `ConfigError` where no episode has ended: there is nothing to compare."""
    try:
        return fmean(run.score for run in read(folder))
    except NotReadable as error:
        raise ConfigError(f"{folder}: {error}. A larger --budget is needed") from error


def _done(budget: str, one: Progress) -> float:
    """The share of its budget that a run has used."""
    known = Budget.parse(budget)
    if known.steps is not None:
        return one.metrics.get("global_step", 0.0) / known.steps
    assert known.minutes is not None
    return one.seconds / 60 / known.minutes
