"""Returns and lengths of the episodes of single-agent environments, in groups of all kinds. (`groups.match` counts those of the
agents of a match.)

The learner sees an *episode* end where `terminated` or `truncated` is true. Statistics report whole *games*. A game ends with the
same step, unless the step's info says ``"life_lost": True``: then the environment's next reset continues the game, and its return
and length go on.

Statistics are of unscaled, unclipped rewards. They are written to the row of the step that ended the game
(`StepRow.episode_return`, `StepRow.episode_length`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.config.errors import ConfigError
from headrace.envs.core.contract import OBJECTIVE, Array, StepRow, on_host

LIFE_LOST = "life_lost"  # info key: this step ended a training episode but not the game
PLAYED_STEPS, PLAYED_RETURN = "played_steps", "played_return"
"""Info keys of a reset of vector environments that begin in the middle of games: steps and return of the games before."""
OUTCOME = "outcome"  # info key: the number by which the agents of a match are compared when it ends. NaN: the match was aborted.


def numbers_of(info: Mapping[str, Any], names: Sequence[str], shape: tuple[int, ...] = ()) -> list[Array]:
    """The numbers, of this shape, under these names in the info, or infos by key, of a game's last step. Raises `ConfigError` for
    a name that is not there, or is not that of numbers."""
    numbers: list[Array] = []
    for name in names:
        try:
            numbers.append(np.asarray(info[name], np.float32).reshape(shape))
        except (KeyError, TypeError, ValueError):
            setting = "pbt.objective" if name == OBJECTIVE else "envs.info_metrics"
            what = f"no such key, only {sorted(map(str, info))}" if info else "no keys"
            if name in info:
                what = f"{info[name]!r:.60}, which is no number"
            raise ConfigError(f"{setting} {name}: the info of an episode's last step has {what}") from None
    return numbers


class EpisodeStatistics:
    """Statistics of N single-agent environments: NumPy arrays, or tensors of a device for which the host never waits. `library`:
    numpy or torch. `kind`: arguments of its `zeros`, such as `device`."""

    def __init__(self, num_envs: int, library: Any = np, **kind: Any) -> None:
        self.returns: Array = library.zeros(num_envs, dtype=library.float64, **kind)  # [N]: raw returns of the games so far
        self.lengths: Array = library.zeros(num_envs, dtype=library.int32, **kind)  # [N]: their lengths in steps
        self.games: Array = library.zeros(num_envs, dtype=library.int64, **kind)  # [N]: games that ended before
        self._library = library

    def begin(self, infos: Mapping[str, Any] | None = None) -> None:
        """Begin the first games, in the middle if the reset's infos say so."""
        self.games[:] = 0
        for numbers, key in ((self.lengths, PLAYED_STEPS), (self.returns, PLAYED_RETURN)):
            numbers[:] = self._library.asarray((infos or {}).get(key, 0))

    def step(self, now: StepRow, raw: Array, counted: Array | int, over: Array) -> None:
        """Add a step with these raw rewards [N], and write the statistics of games that are `over` [N] to `now`. `counted`: False
        where the step was only a reset."""
        self.returns += raw
        self.lengths += counted
        if self._library is np and not over.any():  # as in most steps; a device would have to be waited for
            now.episode_return.fill(math.nan)
            now.episode_length.fill(0)
            return
        now.episode_return[:] = self._library.where(over, self.returns, math.nan)
        now.episode_length[:] = self.lengths * over
        self.returns *= ~over
        self.lengths *= ~over
        self.games += over

    def get_state(self) -> dict[str, Any]:
        """The statistics, under the names that they have in checkpoints."""
        return {"_returns": on_host(self.returns), "_lengths": on_host(self.lengths), "_games": on_host(self.games)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`. Older states of tensors have names without the underscore."""
        for name in ("returns", "lengths", "games"):
            getattr(self, name)[:] = state[f"_{name}"] if f"_{name}" in state else state[name]
