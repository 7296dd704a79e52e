"""Lanes and groups as a rollout worker knows them: which slot and row they are in, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.envs.contract import EnvGroup, LaneRow, ObsRow


@dataclass
class Lane:
    """Agents that act together, and the row of the slot whose action they wait for."""

    number: int
    policy: int
    slot: int = -1
    """-1: it needs one."""
    finished: int = 0
    """Slots so far."""
    t: int = 0
    """The row that the lane acts on. -1: none yet, the next observation is written to row 0 (multi-agent environments)."""
    last: ObsRow | None = None
    """A copy of row T of the slot before, to become row 0 of the next; None: the environments' first observation does."""
    rows: list[LaneRow] = field(default_factory=list)
    """Views of the slot's rows 0 to T-1."""
    before: LaneRow | None = None
    """What the environments write where `t` is -1: rewards and ends, which nobody reads, and the observation of row 0."""

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
    busy: Literal["", "slots", "seats", "reset", "step"] = ""
    """What the group waits for. slots: free slots, before it asks for actions. seats: free slots for the agents of matches that
    begin, before its environments are stepped. reset, step: its environments, so that `recv` has to be asked. "": actions."""
    reward_weights: dict[str, float] | None = None
    """Those that population-based training has given its environments last."""
    reward_updates: int = 0
    """How often its policy's had been changed then."""
    seed: int | None = None
    """With which the environments are reset as soon as there are slots."""

    def __post_init__(self) -> None:
        self.set_acting(self.lanes)
        self.new_matches: Sequence[int] = ()
        """Matches that the next step begins."""
        self.rows: list[LaneRow] = [None] * len(self.lanes)  # type: ignore[list-item]  # reused by every step

    def set_acting(self, lanes: list[Lane]) -> None:
        """These lanes have a new observation: they are asked for, or have been answered."""
        self.acting, self.acting_numbers = lanes, [lane.number for lane in lanes]
