"""The state of a rollout worker's lanes and groups: their slots and rows, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.envs.core.contract import EnvGroup, LaneRow, ObsRow

Busy = Literal["", "slots", "match slots", "reset", "step"]
"""What a group waits for. "slots": free slots, to request actions. "match slots": free slots for the agents of new matches, to
step its environments. "reset", "step": its environments; call `recv`. "": actions."""


@dataclass
class Lane:
    """Agents that act together, with their current slot and row."""

    number: int
    policy: int
    slot: int = -1  # -1: the lane has none
    finished: int = 0  # slots that the lane has finished
    t: int = 0  # the current row. -1: the next observation is written to row 0 (multi-agent environments).
    last: ObsRow | None = None
    """A copy of row T of the previous slot, which becomes row 0 of the next; None: the environments write row 0."""
    rows: list[LaneRow] = field(default_factory=list)  # views of the slot's rows 0 to T-1
    before: LaneRow | None = None
    """What the environments write while `t` is -1: the observation of row 0, and rewards and flags that are never read."""

    @property
    def row(self) -> LaneRow:
        """The row to write the next step to."""
        assert self.before is not None
        return self.rows[self.t] if self.t >= 0 else self.before


@dataclass
class Group:
    """Environments stepped together, and the lanes of their agents."""

    number: int
    envs: EnvGroup
    lanes: list[Lane]
    busy: Busy = ""
    reward_weights: dict[str, float] | None = None  # the reward weights that its environments have; None: those of the settings
    reward_updates: int = 0  # `PopulationMemory.reward_updates` of its policy when the weights were last compared
    seed: int | None = None  # reset the environments with this seed as soon as all lanes have slots; None: no reset is due

    def __post_init__(self) -> None:
        self.set_acting(self.lanes)
        self.new_matches: Sequence[int] = ()  # matches that the next step begins
        self.rows: list[LaneRow] = [None] * len(self.lanes)  # type: ignore[list-item]  # reused by every step

    def set_acting(self, lanes: list[Lane]) -> None:
        """Set the lanes that have a new observation and need an action."""
        self.acting, self.acting_numbers = lanes, [lane.number for lane in lanes]
