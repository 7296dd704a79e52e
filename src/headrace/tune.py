"""Which workers, environments, placement and threads train fastest on this machine: `headrace tune ENV`.

Candidates are settings that say how experience is gathered, not what is learned from it. Each is tried by a real, short training
and judged by the steps per second that the learner has learned from. First every setting is changed by itself, once. Then what
helped is combined, and tried in turns with the defaults until their difference is above the spread of the trials. The result is
written where `headrace train` looks for it (`path`), for this environment, algorithm, preset, number of cores and
device.

Nothing here imports torch before something is measured.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace import config as configs
from headrace.config import Config, ConfigError, LearningConfig
from headrace.config.file_reading import Unreadable, read_json, shortened
from headrace.envs.core.imports import needed_code
from headrace.make_config import check_config, for_agents
from headrace.runs.files import write_whole

if TYPE_CHECKING:
    from headrace.envs.core.contract import EnvSpec

Settings = dict[str, Any]  # dotted settings that differ from the defaults

TUNABLE = (
    "sampling.num_workers",
    "sampling.envs_per_worker",
    "sampling.num_groups",
    "sampling.placement",
    "sampling.min_request_groups",
    "sampling.num_policy_workers",
    "learning.num_threads",
    "learning.batch_size",
)
"""What may be tried and written; the batch size only where the user asks for it."""

SLOWEST = 180.0  # seconds a candidate may take for its first update, or its second, before it is given up
HELPS = 1.05  # ratio of speeds that makes a change worth keeping
PAIRS = 3  # times that the defaults and a candidate are compared before one is chosen: two say little about their spread
ERRORS = 2.0  # standard errors that the gain of a candidate must be above
FINAL = 0.5  # share of the time kept for comparing the best candidate with the defaults


# -- where the result lives ------------------------------------------------------------------------------------------------


def path(config: Config) -> Path:
    """The file for this environment, algorithm and preset on this machine: ``$XDG_CONFIG_HOME/headrace/tuned/...json``, by
    default under ``~/.config``."""
    return _folder() / f"{_prefix(config)}-{config.device.partition(':')[0]}.json"


def _folder() -> Path:
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "headrace" / "tuned"
    except RuntimeError as error:
        raise ConfigError("this user has no home directory: XDG_CONFIG_HOME must name a folder for what is found") from error


def _prefix(config: Config) -> str:
    """What is found for a paper's numbers is of no use to others, and the other way round: both may hold sizes of the batch."""
    preset = "" if (name := config.learning.preset) == LearningConfig.preset else f"-{name}"
    return f"{config.env_name}-{config.learning.algorithm}{preset}-{len(os.sched_getaffinity(0))}-cores"


def load(config: Config) -> Settings:
    """What was found for this environment, algorithm, preset and machine; empty if nothing was. Raises `ConfigError` for a file
    that is no such result."""
    try:
        folder = _folder()
    except ConfigError:
        return {}
    # Which device there is takes an import of torch, which a mistyped flag should not wait for.
    if not any(folder.glob(f"{_prefix(config)}-*.json")) or not os.path.lexists(file := path(config)):
        return {}
    try:
        settings: Settings = dict(read_json(file)["settings"])
        if unknown := sorted(set(settings) - set(TUNABLE)):
            raise ConfigError(f"it sets {shortened(', '.join(unknown))}, which headrace tune does not")
        configs.override(config, **settings)  # whether each value is one that the setting may have
    except (KeyError, TypeError, ValueError) as error:
        reason = error.reason if isinstance(error, Unreadable) else shortened(str(error))
        raise ConfigError(f"{file} is no result of headrace tune ({reason}): remove it") from error
    return settings


def in_use(config: Config) -> Settings:
    """The settings of `config` that have the values found by `headrace tune`."""
    return {name: value for name, value in load(config).items() if attrgetter(name)(config) == value}


def forget(config: Config) -> Path | None:
    """Delete what `load` finds. Returns the file's path; None if there was none."""
    file = path(config)
    if not os.path.lexists(file):
        return None
    file.unlink()
    return file


