"""Warnings about environments that do not answer, and about episodes that have no end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

from headrace.config import Config, EnvConfig, override
from headrace.envs.core.contract import EnvGroup
from headrace.envs.core.settings import without
from headrace.processes.hangs import HangDetector

QUIET = 60.0
"""Seconds without the end of an episode after which there is a warning. The next one comes after twice as long, and so on."""
SILENT = 30.0
"""Seconds that an environment may take for a step or a reset before there is a warning. The next one comes after twice as long,
and so on."""
LOOK_INTERVAL = 0.5  # seconds between two looks whether an environment has answered
LISTED = 3  # environments that a warning names
LIMIT = (
    "What has no end needs a limit in steps: --max-episode-steps of headrace eval and play, max_episode_steps in Python, "
    "envs.max_episode_steps of a run"
)


def with_limit(config: Config, max_episode_steps: int | None) -> EnvConfig:
    """The settings of a run's environment; their longest episode (steps) is `max_episode_steps` where that is given, of every
    task. Raises `ConfigError` for a number below 1."""
    if max_episode_steps is None:
        return config.envs
    of_tasks = without(config.envs.task_options, {"envs.max_episode_steps"}, {})
    return override(config, **{"envs.max_episode_steps": max_episode_steps, "envs.task_options": of_tasks}).envs


def at_limit(lengths: list[int], options: EnvConfig) -> int:
    """How many episodes of these lengths (steps) are as long as `options` allow."""
    limit = options.max_episode_steps
    return 0 if limit is None else sum(length >= limit for length in lengths)


class EndlessEpisodes:
    """Warns (`UserWarning`) where no episode has ended for long.

    Args:
        what: "episode" or "match".
        wanted: how many are to be played.
        advice: what the user can do.
    """

    def __init__(self, what: str, wanted: int, advice: str = LIMIT) -> None:
        self._what, self._wanted, self._advice = what, wanted, advice
        self._ended, self._since, self._quiet = 0, perf_counter(), QUIET

    def look(self, ended: int, steps: Callable[[], Mapping[int, int]]) -> None:
        """Call it after every step. `ended`: episodes so far; `steps`: gives the step (of its episode) of each environment whose
        episode is to end."""
        now = perf_counter()
        if ended != self._ended:
            self._ended, self._since, self._quiet = ended, now, QUIET
        elif now - self._since >= self._quiet:
            self._quiet = 2 * (now - self._since)
            longest = sorted(steps().items(), key=lambda item: -item[1])
            named = [f"environment {number} is at step {step:,}" for number, step in longest[:LISTED]]
            more = f", {len(longest) - LISTED} more play" if len(longest) > LISTED else ""
            warnings.warn(
                f"no {self._what} has ended for {now - self._since:.0f} s, {ended} of {self._wanted} so far: "
                f"{', '.join(named)}{more}. {self._advice}",
                stacklevel=3,
            )


def environment_of(group: EnvGroup) -> str:
    """The environment of a group that was called last, in words; of one that steps them together, all of them."""
    if group.called is None:
        return f"the {group.num_envs} environments of {group.spec.name}"
    return f"environment {group.called} of {group.spec.name}"


class HungEnvironments(HangDetector):
    """Warns (`UserWarning`) while an environment does not answer the thread that has entered this context. The warning comes from
    another thread; so an environment in C++ that keeps Python's lock also keeps the warning. `who`: names the environment that
    was called last."""

    def __init__(self, who: Callable[[], str]) -> None:
        super().__init__(LOOK_INTERVAL)
        self._who = who
        self._called_at: float | None = None  # when the environment was called that has not answered yet (perf_counter)
        self._warned_at: float | None = None  # `_called_at` of the call that `_limit` is for
        self._limit = SILENT

    @contextmanager
    def expected(self) -> Iterator[None]:
        """An environment is called, and answers, within this context."""
        self._called_at = perf_counter()
        try:
            yield
        finally:
            self._called_at = None

    def __enter__(self) -> HungEnvironments:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._thread.join()

    def last_sign(self) -> float | None:
        """When the environment was called, if it has not answered."""
        return self._called_at

    def look(self, silent: float) -> None:
        """Warn after `SILENT` seconds, and again whenever the silence has doubled."""
        if (called_at := self._called_at) != self._warned_at:
            self._warned_at, self._limit = called_at, SILENT
        if silent >= self._limit:
            self._limit = 2 * silent
            warnings.warn(f"no answer for {silent:.0f} s from {self._who()}; {self._place()}", stacklevel=1)

    def _place(self) -> str:
        if (stack := self.stack()) is None:
            return "the thread that called it has ended"
        return f'the call is at "{stack[-1].filename}", line {stack[-1].lineno}, in {stack[-1].name}'
