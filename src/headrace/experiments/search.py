"""A search for settings on Optuna. Each trial trains several seeds; the best one is compared with the defaults on seeds that the
search never saw.

A trial whose runs do badly ends early, in two ways. Within its first run: at each quarter of the budget its return is compared
with those of earlier trials at the same point (`BEHIND`). Between its seeds: Optuna's WilcoxonPruner compares it with the best
trial seed by seed. Where minutes are an objective too, none ends early: Optuna prunes by one objective only, and a trial that is
behind in score may be the fastest.

The folder of a search:

    search.json    what is searched, and how
    journal.log    Optuna's journal: trials and their values; `optuna-dashboard journal.log` shows it
    trials.json    the trials, for reports
    trials/N/      the runs of trial N, ordinary run folders (a plan of one combination), and its settings: preset.json
    best.json      the settings of the trial with the highest score: headrace train ENV --preset best.json
    test/          the best trial (trial-N) and the defaults on unseen seeds
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.config.errors import package
from headrace.config.file_reading import Unreadable, read_json
from headrace.experiments.places import Places
from headrace.experiments.plan import Plan, as_flags
from headrace.experiments.progress import share_done
from headrace.experiments.records import NotReadable, read
from headrace.experiments.runner import POLL, Progress, Runner
from headrace.experiments.space import Dimension
from headrace.processes.interrupt import Interrupt, interrupts
from headrace.runs.files import write_whole
from headrace.runs.folder import RunFolder
from headrace.runs.plots import RETURNS

FILE, JOURNAL, TRIALS, BEST, TEST = "search.json", "journal.log", "trials.json", "best.json", "test"
PRESET = "preset.json"  # in the folder of a trial
OBJECTIVES = {"score": {"score": "maximize"}, "score-and-minutes": {"score": "maximize", "minutes": "minimize"}}
"""By the name of what is searched for, the objectives with Optuna's directions. The first one is always the score."""
TUNING_SEED = 1000  # first seed of the trials; the seeds of the final comparison begin at 0
QUARTERS = (0.25, 0.5, 0.75)  # shares of the budget at which a run is compared with those of earlier trials
BEHIND = 0.25  # a run whose return is below this quantile of the others' at the same point is ended
FIRST_TRIALS = 5  # trials that must have reached a point before others are compared with them there
P_THRESHOLD = 0.26
"""Of the WilcoxonPruner. The p-value of two seeds that are both worse is 0.25, of three 0.125: with so few, none is below 0.1."""
Show = Callable[[str], None]


@dataclass(frozen=True)
class Search:
    """The definition of a search: the environment, the settings to try, the budget and the sampler."""

    env: str
    flags: tuple[str, ...]  # of `headrace train`, the same for all trials
    over: dict[str, str]  # by dotted setting, its range or choices
    budget: str
    seeds: int  # of each trial
    sampler: str
    objectives: str = "score"  # see `OBJECTIVES`

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


def searched_before(folder: Path) -> dict[str, str] | None:
    """What the search in this folder varies, by dotted setting; None where there is none that can be read."""
    try:
        known = read_json(folder / FILE)
    except (Unreadable, OSError):  # which `Search.check_same` explains
        return None
    return known.get("over") if isinstance(known, dict) else None


