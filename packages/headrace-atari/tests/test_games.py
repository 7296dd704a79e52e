"""Score keepers, resets and modes of all games against ALEInterface, frame by frame."""

import json
import re
from pathlib import Path

import ale_py
import numpy as np
import pytest

from headrace_atari import games, rom_path
from headrace_atari._native import atari
from headrace_atari.roms import load_game

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
RULES = json.loads((Path(__file__).parents[1] / "native/atari/games.json").read_text())["games"]


def pair(game, seed=1, repeat=0.0, mode=None, difficulty=0):
    """The same console on both sides, the ROM just loaded."""
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", repeat)
    ale.loadROM(rom_path(game))
    if mode is not None:
        ale.setMode(mode)
    if difficulty:
        ale.setDifficulty(difficulty)
    ours = atari.Emulator(load_game(game), -1 if mode is None else mode, difficulty=difficulty, repeat_action_probability=repeat)
    ours.load(seed)
    return ale, ours


def assert_same(ale, ours):
    np.testing.assert_array_equal(ours.ram(), ale.getRAM())
    assert (ours.lives, ours.game_over) == (ale.lives(), ale.game_over())
    assert (ours.frame_number, ours.episode_frame_number) == (ale.getFrameNumber(), ale.getEpisodeFrameNumber())


def reset(ale, ours):
    ale.reset_game()
    ours.reset()
    assert_same(ale, ours)
    np.testing.assert_array_equal(ours.screen(), ale.getScreen())


def addresses(game):
    """The bytes of RAM that the rules of a game read, as offsets from $80."""
    rules = {key: value for key, value in RULES[game].items() if key not in ("mode_setting", "md5")}
    found = [int(byte, 16) - 0x80 for byte in re.findall(r'"\$([89A-F][0-9A-F])\b', json.dumps(rules))]
    return sorted(set(found))


# RAM in which a game with a rule over many bytes is won or lost, as offsets from $80.
CRAFTED = {
    "backgammon": dict.fromkeys(range(28), 0) | {0x00: 256 - 15, 0x05: 15},
    "video_checkers": {row + cell: 0 for row in range(0, 28, 9) for cell in range(8)} | {0x00: 144},
}
# The frames after which these programs have crashed: they run what they read from the TIA's registers, whose lower bits are what
# was on the bus before. For opcodes that is not emulated.
UNTIL_CRASH = {"beam_rider": 70, "space_war": 270, "time_pilot": 260, "elevator_action": 820, "gravitar": 370}
# Nothing that the rules of these are about can be brought about by writing to RAM while they run.
OUT_OF_REACH = {"klax", "tic_tac_toe_3d"}


def check_rules(game, frames):
    """Play in which bytes that decide about score, lives and end are overwritten between frames."""
    ale, ours = pair(game)
    cells = addresses(game)
    rng = np.random.default_rng(0)
    reset(ale, ours)
    seen = 0
    for frame in range(frames):
        writes = CRAFTED.get(game, {}) if frame % 50 == 49 else {}
        for _ in range(rng.integers(3)):
            address = int(rng.choice(cells))
            values = [0, 1, 0x10, 0x20, 0x99, 0xFF, rng.integers(256), int(ale.getRAM()[address]) ^ 1]
            writes = {address: int(rng.choice(values))} | writes
        for address, value in writes.items():
            ale.setRAM(address, value)
            ours.set_ram(address, value)
        action = int(rng.integers(18))
        reward = ale.act(ale_py.Action(action))
        assert ours.act(action) == reward
        assert_same(ale, ours)
        seen += reward != 0
        if ale.game_over():
            seen += 1
            reset(ale, ours)
    assert seen or game in OUT_OF_REACH, "nothing that the rules are about has happened"


def check_modes(game, modes, frames, repeat=0.0):
    for mode in modes:
        ale, ours = pair(game, mode=mode, repeat=repeat)
        for _ in range(3):
            reset(ale, ours)
            for action in range(frames):
                assert ours.act(action % 18) == ale.act(ale_py.Action(action % 18))
            assert_same(ale, ours)


# One game for every way that reward, lives and end are computed, and the six with rules of their own.
RULED = [
    *("backgammon", "miniature_golf", "tic_tac_toe_3d", "video_checkers", "video_cube", "klax"),
    *("alien", "asteroids", "casino", "darkchambers", "et", "freeway", "journey_escape", "qbert", "riverraid", "skiing"),
    *("tennis", "tetris", "time_pilot", "word_zapper", "othello", "hangman", "enduro", "pitfall"),
]


@pytest.mark.parametrize("game", RULED)
def test_rules(game):
    check_rules(game, 250)


@pytest.mark.slow
@pytest.mark.parametrize("game", games())
def test_rules_of_every_game(game):
    check_rules(game, UNTIL_CRASH.get(game, 3000))


@pytest.mark.parametrize(
    ("game", "mode"),
    [
        *(("berzerk", 18), ("double_dunk", 10), ("demon_attack", 5), ("video_cube", 301), ("space_war", 9)),
        *(("gopher", 2), ("et", 1), ("backgammon", 0), ("sir_lancelot", 0), ("casino", 3)),
    ],
)
def test_modes(game, mode):
    check_modes(game, [mode], 30)


def test_difficulty_changes_the_way_to_a_mode():
    ale, ours = pair("tic_tac_toe_3d", mode=2, difficulty=2)
    reset(ale, ours)


def test_modes_that_are_chosen_through_sticky_actions():
    check_modes("double_dunk", [0, 5], 30, repeat=0.5)
    check_modes("video_cube", [200], 30, repeat=0.5)


def modes_to_test(game):
    modes = games()[game]["modes"]
    if game == "adventure":
        return modes[:1]  # the other two are not chosen as ale-py chooses them, see docs/atari.md
    return modes if len(modes) < 40 else modes[:: len(modes) // 20]


@pytest.mark.slow
@pytest.mark.parametrize("game", games())
def test_every_mode(game):
    check_modes(game, modes_to_test(game), 60)


@pytest.mark.slow
@pytest.mark.parametrize("game", games())
def test_difficulties_and_later_resets(game):
    """Resets of seeded and unseeded episodes walk through the timers, from snapshots or not."""
    for difficulty in games()[game]["difficulties"]:
        ale, ours = pair(game, difficulty=difficulty, seed=difficulty, repeat=0.25)
        for episode in range(6):
            reset(ale, ours)
            for frame in range(20 * episode):
                assert ours.act(frame % 18) == ale.act(ale_py.Action(frame % 18))
            assert_same(ale, ours)


def test_snapshots_equal_emulated_resets():
    """The second console takes its resets from snapshots that the first one left."""
    for game in ("pong", "solaris", "klax"):
        for _ in range(2):
            ale, ours = pair(game)
            for _ in range(4):
                reset(ale, ours)
                for action in range(40):
                    ours.act(action % 18), ale.act(ale_py.Action(action % 18))


def test_bad_roms_are_refused():
    index = games()["pong"]["index"]
    for rom in (b"", b"\0" * 100, b"\0" * 3000, b"\0" * 4096, bytes(range(256)) * 64):
        with pytest.raises(ValueError, match="not the ROM of pong"):
            atari.make_game(index, rom)
    with pytest.raises(ValueError, match="no game"):
        atari.make_game(len(games()), b"")
