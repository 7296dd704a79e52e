"""Episodes that are waited for: an environment may have no end, so those that go on for long are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from time import monotonic

from headrace.config import Config, EnvConfig, override

QUIET = 60.0
"""Seconds without the end of an episode after which there is a warning. The next one comes after twice as long, and so on."""
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
