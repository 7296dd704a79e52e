"""Reward shaping: each term by hand, deaths, weights that change between steps."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError
from headrace.envs.vizdoom.shaping import PRESETS, Shaping, weights_of

pytestmark = pytest.mark.process

QUIET = {"HEALTH": 100.0, "SELECTED_WEAPON": 2.0, "SELECTED_WEAPON_AMMO": 50.0, "AMMO2": 50.0, "WEAPON2": 1.0}


def rewards(weights: dict[str, float], *states: dict[str, float], scenario: float = 0.0, frames: int = 4) -> list[float]:
    """The rewards of the steps between states; variables that a state does not name are those of `QUIET`, or 0."""
    shaping = Shaping(weights)
    readers = [lambda name, state=QUIET | state: state.get(name, 0.0) for state in states]
    shaping.begin(readers[0])
    return [shaping.reward(scenario, reader, frames) for reader in readers[1:]]


@pytest.mark.parametrize(
    ("term", "before", "after", "amount"),
    [
        ("frag", {"FRAGCOUNT": 1}, {"FRAGCOUNT": 3}, 2),
        ("frag", {"FRAGCOUNT": 1}, {"FRAGCOUNT": 0}, 0),
        ("frag_lost", {"FRAGCOUNT": 1}, {"FRAGCOUNT": 0}, 1),
        ("death", {}, {"DEATHCOUNT": 1}, 1),
        ("kill", {}, {"KILLCOUNT": 2}, 2),
        ("hit", {}, {"HITCOUNT": 9}, 5),
        ("damage", {}, {"DAMAGECOUNT": 150}, 150),
        ("damage", {}, {"DAMAGECOUNT": 500}, 200),
        ("hit_taken", {}, {"HITS_TAKEN": 1}, 1),
        ("damage_taken", {}, {"DAMAGE_TAKEN": 30}, 30),
        ("health", {"HEALTH": 60}, {"HEALTH": 85}, 25),
        ("health_lost", {"HEALTH": 60}, {"HEALTH": 50}, 10),
        ("armor", {}, {"ARMOR": 50}, 50),
        ("armor_lost", {"ARMOR": 50}, {"ARMOR": 10}, 40),
        ("weapon", {}, {"WEAPON3": 1}, 5),
        ("weapon", {}, {"WEAPON7": 1}, 10),
        ("weapon_lost", {"WEAPON3": 1}, {}, 5),
        ("ammo", {}, {"AMMO2": 60}, 10),
        ("ammo", {}, {"AMMO5": 4}, 20),
        ("ammo_lost", {}, {"AMMO2": 40}, 10),
        ("scenario", {}, {}, 7.0),
    ],
)
def test_terms(term: str, before: dict[str, float], after: dict[str, float], amount: float) -> None:
    weights = {"scenario": 0.0, term: 0.5}
    assert rewards(weights, before, after, scenario=7.0) == [pytest.approx(0.5 * amount)]


def test_the_scenarios_own_reward_counts_unless_a_weight_says_otherwise() -> None:
    assert rewards({}, {}, {}, scenario=3.0) == [3.0]
    assert rewards({"scenario": 0.0}, {}, {}, scenario=3.0) == [0.0]


def test_death_and_a_new_life_are_no_loss_and_no_find() -> None:
    weights = dict.fromkeys(("health", "health_lost", "ammo", "ammo_lost", "weapon", "weapon_lost"), 1.0)
    dead = {"HEALTH": 0, "DEAD": 1, "DEATHCOUNT": 1, "AMMO2": 0, "WEAPON2": 0}
    assert rewards(weights, {}, dead, dead, {"DEATHCOUNT": 1}, {"DEATHCOUNT": 1, "HEALTH": 90}) == [0, 0, 0, 10]
    assert rewards(weights, {"HEALTH": 20}, {"DEATHCOUNT": 1, "HEALTH": 100}) == [0]  # died and came back within one step
    assert rewards(weights | {"death": -1.0}, {}, dead) == [-1]


def test_holding_a_good_weapon() -> None:
    launcher = {"SELECTED_WEAPON": 5, "SELECTED_WEAPON_AMMO": 3}
    assert rewards({"weapon_held": 1.0}, launcher, launcher, launcher) == [0, 5]  # 4 frames, then 8
    assert rewards({"weapon_held": 1.0}, launcher, launcher, launcher, frames=2) == [0, 0]
    empty = launcher | {"SELECTED_WEAPON_AMMO": 0}
    assert rewards({"weapon_held": 1.0}, launcher, launcher, empty, launcher, launcher) == [0, 0, 0, 5]
    plasma = {"SELECTED_WEAPON": 6, "SELECTED_WEAPON_AMMO": 3}
    assert rewards({"weapon_held": 1.0}, plasma, plasma, plasma) == [0, 10]


def test_weights_may_change_between_steps() -> None:
    state = {"FRAGCOUNT": 0.0}
    shaping = Shaping({"frag": 1.0})
    shaping.begin(lambda name: state.get(name, 0.0))
    paid = []
    for weight in (1.0, 2.0, 0.0):
        shaping.weights["frag"] = weight
        state["FRAGCOUNT"] += 1
        paid.append(shaping.reward(0.0, lambda name: state.get(name, 0.0)))
    assert paid == [1, 2, 0]


def test_unknown_terms_are_refused() -> None:
    with pytest.raises(ConfigError, match="fragz"):
        weights_of({"fragz": 1})
    with pytest.raises(ConfigError, match="no reward shaping 'paper'"):
        weights_of("paper")
    with pytest.raises(ConfigError, match="finite"):
        weights_of({"frag": float("nan")})
    for name, preset in PRESETS.items():
        assert weights_of(name) == preset
        assert weights_of(preset) is not preset
