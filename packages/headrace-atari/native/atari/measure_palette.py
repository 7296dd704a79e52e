"""Measure the NTSC and PAL palettes of ale-py and write them as a C++ table.

Usage: measure_palette.py palette.hpp

Games are played with random bytes written into their RAM until all 128 colours of a TV format have been on the screen;
what `getScreenRGB` shows for each colour byte is the palette. The gray levels need no table: the gray of an even colour
is round(0.2989 R + 0.5870 G + 0.1140 B), which is checked here for every colour.
"""

import sys

import ale_py
import numpy as np
from ale_py import roms

NTSC = ("demon_attack", "yars_revenge", "pong", "riverraid", "enduro", "surround", "breakout", "tennis")
PAL = ("klax", "pacman", "king_kong", "adventure", "keystone_kapers", "laser_gates", "mr_do", "air_raid", "space_war")


def measure(games: tuple[str, ...], attempts: int = 40) -> np.ndarray:
    """RGB of the even colour bytes, uint8 [128, 3].

    Raises:
        RuntimeError: if a colour never showed, or showed in two different ways.
    """
    rgb = np.zeros((256, 3), np.uint8)
    gray = np.zeros(256, np.uint8)
    seen = np.zeros(256, bool)
    rng = np.random.default_rng(0)
    for game in games * attempts:
        ale = ale_py.ALEInterface()
        ale.loadROM(roms.get_rom_path(game))
        for step in range(300):
            if step % 3 == 0:
                for address in rng.integers(128, size=8):
                    ale.setRAM(int(address), int(rng.integers(256)))
            ale.act(ale.getMinimalActionSet()[0])
            if ale.game_over():
                ale.reset_game()
            screen = ale.getScreen().ravel()
            colours, where = np.unique(screen, return_index=True)
            shown = ale.getScreenRGB().reshape(-1, 3)[where]
            levels = ale.getScreenGrayscale().ravel()[where]
            known = seen[colours]
            if (rgb[colours][known] != shown[known]).any() or (gray[colours][known] != levels[known]).any():
                raise RuntimeError(f"{game}: one colour byte showed in two ways")
            rgb[colours], gray[colours], seen[colours] = shown, levels, True
        if seen[::2].all():
            break
    else:
        raise RuntimeError(f"never seen: {(2 * np.flatnonzero(~seen[::2])).tolist()}")
    even = rgb[::2]
    if (gray[::2] != np.rint(even @ [0.2989, 0.5870, 0.1140])).any():
        raise RuntimeError("gray levels do not follow from the palette")
    odd = 1 + 2 * np.flatnonzero(seen[1::2])
    if (rgb[odd] != gray[odd - 1][:, None]).any():
        raise RuntimeError("odd colours are not the gray of the even colour below")
    return even


def table(name: str, palette: np.ndarray) -> str:
    codes = [f"0x{r:02x}{g:02x}{b:02x}" for r, g, b in palette]
    rows = "\n".join("      " + ", ".join(codes[i : i + 8]) + "," for i in range(0, 128, 8))
    return f"  static constexpr uint32_t {name}[128] = {{\n{rows}\n  }};\n"


def main() -> None:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    tables = table("kNtsc", measure(NTSC)) + table("kPal", measure(PAL))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(
            "// The colours of the two TV formats. Written by measure_palette.py from what ale-py shows.\n"
            '#pragma once\n\n#include "platform.hpp"\n\nnamespace headrace::atari {\n\n'
            "// 0xRRGGBB of the colour bytes 2 * index and 2 * index + 1, index 0..127.\n"
            "HR_HD inline uint32_t palette_color(bool pal, int index) {\n"
            f"{tables}  return pal ? kPal[index] : kNtsc[index];\n}}\n\n}}  // namespace headrace::atari\n"
        )


if __name__ == "__main__":
    main()
