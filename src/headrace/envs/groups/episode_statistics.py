"""Returns and lengths of episodes, for groups of all kinds.

The learner sees an *episode* end where `terminated` or `truncated` is true. Statistics report whole *games*. A game ends with the
same step, unless the step's info says ``"life_lost": True``: then the environment's next reset continues the game, and its return
and length go on.

Statistics are of unscaled, unclipped rewards. They are written to the row of the step that ended the game
(`StepRow.episode_return`, `StepRow.episode_length`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.envs.core.contract import StepRow

if TYPE_CHECKING:  # groups of NumPy arrays are made in processes without torch
    from torch import Tensor

LIFE_LOST = "life_lost"
"""Info key: this step ended a training episode but not the game."""
PLAYED_STEPS, PLAYED_RETURN = "played_steps", "played_return"
"""Info keys of a reset of vector environments that begin in the middle of games: steps and return of the games before."""
OBJECTIVE = "true_objective"
"""Info key at the end of a game: the number by which population-based training compares policies (`pbt.objective`)."""
OUTCOME = "outcome"
"""Info key: the number by which the agents of a match are compared when it ends. NaN: the match was aborted."""


def objective_of(info: Mapping[str, Any]) -> float:
    """`OBJECTIVE` in the info of an episode's last step. Raises `KeyError` without it."""
    if OBJECTIVE not in info:
        raise KeyError(f"pbt.objective {OBJECTIVE}: the info of the last step has none, only {sorted(info)}")
    return float(info[OBJECTIVE])


class EpisodeStatistics:
    """Statistics of single-agent environments, as NumPy arrays [E]."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, np.float64)
        """Raw returns of the games so far."""
        self.lengths = np.zeros(num_envs, np.int32)
        """Their lengths in steps."""
        self.games = np.zeros(num_envs, np.int64)
        """Games that ended before."""

    def begin(self, infos: Mapping[str, Any] | None = None) -> None:
        """Begin the first games, in the middle if the reset's infos say so."""
        self.games[:] = 0
        self.lengths[:] = 0
        self.returns[:] = 0
        if infos and PLAYED_STEPS in infos:
            self.lengths[:], self.returns[:] = infos[PLAYED_STEPS], infos[PLAYED_RETURN]

    def step(
        self, now: StepRow, raw: np.ndarray, counted: np.ndarray, ended: np.ndarray, life_lost: np.ndarray | None = None
    ) -> None:
        """Add a step with these raw rewards, and write the statistics of games that are over to `now`.

        `counted`: False where the step was only a reset. `ended`: an episode ended. `life_lost`: only the episode ended, not the
        game.
        """
        self.returns += raw
        self.lengths += counted
        now.episode_return[:] = np.nan
        now.episode_length[:] = 0
        if ended.any():
            over = ended if life_lost is None else ended & ~life_lost
            np.copyto(now.episode_return, self.returns, where=over, casting="same_kind")
            np.copyto(now.episode_length, self.lengths, where=over)
            self.returns[over] = 0
            self.lengths[over] = 0
            self.games += over

    def get_state(self) -> dict[str, Any]:
        """The statistics, under the names that they have in checkpoints."""
        return {"_returns": self.returns.copy(), "_lengths": self.lengths.copy(), "_games": self.games.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        self.returns[:], self.lengths[:], self.games[:] = state["_returns"], state["_lengths"], state["_games"]


class TensorStatistics:
    """The same as tensors, without waiting for their device. `returns`: float64 zeros [N]; `lengths`: int32 zeros [N]."""

    def __init__(self, returns: Tensor, lengths: Tensor) -> None:
        self.returns, self.lengths = returns, lengths
        self._nan = returns.new_full((), math.nan)

    def begin(self, infos: Mapping[str, Any] | None = None) -> None:
        """See `EpisodeStatistics.begin`."""
        self.returns.zero_()
        self.lengths.zero_()
        if infos and PLAYED_STEPS in infos:
            self.lengths.copy_(self.lengths.new_tensor(infos[PLAYED_STEPS]))
            self.returns.copy_(self.returns.new_tensor(infos[PLAYED_RETURN]))

    def step(self, now: StepRow, raw: Tensor, counted: Tensor | int, over: Tensor) -> None:
        """Add a step with these raw rewards, and write the statistics of games that are `over` to `now`. `counted`: False where
        the step was only a reset."""
        self.returns += raw
        self.lengths += counted
        now.episode_return.copy_(self.returns.where(over, self._nan))
        now.episode_length.copy_(self.lengths * over)
        self.returns.masked_fill_(over, 0.0)
        self.lengths.masked_fill_(over, 0)

    def get_state(self) -> dict[str, Any]:
        """Returns and lengths of the games so far, on the CPU."""
        return {"returns": self.returns.to("cpu", copy=True), "lengths": self.lengths.to("cpu", copy=True)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        self.returns.copy_(state["returns"])
        self.lengths.copy_(state["lengths"])


class MatchStatistics:
    """Statistics of the agents of one match, whose episodes begin and end one by one, as lists: numbers are added one by one."""

    def __init__(self, agents: int) -> None:
        self.returns = [0.0] * agents
        """Raw returns of the episodes."""
        self.lengths = [0] * agents
        """Actions of the episodes."""

    def begin(self, agent: int) -> None:
        """Begin an agent's episode."""
        self.returns[agent], self.lengths[agent] = 0.0, 0

    def end(self, agent: int, now: StepRow, info: Mapping[str, Any]) -> None:
        """End an agent's episode with this info, and write its statistics unless the match was aborted: its return is unknown."""
        if not math.isnan(info.get(OUTCOME, 0.0)):
            now.episode_return[0], now.episode_length[0] = self.returns[agent], self.lengths[agent]
            if now.episode_objective is not None:
                now.episode_objective[0] = objective_of(info)
        self.returns[agent] = 0.0
