"""Doom's buttons as independent choices.

Buttons that exclude each other form one choice: forward or backward, left or right, one of seven weapons. Turning by a delta
button is a choice among 21 angles from -12.5 to 12.5 degrees in steps of 1.25. With all buttons these are the seven heads of
Table A.4 in Petrenko et al. 2020 (Sample Factory): moving 3, strafing 3, attack 2, sprint 2, interact 2, weapon 8, aim 21.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.config import ConfigError

WEAPONS = tuple(f"SELECT_WEAPON{slot}" for slot in range(1, 8))
FULL_BUTTONS = (
    *("MOVE_FORWARD", "MOVE_BACKWARD", "MOVE_RIGHT", "MOVE_LEFT", "ATTACK", "SPEED", "USE"),
    *WEAPONS,
    "TURN_LEFT_RIGHT_DELTA",
)
"""The buttons of Table A.4."""

AIM_DEGREES = 12.5  # largest angle (degrees per frame) of the aim choice
AIM_CHOICES = 21  # number of angles of the aim choice, in equal steps; odd, so that the middle one is 0

_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("moving", ("MOVE_FORWARD", "MOVE_BACKWARD")),
    ("strafing", ("MOVE_RIGHT", "MOVE_LEFT")),
    ("attack", ("ATTACK",)),
    ("sprint", ("SPEED",)),
    ("interact", ("USE",)),
    ("weapon", WEAPONS),
)
_LEFT_OUT_WITH = {
    "TURN_LEFT": "TURN_LEFT_RIGHT_DELTA",
    "TURN_RIGHT": "TURN_LEFT_RIGHT_DELTA",
    "MOVE_LEFT_RIGHT_DELTA": "MOVE_LEFT",
    "MOVE_FORWARD_BACKWARD_DELTA": "MOVE_FORWARD",
    "SELECT_NEXT_WEAPON": "SELECT_WEAPON1",
    "SELECT_PREV_WEAPON": "SELECT_WEAPON1",
}
"""Button -> the button that replaces it if available, since it does the same more finely or more directly."""
_LEFT_OUT = frozenset({"STRAFE", "LOOK_UP_DOWN_DELTA"})
"""STRAFE makes the turning buttons strafe; these levels need no vertical aim."""

LARGEST_SINGLE_CHOICE = 18
"""With up to this many combinations, all choices together form one Discrete space; with more they stay independent."""


@dataclass(frozen=True)
class Head:
    """One independent choice. `presses` [choices, buttons]: the value of each button for each choice."""

    name: str
    presses: np.ndarray


def heads_for(buttons: Sequence[str], aim_degrees: float = AIM_DEGREES, aim_choices: int = AIM_CHOICES) -> list[Head]:
    """The independent choices for these buttons, in the order of Table A.4, then one for each remaining button."""
    angles = np.linspace(-aim_degrees, aim_degrees, aim_choices)
    used = [b for b in buttons if b not in _LEFT_OUT and _LEFT_OUT_WITH.get(b) not in buttons]
    heads, placed = [], set[str]()
    for name, group in (*_CHOICES, ("aim", ("TURN_LEFT_RIGHT_DELTA",)), ("turning", ("TURN_RIGHT", "TURN_LEFT"))):
        available = [b for b in group if b in used]
        if available:
            placed.update(available)
            heads.append(_head(name, available, buttons, angles))
    heads += [_head(b.lower(), [b], buttons, angles) for b in used if b not in placed]
    if not heads:
        raise ConfigError(
            f"no action can be formed of the buttons {list(buttons)}; Doom ignores all available_buttons of a file if it does "
            "not know one of them"
        )
    return heads


def combine(heads: Sequence[Head]) -> list[Head]:
    """One head of all combinations if there are at most `LARGEST_SINGLE_CHOICE`, else the heads unchanged."""
    if int(np.prod([len(head.presses) for head in heads])) > LARGEST_SINGLE_CHOICE:
        return list(heads)
    presses = heads[0].presses
    for head in heads[1:]:
        presses = (presses[:, None] + head.presses[None]).reshape(-1, presses.shape[1])
    return [Head("+".join(head.name for head in heads), presses)]


def _head(name: str, group: Sequence[str], buttons: Sequence[str], angles: np.ndarray) -> Head:
    if len(group) == 1 and group[0].endswith("_DELTA"):
        presses = np.zeros((len(angles), len(buttons)))
        presses[:, buttons.index(group[0])] = angles
        return Head(name, presses)
    presses = np.zeros((1 + len(group), len(buttons)))
    for choice, button in enumerate(group, start=1):
        presses[choice, buttons.index(button)] = 1
    return Head(name, presses)