def how_to_forget(config: Config) -> str:
    """The command that deletes it. The algorithm is named, since it need not be the environment's own."""
    c = config.learning
    preset = ["--learning.preset", c.preset] if c.preset != LearningConfig.preset else []
    device = ["--learning.device", c.device] if c.device != LearningConfig.device else []
    imports = ["--import", *code] if (code := needed_code(config)) else []
    flags = ["--forget", "--learning.algorithm", c.algorithm, *preset, *device, *imports]
    return shlex.join(["headrace", "tune", config.env, *flags])


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Turns an `OSError` into a `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}. XDG_CONFIG_HOME may name another folder") from error


def _save(file: Path, settings: Settings, trials: Iterable[Trial]) -> None:
    from headrace.runs.system_facts import system_facts

    rows = [{"settings": t.settings, "steps_per_second": t.rates, "error": t.error} for t in trials]
    with _writing(file):
        write_whole(file, json.dumps({"settings": settings, "trials": rows, "machine": system_facts()}, indent=2) + "\n")


# -- what is tried ---------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One candidate and its measurements."""

    settings: Settings
    rates: list[float] = field(default_factory=list)  # steps per second learned from, of each of its trainings
    error: str = ""

    @property
    def rate(self) -> float:
        """Mean steps per second; 0 before the first measurement and for a candidate that failed."""
        return mean(self.rates) if self.rates and not self.error else 0.0


def single_changes(config: Config, fixed: Collection[str], batch_sizes: Iterable[int] = ()) -> list[Settings]:
    """The alternatives to `config`, changed one at a time (workers and environments together), `fixed` settings left alone."""
    s, cores = config.sampling, len(os.sched_getaffinity(0))
    workers = sorted({s.num_workers, max(1, cores // 2), cores, 2 * cores})
    if "sampling.num_workers" in fixed:
        workers = [s.num_workers]
    totals = (2 * config.num_envs, config.num_envs, config.num_envs // 2)
    kinds: list[list[Settings]] = [
        [{"sampling.num_workers": n, "sampling.envs_per_worker": total // n} for total in totals for n in workers],
        [{"sampling.placement": "inline" if s.placement == "served" else "served"}],
        [{"sampling.num_groups": 1}],  # on busy cores double buffering gains nothing, and larger groups cost less per step
        [{"learning.num_threads": n} for n in sorted({max(1, cores // 2), cores, 1}) if config.device == "cpu"],
        [{"sampling.min_request_groups": n} for n in (config.total_groups, 1) if s.placement == "served"],
        [{"sampling.num_policy_workers": n} for n in (1, 2) if s.placement == "served" and n <= cores // 2],
        [{"learning.batch_size": n} for n in batch_sizes],
    ]
    # Of every kind one before the second of any: on a slow machine there is no time for all.
    alternatives = [a for nth in zip_longest(*kinds) for a in nth if a]
    flat = _effective(config)
    changed = ({name: value for name, value in a.items() if flat[name] != value} for a in alternatives)
    different = {json.dumps(a, sort_keys=True): a for a in changed}.values()
    return [a for a in different if a and not set(a) & set(fixed) and _possible(config, a)]


def _effective(config: Config) -> Settings:
    """The tunable settings with what None stands for."""
    found = {name: attrgetter(name)(config) for name in TUNABLE}
    found["learning.num_threads"] = config.learner_threads
    found["sampling.min_request_groups"] = config.min_request_groups
    return found


def _possible(config: Config, settings: Settings) -> bool:
    try:
        check_config(configs.override(config, **settings))
    except ConfigError:
        return False
    return True


def combined(config: Config, default: Trial, singles: list[Trial]) -> Settings:
    """The best change of every setting that seems to help, combined."""
    together: Settings = {}
    for trial in sorted(singles, key=lambda t: -t.rate):
        mixed = trial.settings | together  # what helped more goes first
        if trial.rate > HELPS * default.rate and not set(trial.settings) & set(together) and _possible(config, mixed):
            together = mixed
    return together


def ratio(candidate: Trial, default: Trial) -> tuple[float, float]:
    """How many times as fast a candidate is as the defaults, and the standard error of that number (infinite for one pair). Both
    were measured in turns, so that what else the machine does slows down both."""
    ratios = [a / b for a, b in zip(candidate.rates, default.rates, strict=True)]
    return mean(ratios), stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf


# -- measuring -------------------------------------------------------------------------------------------------------------


def measure(config: Config, spec: EnvSpec, seconds: float) -> float:
    """Train for about `seconds` seconds after the first update; the steps learned from per second, from the end of one update to
    the end of another. Raises what training raises."""
    from headrace.learning.algorithm import make_agent
    from headrace.population.members import make_members
    from headrace.sampling.placements import make_placement
    from headrace.sampling.placements.base import RunFailed
    from headrace.train import learn

    placement = make_placement(config, spec, make_agent, make_members(config, spec))
    updates: list[tuple[float, float]] = []
    began = monotonic()
    try:
        placement.start(learn)
        while True:
            for message in placement.messages(timeout=0.1):
                # The learner also reports while it waits; only an update moves the step.
                if message.kind == "metrics" and message.content["global_step"] > (updates[-1][0] if updates else 0):
                    updates.append((message.content["global_step"], monotonic()))
            elapsed = monotonic() - (updates[0][1] if updates else began)
            if len(updates) < 2 and elapsed > SLOWEST:
                raise RunFailed(f"an update takes more than {SLOWEST:.0f} s")
            # A rate of one update or two is a rough one, but time is limited.
            if len(updates) > 1 and elapsed > seconds * (1 if len(updates) > 3 else 3):
                (first, since), (last, until) = updates[0], updates[-1]
                return (last - first) / (until - since)
    finally:
        placement.kill()


# -- the search ------------------------------------------------------------------------------------------------------------


@dataclass
class Search:
    """Tries candidates until the time is over. `show` is called with lines for the user."""

    config: Config
    spec: EnvSpec
    seconds: float
    show: Callable[[str], None]
    began: float = field(default_factory=monotonic)
    took: list[float] = field(default_factory=list)  # seconds of each trial beside its measurement: starting, the first update

    @property
    def left(self) -> float:
        return self.seconds - (monotonic() - self.began)

    def measure(self, trial: Trial, share: float) -> None:
        """Measure a candidate in about `share` seconds."""
        overhead = mean(self.took) if self.took else share / 2
        seconds, began = max(1.0, share - overhead), monotonic()
        try:
            trial.rates.append(measure(configs.override(self.config, **trial.settings), self.spec, seconds))
        except (RuntimeError, MemoryError, OSError) as error:  # such as too many processes for this machine's memory
            if not trial.settings:  # what does not train at all cannot be tuned
                raise
            trial.error = (str(error).strip() or type(error).__name__).splitlines()[-1]
        self.took.append(max(0.0, monotonic() - began - seconds))
        minutes, seconds = divmod(max(0.0, self.left), 60)
        result = trial.error or f"{trial.rates[-1]:,.0f} steps/s"
        self.show(f"{minutes:.0f}:{int(seconds):02} left  {describe(trial.settings)}: {result}")

    def run(self, fixed: Collection[str], batch_sizes: Iterable[int]) -> tuple[Settings, str, list[Trial]]:
        """The settings to keep, why, and everything tried, the defaults first. If trials take longer than expected, the last
        candidates are not tried."""
        default, until = Trial({}), FINAL * self.seconds
        singles = [Trial(settings) for settings in single_changes(self.config, fixed, batch_sizes)]
        for i, trial in enumerate([default, *singles]):
            share = (self.left - until) / (1 + len(singles) - i)
            if i == 0 or self.left - until > mean(self.took):
                self.measure(trial, share)
        trials = [default, *sorted(singles, key=lambda t: -t.rate)]
        if not (together := combined(self.config, default, singles)):
            tried = any(trial.rates or trial.error for trial in singles)
            why = "nothing seemed faster than the defaults" if tried else "there was no time to try anything else (--minutes)"
            return {}, why, trials
        first, best = Trial({}), Trial(together)  # afresh: the best of many single trials is partly the luckiest
        faster, found = self.compare(first, best)
        why = found if faster else f"{describe(together)} is not clearly faster ({found})"
        return together if faster else {}, why, [first, best, *trials]

    def compare(self, default: Trial, best: Trial) -> tuple[bool, str]:
        """Measure both in turns until it is clear which one is faster or the time is over. Returns whether `best` is, and what
        was found."""
        share = self.left / (4 * PAIRS)  # twice as many as needed, if the difference is small
        while True:
            for trial in (default, best):
                self.measure(trial, share)
            if best.error:
                return False, best.error
            times, error = ratio(best, default)
            found = f"{times - 1:+.0%} ± {error:.0%} against the defaults, of {len(best.rates)} trainings each"
            if len(best.rates) >= PAIRS:
                if times > HELPS and times - 1 > ERRORS * error:
                    return True, found
                if times + ERRORS * error < HELPS or self.left < 2 * share:
                    return False, found


def describe(settings: Settings) -> str:
    """The settings in a few words."""
    words = [f"{name.partition('.')[2]} {value}" for name, value in settings.items()]
    return ", ".join(words) or "the defaults"


def tune(config: Config, minutes: float, fixed: Collection[str], batch_sizes: Iterable[int]) -> Settings:
    """Find the fastest settings for `config` on this machine, write them where `headrace train` finds them, and return them.

    `fixed` are dotted settings that stay as they are. Raises `ConfigError` for what cannot be tuned, and what training raises if
    it does not work with the defaults.
    """
    from headrace.envs.make import describe_run

    check_config(config)
    if config.uses_replay:
        raise ConfigError("headrace tune compares steps learned from per second; with replay, learning is not tied to steps")
    if (placement := config.sampling.placement) in ("serial", "device"):
        raise ConfigError(
            f"headrace tune tries placements with several processes; `{placement}` has nothing to choose. For one of those "
            "give --placement served, here and to headrace train"
        )
    with _writing(file := path(config)):  # noticed before the search
        file.parent.mkdir(parents=True, exist_ok=True)
    config = for_agents(config, spec := describe_run(config))
    settings, why, trials = Search(_endless(config), spec, 60 * minutes, print).run(fixed, batch_sizes)
    print("\n" + "\n".join(_table(trials)))
    print(f"\n{describe(settings)}: {why}")
    if not any(trial.settings and (trial.rates or trial.error) for trial in trials):
        print("Nothing is written, and what was found before stays")
        return load(config)
    _save(file, settings, trials)
    use = "headrace train starts from it and says so" if settings else "it says that the defaults are best here"
    print(f"{file}: {use}; your own flags win; {how_to_forget(config)} removes it")
    return settings


def _endless(config: Config) -> Config:
    """`config` without an end or checkpoints, so that nothing is written to the run folder, which does not exist."""
    folder = Path(tempfile.gettempdir()) / f"headrace-tune-{os.getpid()}"
    saves = {"run.checkpoint_interval": 1e9, "run.eval_interval_steps": None, "run.milestone_steps": None}
    ends = {"learning.total_steps": 10**12, "run.goal": None, "run.max_minutes": None}
    return configs.override(config, **saves, **ends, **{"run.folder": str(folder), "run.log_interval": 0.0})


def _table(trials: list[Trial]) -> list[str]:
    lines = [f"{'steps/s':>9}  {'trials':>6}  settings"]
    for t in trials:
        result = f"{t.rate:>9,.0f}  {len(t.rates):>6}" if t.rate else f"{'-':>9}  {'':>6}"
        failed = "" if t.rate else f": {t.error or 'no time left'}"
        lines.append(f"{result}  {describe(t.settings)}{failed}")
    return lines
