"""Scales of game variables for networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SCALES: dict[str, tuple[float, float]] = {
    "HEALTH": (30, np.inf),
    "ARMOR": (30, np.inf),
    "AMMO": (15, 5),
    "SELECTED_WEAPON_AMMO": (15, 5),
    "KILLCOUNT": (10, np.inf),
    "FRAGCOUNT": (10, np.inf),
    "DEATHCOUNT": (10, np.inf),
    "HITCOUNT": (10, np.inf),
    "DAMAGECOUNT": (100, np.inf),
    "DAMAGE_TAKEN": (100, np.inf),
    "PLAYER_COUNT": (5, np.inf),
    "POSITION": (1000, np.inf),
    "VELOCITY": (10, np.inf),
    "ANGLE": (360, np.inf),
}
"""Divisor and upper limit of game variables, by the longest matching prefix of their name; others are not scaled."""

FULL_VARIABLES = (
    *("SELECTED_WEAPON", "SELECTED_WEAPON_AMMO", "HEALTH", "ARMOR", "KILLCOUNT", "FRAGCOUNT", "ATTACK_READY", "PLAYER_COUNT"),
    *(f"WEAPON{slot}" for slot in range(8)),
    *(f"AMMO{slot}" for slot in range(8)),
)
"""The measurements of Petrenko et al. 2020 (Sample Factory): what the status bar and the score board show a human player. 24
numbers: the 23 of its published code, and the score, which the paper adds."""


def scales(variables: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Divisor and upper limit of each variable: float64 [V] each."""
    found = np.array([_scale(variable) for variable in variables], np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _scale(variable: str) -> tuple[float, float]:
    prefixes = [prefix for prefix in SCALES if variable.startswith(prefix)]
    return SCALES[max(prefixes, key=len)] if prefixes else (1.0, np.inf)
