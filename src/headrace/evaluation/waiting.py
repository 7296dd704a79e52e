"""What an evaluation waits for: an environment may not answer, or its episodes may have no end, so those are named."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from types import TracebackType

from headrace.config import Config, EnvConfig, override
from headrace.envs.contract import EnvGroup

QUIET = 60.0
"""Seconds without the end of an episode after which there is a warning. The next one comes after twice as long, and so on."""
SILENT = 30.0
"""Seconds that an environment may take for a step or a reset before there is a warning. The next one comes after twice as long,
and so on."""
LOOK_INTERVAL = 0.5
"""Seconds between two looks whether an environment has answered."""
LISTED = 3
"""Environments that a warning names."""
LIMIT = (
    "What has no end needs a limit in steps: --max-episode-steps of headrace eval and play, max_episode_steps in Python, "
    "envs.max_episode_steps of a run"
)


def with_limit(config: Config, max_episode_steps: int | None) -> EnvConfig:
    """The settings of a run's environment; their longest episode (steps) is `max_episode_steps` where that is given. Raises
    `ConfigError` for a number below 1."""
    if max_episode_steps is None:
        return config.envs
    return override(config, **{"envs.max_episode_steps": max_episode_steps}).envs


def at_limit(lengths: list[int], options: EnvConfig) -> int:
    """How many episodes of these lengths (steps) are as long as `options` allow."""
    limit = options.max_episode_steps
    return 0 if limit is None else sum(length >= limit for length in lengths)


class Waiting:
    """Warns (`UserWarning`) where none of the episodes that are waited for has ended for long.

    Args:
        what: "episode" or "match".
        wanted: how many are to be played.
        advice: what the user can do.
    """

    def __init__(self, what: str, wanted: int, advice: str = LIMIT) -> None:
        self._what, self._wanted, self._advice = what, wanted, advice
        self._ended, self._since, self._quiet = 0, monotonic(), QUIET

    def look(self, ended: int, steps: Callable[[], Mapping[int, int]]) -> None:
        """Call it after every step. `ended`: episodes so far; `steps`: gives the step (of its episode) of each environment that
        is waited for."""
        now = monotonic()
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


class Answers:
    """Warns (`UserWarning`) while an environment does not answer. It does so from a thread of its own, since the thread that made
    this object waits for the environment; so an environment in C++ that keeps Python's lock also keeps the warning.

    Args:
        who: names the environment that was called last.
    """

    def __init__(self, who: Callable[[], str]) -> None:
        self._who, self._caller = who, threading.get_ident()
        self._called_at: float | None = None
        """When the environment was called that has not answered yet (monotonic)."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="answers", daemon=True)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """An environment is called, and answers, within this context."""
        self._called_at = monotonic()
        try:
            yield
        finally:
            self._called_at = None

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        looked = awake_since = monotonic()
        since, limit = None, SILENT
        while not self._closed.wait(LOOK_INTERVAL):
            now = monotonic()
            if now - looked > LOOK_INTERVAL + 5:  # the whole process was stopped (Ctrl-Z)
                awake_since = now
            looked, called_at = now, self._called_at
            if called_at is None:
                continue
            if called_at != since:
                since, limit = called_at, SILENT
            if (silent := now - max(called_at, awake_since)) >= limit:
                limit = 2 * silent
                warnings.warn(f"no answer for {silent:.0f} s from {self._who()}; {self._place()}", stacklevel=1)

    def _place(self) -> str:
        """Where the thread is that waits."""
        frame = sys._current_frames().get(self._caller)
        if frame is None:
            return "the thread that called it has ended"
        innermost = traceback.extract_stack(frame, limit=1)[0]
        return f'the call is at "{innermost.filename}", line {innermost.lineno}, in {innermost.name}'
