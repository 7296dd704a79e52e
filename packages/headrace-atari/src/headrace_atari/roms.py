"""The supported Atari games, and their ROMs."""

from __future__ import annotations

import difflib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import headrace_atari._native.atari as native


@cache
def games() -> dict[str, dict[str, Any]]:
    """Properties of all games by name: index, md5, rom_size, pal, height, minimal_actions, legal_actions, modes, default_mode,
    difficulties."""
    return {facts["name"]: facts | {"index": index} for index, facts in enumerate(native.games())}


def rom_path(game: str, rom_dir: str | os.PathLike[str] | None = None) -> Path:
    """The ROM file of a game, in `rom_dir` or in ale-py.

    Raises:
        ValueError: if there is no such game; the message names the nearest ones.
        FileNotFoundError: if `rom_dir` has no file `<game>.bin`.
        ImportError: if no `rom_dir` is given and ale-py is not installed.
    """
    if game not in games():
        near = difflib.get_close_matches(game.lower(), games(), n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; names are like ms_pacman"
        raise ValueError(f"there is no Atari game {game!r}{hint}")
    if rom_dir is not None:
        path = Path(rom_dir) / f"{game}.bin"
    else:
        try:
            import ale_py.roms
        except ImportError as error:
            raise ImportError("the ROMs come with ale-py: pip install ale-py, or name a folder with rom_dir") from error
        path = Path(ale_py.roms.__file__).parent / f"{game}.bin"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    return path


@cache
def load_game(game: str, rom_dir: str | None = None) -> native.Game:
    """A game with its ROM; one object for all consoles of the process. Raises what `rom_path` raises, and `ValueError` for a ROM
    with another checksum."""
    path = rom_path(game, rom_dir)
    rom, facts = path.read_bytes(), games()[game]
    digest = hashlib.md5(rom, usedforsecurity=False).hexdigest()
    if digest != facts["md5"]:
        raise ValueError(f"{path} is not the ROM of {game}: its MD5 is {digest}, expected {facts['md5']}")
    return native.make_game(facts["index"], rom)
