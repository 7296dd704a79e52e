"""What `headrace.train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.envs.core.contract import EnvSpec


@dataclass
class TrainResult:
    """How a run ended. `spec`: what the agents of its environment observe and do."""

    folder: str
    reason: str
    """"total_steps", "goal", "max_minutes", "no_samples" or "interrupted"; with several policies that of the first."""
    global_step: int
    """Steps learned from, over all policies."""
    mean_return: float
    """Mean return of the last 100 episodes (of the first policy); NaN if none has ended."""
    spec: EnvSpec