class Searcher:
    """Runs a search in a folder.

    Args:
        over: what is searched, each with the value that it has without the search.
        places: for as many trials at a time.
        fixed: those flags of all trials that say how to learn. A trial's preset has them too.
        train: the command that trains one run as the trials are trained, without a trial's settings. It is kept with them.
    """

    def __init__(
        self, search: Search, over: Sequence[tuple[Dimension, Any]], folder: Path, places: Places, show: Show,
        fixed: Sequence[str] = (), train: str = "",
    ):  # fmt: skip
        self.search, self.folder, self._show, self._fixed = search, folder, show, fixed
        self._train = train or f"headrace train {search.env}"
        self.dimensions, self.defaults = [dimension for dimension, _ in over], {d.name: default for d, default in over}
        self._places = places
        self.optuna = package("optuna", "lab", "a search needs a package that is not installed")
        search.check_same(folder)

    def run(self, trials: int) -> None:
        """Make trials until there are so many, and write the best one's settings after each. Trials that ended are kept, and
        those that were interrupted go on."""
        with RunFolder(self.folder) as log, interrupts(lambda: None) as interrupt:
            write_whole(self.folder / FILE, json.dumps(dataclasses.asdict(self.search), indent=2) + "\n")
            study = self._study()
            self._write(study)  # a search that was killed may have ended a trial, and not written it
            waiting, going = self._trials(study, trials), list[Generator[None, None, str]]()
            try:
                while True:
                    while len(going) < self._places.count and not interrupt.requested and (trial := next(waiting, None)):
                        going.append(self._run_trial(study, trial, interrupt))
                    if not going:
                        break
                    for one in tuple(going):
                        try:
                            next(one)
                        except StopIteration as end:
                            going.remove(one)
                            log.log(end.value)
                            self._show(end.value)
                            self._write(study)
                    time.sleep(POLL)
            finally:
                for one in going:
                    one.close()
        if interrupt.requested:
            raise KeyboardInterrupt

    def _study(self) -> Any:
        optuna = self.optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the pruner has been one since version 3.6
        _drop_torn_line(path := self.folder / JOURNAL)
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        objectives = OBJECTIVES[self.search.objectives]
        try:
            study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend), study_name="headrace", load_if_exists=True,
                directions=[*objectives.values()], pruner=optuna.pruners.WilcoxonPruner(p_threshold=P_THRESHOLD),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path} is damaged ({error}): move it away, and the same command searches anew; runs that have ended count"
            ) from error
        study.set_metric_names([*objectives])  # for optuna-dashboard
        samplers = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
        # With one seed for all, a search that goes on would try the same values again.
        study.sampler = samplers[self.search.sampler](seed=len(study.trials))
        known = {d.name: value for d in self.dimensions if (value := d.holds(self.defaults[d.name])) is not None}
        if not study.trials and known:
            study.enqueue_trial(known)  # what the search is to beat
        return study

    def _trials(self, study: Any, wanted: int) -> Iterator[Any]:
        """Trials that were begun, then new ones."""
        state = self.optuna.trial.TrialState
        for begun in study.get_trials(states=(state.RUNNING,)):
            yield self.optuna.trial.Trial(study, begun._trial_id)
        while sum(trial.state != state.WAITING for trial in study.get_trials(deepcopy=False)) < wanted:
            yield study.ask()

    def _run_trial(self, study: Any, trial: Any, interrupt: Interrupt) -> Generator[None, None, str]:
        """Train the seeds of a trial, one after the other; yields between two looks at them. Returns a line about it."""
        state, prunes = self.optuna.trial.TrialState, self.search.objectives == "score"
        values = {d.name: d.suggest(trial) for d in self.dimensions}
        shown = ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in values.items())
        folder, scores, minutes, behind = self.folder / "trials" / str(trial.number), list[float](), list[float](), None
        for seed in range(TUNING_SEED, TUNING_SEED + self.search.seeds):
            runner = Runner(self.search.plan(values, (seed,)), folder, self._places)
            with closing(runner.steps(interrupt)) as steps:
                for _ in steps:
                    if prunes and (behind := self._behind(study, trial, seed, runner.runs[0])):
                        break
                    yield
            if behind:
                study.tell(trial, state=state.PRUNED)
                return f"trial {trial.number} ended early, behind at {behind:.0%} of its first run: {shown}"
            if not runner.complete:
                if failures := runner.failures():
                    study.tell(trial, state=state.FAIL)
                    return f"trial {trial.number} failed: {shown}\n{failures[0]}"
                return f"trial {trial.number} was stopped, and the same command goes on with it: {shown}"
            try:
                ended = _objectives(runner.runs[0].folder)
            except ConfigError as error:  # of this trial's values, perhaps: episodes may be longer with them
                study.tell(trial, state=state.FAIL)
                return f"trial {trial.number} failed: {shown}\n{error}"
            for kept, value in zip((scores, minutes), ended, strict=True):
                kept.append(value)
            trial.set_user_attr("scores", scores)
            if prunes:
                if seed not in study.get_trials(deepcopy=False)[trial.number].intermediate_values:  # else it was killed since
                    trial.report(scores[-1], seed)
                if seed < TUNING_SEED + self.search.seeds - 1 and trial.should_prune():
                    study.tell(trial, state=state.PRUNED)
                    return f"trial {trial.number} ended early, worse than the best after {len(scores)} seeds: {shown}"
        self._write_preset(folder / PRESET, trial, fmean(scores))
        study.tell(trial, [fmean(scores)] if prunes else [fmean(scores), fmean(minutes)])
        took = "" if prunes else f", {fmean(minutes):.3g} minutes"
        return f"trial {trial.number}: {_with_mean(scores)}{took}, {shown}"

    def _behind(self, study: Any, trial: Any, seed: int, run: Progress) -> float | None:
        """Note a run's return at each quarter of its budget; the quarter at which that is far behind the others'. The first seed
        only: later ones are of trials that the first did not end."""
        done, value = share_done(self.search.budget, run), run.metrics.get(RETURNS)
        for quarter in QUARTERS:
            key = f"{seed} at {quarter}"
            if value is not None and done >= quarter and key not in trial.user_attrs:
                others = [t.user_attrs[key] for t in study.get_trials(deepcopy=False) if key in t.user_attrs]
                trial.set_user_attr(key, value)
                if seed == TUNING_SEED and len(others) >= FIRST_TRIALS and value < np.quantile(others, BEHIND):
                    return quarter
        return None

    def _write(self, study: Any) -> None:
        state = self.optuna.trial.TrialState
        done = study.get_trials(states=(state.COMPLETE,))
        front = {t.number for t in study.best_trials} if done else set()
        rows = [
            {"number": t.number, "state": t.state.name.lower(), "value": t.values[0] if t.values else None,
             "minutes": t.values[1] if len(t.values or ()) > 1 else None, "best": t.number in front, "params": t.params,
             "scores": t.user_attrs.get("scores", [])}
            for t in study.get_trials(deepcopy=False)
        ]  # fmt: skip
        write_whole(self.folder / TRIALS, json.dumps(rows, indent=1) + "\n")
        if done:
            best = _best(study)
            self._write_preset(self.folder / BEST, best, best.values[0])

    def _write_preset(self, path: Path, trial: Any, score: float) -> None:
        about = {
            "env": self.search.env, "budget": self.search.budget, "trial": trial.number, "score": score, "train": self._train,
        }  # fmt: skip
        write_whole(path, json.dumps({"about": about, "flags": [*self._fixed, *self._flags(trial)]}, indent=2) + "\n")

    def _flags(self, trial: Any) -> list[str]:
        """The values of a trial that has ended, as flags of `headrace train`."""
        return as_flags({d.name: d.suggest(self.optuna.trial.FixedTrial(trial.params)) for d in self.dimensions})

    @property
    def best_is_default(self) -> bool:
        """Whether the best trial has the values that the settings have without the search."""
        params = _best(self._study()).params
        return all(params[d.name] == d.holds(self.defaults[d.name]) for d in self.dimensions)

    def test(self, seeds: int, show: Callable[[Plan], Any]) -> bool:
        """Train the best trial's settings and the defaults with unseen seeds; whether all runs have ended by themselves. `show`:
        a context manager that gives what shows the runs of a plan, see `Runner.run`."""
        best, complete = _best(self._study()), True
        for name, flags in (("defaults", []), (f"trial-{best.number}", self._flags(best))):
            plan = Plan(self.search.env, (*self.search.flags, *flags), {}, tuple(range(seeds)), self.search.budget)
            runner = Runner(plan, self.folder / TEST / name, self._places)
            self._show(f"On unseen seeds: {name}")
            with show(plan) as shown:
                ended = runner.run(shown)
            complete &= ended
            if failures := runner.failures():
                self._show(failures[0])
            if runner.stopped:
                raise KeyboardInterrupt
            if ended and (scores := [one.metrics[RETURNS] for one in runner.runs if RETURNS in one.metrics]):
                self._show(f"On unseen seeds, {name} has {_with_mean(scores)}")
        return complete


def _drop_torn_line(journal: Path) -> None:
    """Remove the end of a journal that a full disk or a power failure cut short: Optuna would write the next line behind it, and
    then read none any more."""
    if journal.is_file() and (data := journal.read_bytes()) and not data.endswith(b"\n"):
        write_whole(journal, data[: data.rfind(b"\n") + 1])


def _best(study: Any) -> Any:
    """The trial with the highest score: of several objectives, the end of the front."""
    return max(study.best_trials, key=lambda trial: trial.values[0])


def _objectives(folder: Path) -> tuple[float, float]:
    """The final score of a run and the minutes of its training. Raises `ConfigError` where no episode has ended: there is
    nothing to compare."""
    try:
        policies = read(folder)
    except NotReadable as error:
        raise ConfigError(f"{folder}: {error}. A larger --budget is needed") from error
    return fmean(policy.score for policy in policies), policies[0].minutes


def _with_mean(scores: Sequence[float]) -> str:
    return f"{fmean(scores):.4g} ({', '.join(f'{score:.4g}' for score in scores)})"
