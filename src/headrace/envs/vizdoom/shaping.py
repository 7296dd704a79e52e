"""Reward shaping: a weighted term for each event of a player, such as a frag, a hit or ammunition found.

Weights are a dictionary of numbers, `EnvConfig.kwargs["shaping"]`, so that they can be searched over. They may change between any
two steps (`Shaping.weights`). The terms of a step are added to the scenario's own reward, which has a weight, too.

Terms and the weights of `PRESETS`: Petrenko et al. 2020 (Sample Factory), appendix A.3, and its published code (version 2.1),
which has the numbers of "bots" and "self_play". Two differences: the term of a held weapon uses the preference of its own slot,
not that of slot 7; and changes of health, armor, weapons and ammunition do not count in a step in which the player died or came
back to life. As there, ammunition that fits weapons of two slots counts for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from headrace.config import ConfigError

EVENTS: dict[str, tuple[str, int]] = {
    "frag": ("FRAGCOUNT", 1),
    "frag_lost": ("FRAGCOUNT", -1),
    "death": ("DEATHCOUNT", 1),
    "kill": ("KILLCOUNT", 1),
    "hit": ("HITCOUNT", 1),
    "damage": ("DAMAGECOUNT", 1),
    "hit_taken": ("HITS_TAKEN", 1),
    "damage_taken": ("DAMAGE_TAKEN", 1),
    "item": ("ITEMCOUNT", 1),
    "secret": ("SECRETCOUNT", 1),
}
"""Term -> its game variable, and the sign of the changes that count. A suicide takes a frag: `frag_lost`."""
STATES: dict[str, tuple[str, int]] = {
    "health": ("HEALTH", 1),
    "health_lost": ("HEALTH", -1),
    "armor": ("ARMOR", 1),
    "armor_lost": ("ARMOR", -1),
}
"""The same for variables that a death or a new life changes; these changes do not count."""
WEAPON_PREFERENCE = (0, 1, 1, 5, 5, 5, 10, 10)  # preference of a weapon and its ammunition, by slot 0 to 7: fists 0, the pistol 1
HOLDING_FRAMES = 5  # frames for which a weapon must be held before `weapon_held` counts
LIMITS = {"hit": 5.0, "damage": 200.0, "hit_taken": 5.0, "damage_taken": 200.0}
"""Most that a variable's change counts per step, so that a rocket in a crowd does not count as a hundred hits."""

PRESETS: dict[str, dict[str, float]] = {
    "bots": {
        **{"scenario": 0.0, "frag": 1.0, "frag_lost": -1.5, "death": -0.75, "hit": 0.01, "damage": 0.003},
        **{"health": 0.005, "health_lost": -0.003, "armor": 0.005, "armor_lost": -0.001},
        **{"weapon": 0.02, "weapon_lost": -0.01, "ammo": 0.0002, "ammo_lost": -0.0001, "weapon_held": 0.0002},
    },
    "self_play": {
        **{"scenario": 0.0, "frag": 1.0, "frag_lost": -0.001, "death": -1.0, "hit": 0.0, "damage": 0.01},
        **{"health": 0.01, "health_lost": -0.01, "armor": 0.005, "armor_lost": -0.001},
        **{"weapon": 0.02, "weapon_lost": -0.01, "ammo": 0.0002, "ammo_lost": -0.0001, "weapon_held": 0.0002},
    },
    "battle": {
        **{"scenario": 0.0, "kill": 1.0, "death": -0.5, "health": 0.01, "health_lost": -0.005},
        **{"ammo": 0.01, "ammo_lost": 0.0},
    },
}
"""Weights by name. "battle": one per kill, and small bonuses for health and ammunition, which are our own."""

_WEAPONS = tuple(f"WEAPON{slot}" for slot in range(8))
_AMMUNITION = tuple(f"AMMO{slot}" for slot in range(8))
_TERMS = frozenset({*EVENTS, *STATES, "weapon", "weapon_lost", "ammo", "ammo_lost", "weapon_held", "scenario"})

Reader = Callable[[str], float]  # value of a game variable by its name


def weights_of(given: str | Mapping[str, float]) -> dict[str, float]:
    """The weights of a preset, or the given ones. Raises `ConfigError` for an unknown preset or term."""
    if isinstance(given, str):
        if given not in PRESETS:
            raise ConfigError(
                f"there is no reward shaping {given!r}; there are {', '.join(PRESETS)}, or give weights as a dictionary"
            )
        return dict(PRESETS[given])
    if unknown := sorted(set(given) - _TERMS):
        raise ConfigError(f"reward shaping has no term {', '.join(unknown)}; terms are {', '.join(sorted(_TERMS))}")
    weights = {name: float(weight) for name, weight in given.items()}
    if not np.isfinite(list(weights.values())).all():
        raise ConfigError(f"weights of reward shaping must be finite numbers, not {weights}")
    return weights


class Shaping:
    """The shaped reward of one player, from step to step. `weights` may be replaced or changed at any time."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = dict(weights)
        self._last: dict[str, float] = {}
        self._held = 0

    def begin(self, read: Reader) -> None:
        """Begin an episode: changes count from here."""
        self._last = self._read(read)
        self._held = 0

    def reward(self, scenario: float, read: Reader, frames: int = 4) -> float:
        """Reward of a step of `frames` frames: the scenario's own times its weight (1 unless set), plus the terms."""
        weight, last = self.weights, self._last
        now = self._last = self._read(read)
        total = weight.get("scenario", 1.0) * scenario
        for term, (variable, sign) in EVENTS.items():
            if coefficient := weight.get(term, 0.0):
                total += coefficient * min(max(0.0, sign * (now[variable] - last[variable])), LIMITS.get(term, np.inf))
        if now["DEAD"] or last["DEAD"] or now["DEATHCOUNT"] != last["DEATHCOUNT"]:
            self._held = 0
            return total
        for term, (variable, sign) in STATES.items():
            total += weight.get(term, 0.0) * max(0.0, sign * (now[variable] - last[variable]))
        for slot, worth in enumerate(WEAPON_PREFERENCE):
            for kind, variable in (("weapon", _WEAPONS[slot]), ("ammo", _AMMUNITION[slot])):
                change = now[variable] - last[variable]
                total += worth * abs(change) * weight.get(kind if change > 0 else f"{kind}_lost", 0.0)
        return total + self._holding(now, last, frames)

    def _holding(self, now: Mapping[str, float], last: Mapping[str, float], frames: int) -> float:
        slot = int(now["SELECTED_WEAPON"])
        same = slot == int(last["SELECTED_WEAPON"]) and now["SELECTED_WEAPON_AMMO"] > 0
        self._held = self._held + frames if same else 0
        worth = WEAPON_PREFERENCE[slot] if 0 <= slot < len(WEAPON_PREFERENCE) else 0
        return self.weights.get("weapon_held", 0.0) * worth if self._held >= HOLDING_FRAMES else 0.0

    @staticmethod
    def _read(read: Reader) -> dict[str, float]:
        return {name: read(name) for name in _VARIABLES}


_VARIABLES = (
    *dict.fromkeys(variable for variable, _ in (*EVENTS.values(), *STATES.values())),
    *("DEAD", "SELECTED_WEAPON", "SELECTED_WEAPON_AMMO"),
    *_WEAPONS,
    *_AMMUNITION,
)
