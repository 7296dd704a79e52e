"""The interface through which sampling sees the members of a multi-agent run; `headrace.population.members` implements it.

A *member* can act for an agent: a policy that learns, a past version of one, or an opponent. Past versions and opponents are
*static*: they act and never learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headrace.config import Config
from headrace.shm.population import Standings


@dataclass
class StaticMember:
    """A member that never learns."""

    config: Config | None = None  # None: a scripted opponent
    weights: dict[str, Any] | None = None
    """The state of its model. None: a scripted opponent, or a past version, which gets its weights later."""


class Matches(Protocol):
    """The matches of one rollout worker. Matches played at the same time have different numbers."""

    def begin(self, number: int, outcomes: Callable[[], np.ndarray]) -> Sequence[int]:
        """Choose the member that acts for each agent of match `number`, which is about to begin. If this number had a match
        before, its result is counted: `outcomes` returns the outcome of each agent (float64 [A]; more is better)."""

    def act(self, member: int, observation: dict[str, np.ndarray], action: np.ndarray) -> None:
        """Let a scripted opponent act on `observation` ([1, ...] by name) and write its action to `action` [1, A]."""

    def get_state(self) -> dict[str, Any]:
        """For an exact resume."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`."""


class Members(Protocol):
    """The static members of a multi-agent run."""

    static: list[StaticMember]  # `num_past` past versions of each policy, then the opponents
    num_past: int

    def matches(self, worker: int, standings: Standings, seed: int) -> Matches:
        """The matches of a rollout worker."""
